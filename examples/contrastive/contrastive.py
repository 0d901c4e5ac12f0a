#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""contrastive.c in PyTorch: see examples/twin.py."""
import os
import sys

import torch
from torch import nn
import torch.nn.functional as F

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
import twin  # noqa: E402

SIDE, SEEN = 8, 5


class Encoder(nn.Module):
    def __init__(self, hidden, features):
        super().__init__()
        self.w1 = nn.Parameter(nn.init.kaiming_normal_(torch.empty(hidden, SIDE * SEEN)))
        self.b1 = nn.Parameter(torch.zeros(hidden))
        self.w2 = nn.Parameter(nn.init.kaiming_uniform_(torch.empty(features, hidden)))

    def forward(self, x):
        return F.normalize(F.linear(F.relu(F.linear(x.flatten(1), self.w1, self.b1)), self.w2))


class Pair(nn.Module):
    def __init__(self, hidden, features, temperature):
        super().__init__()
        self.left, self.right = Encoder(hidden, features), Encoder(hidden, features)
        self.temperature = temperature

    def forward(self, x):
        similar = self.left(x[:, :, :SEEN]) @ self.right(x[:, :, SIDE - SEEN:]).T
        return F.cross_entropy(similar / self.temperature, torch.arange(len(x)))


def main():
    args = twin.arguments(hidden=128, features=32, temperature=0.1, lr=0.2, momentum=0.9)
    net = Pair(args.hidden, args.features, args.temperature)
    images = twin.digits(args, "images")
    optimizer = torch.optim.SGD(net.parameters(), lr=args.lr, momentum=args.momentum)
    twin.run(args, net, optimizer, lambda batch, _: net(images[twin.rows(args, batch)]))


main()
