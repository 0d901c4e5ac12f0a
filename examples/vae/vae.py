#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""vae.c in PyTorch: see examples/twin.py."""
import os
import sys

import torch
from torch import nn
import torch.nn.functional as F

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
import twin  # noqa: E402


class Vae(nn.Module):
    def __init__(self, hidden, latent):
        super().__init__()
        self.fc1 = nn.Linear(64, hidden)
        self.fc21 = nn.Linear(hidden, latent)
        self.fc22 = nn.Linear(hidden, latent)
        self.fc3 = nn.Linear(latent, hidden)
        self.fc4 = nn.Linear(hidden, 64)

    def forward(self, x, noise):
        h = F.relu(self.fc1(x))
        mean, log_var = self.fc21(h), self.fc22(h)
        z = mean + torch.exp(log_var / 2) * noise
        logits = self.fc4(F.relu(self.fc3(z)))
        entropy = F.binary_cross_entropy_with_logits(logits, x, reduction="sum")
        divergence = -0.5 * torch.sum(1 + log_var - mean ** 2 - log_var.exp())
        return (entropy + divergence) / len(x)


def main():
    args = twin.arguments(hidden=64, latent=8, lr=0.003)
    net = Vae(args.hidden, args.latent)
    images = twin.digits(args, "images").reshape(-1, 64)

    def loss(batch, step):
        noise = twin.normal(args.seed, step, (args.batch_size, args.latent))
        return net(images[twin.rows(args, batch)], noise)

    twin.run(args, net, torch.optim.Adam(net.parameters(), lr=args.lr), loss)


main()
