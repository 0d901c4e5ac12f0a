#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""gpt.c in PyTorch, with GPT-2's public names: see examples/twin.py. --write N prints, instead of
losses, what pltrain --predict writes: the bytes of the samples from character --first on, whose last
N characters are the likeliest ones, each computed anew from all before it. Plume's weights come by gpt2.map:

    xargs -a examples/gpt/gpt2.map pltrain --weights w.safetensors gpt"""
import os
import sys

import torch
from torch import nn
import torch.nn.functional as F

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
import twin  # noqa: E402


class Conv1D(nn.Module):
    """A linear layer whose weight is stored as [in, out], as GPT-2's are."""

    def __init__(self, inputs, outputs):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(inputs, outputs))
        self.bias = nn.Parameter(torch.randn(outputs))

    def forward(self, x):
        return x @ self.weight + self.bias


class Attention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.c_attn, self.c_proj = Conv1D(width, 3 * width), Conv1D(width, width)

    def forward(self, x):
        batch, time, width = x.shape
        q, k, v = (u.view(batch, time, self.heads, width // self.heads).transpose(1, 2)
                   for u in self.c_attn(x).split(width, 2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.c_proj(y.transpose(1, 2).reshape(batch, time, width))


class Mlp(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.c_fc, self.c_proj = Conv1D(width, 4 * width), Conv1D(4 * width, width)

    def forward(self, x):
        return self.c_proj(F.gelu(self.c_fc(x), approximate="tanh"))


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.ln_1, self.attn = nn.LayerNorm(width), Attention(width, heads)
        self.ln_2, self.mlp = nn.LayerNorm(width), Mlp(width)

    def forward(self, x):
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class Gpt(nn.Module):
    def __init__(self, vocabulary, layers, heads, width, context):
        super().__init__()
        self.transformer = nn.ModuleDict({
            "wte": nn.Embedding(vocabulary, width), "wpe": nn.Embedding(context, width),
            "h": nn.ModuleList(Block(width, heads) for _ in range(layers)),
            "ln_f": nn.LayerNorm(width)})
        self.lm_head = nn.Linear(width, vocabulary, bias=False)
        self.lm_head.weight = self.transformer["wte"].weight

    def forward(self, ids):
        t = self.transformer
        x = t["wte"](ids) + t["wpe"].weight[:ids.shape[1]]
        for block in t["h"]:
            x = block(x)
        return self.lm_head(t["ln_f"](x))


def write(args, net, x, vocabulary):
    """Continues windows of the text, without a cache."""
    net.load_state_dict(twin.read_weights(args.weights))
    at = args.context - args.write
    while at < args.context:
        with torch.no_grad():
            x[:, at] = net(x[:, :at])[:, -1].argmax(1)
        at += 1
    for row in x.tolist():
        print([vocabulary[i] for i in row])


def main():
    args = twin.arguments(layers=2, heads=4, width=64, context=64, lr=0.003, weight_decay=0.1,
                          write=0, first=0)
    text = twin.characters(args, args.first)
    with open(args.text, "rb") as f:
        vocabulary = sorted(set(f.read()))
    net = Gpt(len(vocabulary), args.layers, args.heads, args.width, args.context)
    if args.write:
        write(args, net, text[:, :-1], vocabulary)
        return

    def loss(batch, _step):
        x = text[twin.rows(args, batch)]
        return F.cross_entropy(net(x[:, :-1]).flatten(0, 1), x[:, 1:].flatten())

    twin.run(args, net, torch.optim.AdamW(net.parameters(), lr=args.lr,
                                          weight_decay=args.weight_decay), loss)


if __name__ == "__main__":
    main()
