#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""lstm.c in PyTorch: see examples/twin.py."""
import os
import sys

import torch
from torch import nn
import torch.nn.functional as F

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
import twin  # noqa: E402


class Lstm(nn.Module):
    def __init__(self, vocabulary, width, hidden, layers):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.lstm = nn.LSTM(width, hidden, layers, batch_first=True)
        self.out = nn.Linear(hidden, vocabulary)

    def forward(self, x):
        return self.out(self.lstm(self.embedding(x))[0])


def main():
    args = twin.arguments(layers=1, width=64, hidden=128, context=32, lr=0.003)
    text = twin.characters(args)
    net = Lstm(len(set(open(args.text, "rb").read())), args.width, args.hidden, args.layers)

    def loss(batch, _step):
        x = text[twin.rows(args, batch)]
        return F.cross_entropy(net(x[:, :-1]).flatten(0, 1), x[:, 1:].flatten())

    twin.run(args, net, torch.optim.Adam(net.parameters(), lr=args.lr), loss)


main()
