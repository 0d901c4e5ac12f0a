# SPDX-License-Identifier: MIT
"""A graph of ops, its leaves and results, while it is made; the table of ops."""
import math

import torch

SIZES = [1, 1, 1, 2, 2, 3, 4, 5, 7]
MOST = 160
OPS = {}


class Unfit(Exception):
    """The op does not take these tensors, or the numbers are close to a kink."""


def op(f):
    OPS[f.__name__.rstrip("_")] = f
    return f


class Graph:
    """Tensors are numbers: leaves first, then results. `calls` has (name, inputs, numbers, f)."""

    def __init__(self, rnd):
        self.rnd = rnd
        self.leaves = []
        self.buffers = set()  # numbers of leaves that have no gradient, and that the op writes
        self.calls = []
        self.late = []  # leaves that an op asked for
        self.values = []

    # -- leaves
    def leaf(self, shape, kind="real", high=1):
        n = math.prod(shape)
        if kind != "int":
            t = torch.tensor([round(self.rnd.gauss(0, 1), 3) for _ in range(n)], dtype=torch.float64)
        else:
            t = torch.tensor([self.rnd.randrange(high) for _ in range(n)], dtype=torch.int64)
        t = t.reshape(shape)
        if kind != "int":
            t = t.float().double()  # exact in both types
        self.leaves.append(t)
        if kind == "buffer":
            self.buffers.add(len(self.leaves) - 1)
        return ("leaf", len(self.leaves) - 1)

    def call(self, name, ins, nums, f):
        try:
            y = f(*[self.value(i).clone() for i in ins])
        except RuntimeError:  # shapes that do not broadcast
            raise Unfit from None
        if y.numel() > MOST * 4 or y.dim() > 5 or y.dim() < 1:
            raise Unfit
        if y.dtype.is_floating_point and not (torch.isfinite(y).all() and y.abs().max() < 1e3):
            raise Unfit
        self.calls.append((name, ins, nums, f))
        self.values.append(y)
        return ("call", len(self.calls) - 1)

    def value(self, ref):
        return self.leaves[ref[1]] if ref[0] == "leaf" else self.values[ref[1]]

    # -- picking
    def shape(self, low=1, high=4):
        while True:
            s = [self.rnd.choice(SIZES) for _ in range(self.rnd.randint(low, high))]
            if math.prod(s) <= MOST:
                return s

    def real(self, test=lambda t: True):
        refs = [("call", i) for i, v in enumerate(self.values) if v.dtype.is_floating_point and test(v)]
        refs += [("leaf", i) for i, v in enumerate(self.leaves)
                 if v.dtype.is_floating_point and i not in self.buffers and test(v)]
        if not refs or self.rnd.random() < 0.1:
            return None
        return self.rnd.choice(refs[:8] if self.rnd.random() < 0.6 else refs)

    def any(self, low=1, high=5):
        ref = self.real(lambda t: low <= t.dim() <= high)
        return ref or self.leaf(self.shape(low, min(high, 4)))

    def like(self, shape):
        """A tensor that broadcasts with `shape`."""
        ref = self.real(lambda t: broadcasts(list(t.shape), shape))
        if ref and self.rnd.random() < 0.6:
            return ref
        s = [n if self.rnd.random() < 0.7 else 1 for n in shape][self.rnd.randrange(len(shape)):]
        return self.leaf(s)


def broadcasts(a, b):
    return all(x == y or x == 1 or y == 1 for x, y in zip(reversed(a), reversed(b)))


def away(t, at=0.0):
    """Refuses what is close to a kink but not on it, where a rounding makes the difference."""
    d = (t.detach() - at).abs()
    if ((d > 0) & (d < 1e-3)).any():
        raise Unfit


def apart(t, dim):
    """Refuses elements along dim whose order a rounding may change; equal ones are in order."""
    s = t.detach().sort(dim).values
    if s.shape[dim] > 1:
        away(s.diff(dim=dim))
