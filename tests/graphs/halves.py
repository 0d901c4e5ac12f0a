#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Random graphs of ops for 16-bit types, for test-graphs.c --half.

halves.py f16|bf16 N [SEED]    writes N graphs to standard output; the same numbers write the same.

The values and gradients are f64's. What a level of 16 bits may differ by depends on which tensors
it rounds. So the graph runs a few times more with each input, result and gradient of each op
rounded, or a random part of a rounding off, and the tolerance is a few times the largest
difference."""
import sys

import torch

from graph import OPS, Unfit
from graphs import graphs, largest_of, outs, written

TYPES = {"f16": (torch.float16, 2.0**-11), "bf16": (torch.bfloat16, 2.0**-8)}
NOISES = 4
MOST = 2e4  # sums of a few of them are numbers of f16


class Rounded(torch.autograd.Function):
    """A tensor and its gradient as the 16-bit type has them, or with `noise` close to that."""

    @staticmethod
    def off(t, dtype, noise):
        if noise is None:
            return t.to(TYPES[dtype][0]).double()
        return t * (1 + TYPES[dtype][1] * (2 * torch.rand(t.shape, generator=noise, dtype=torch.float64) - 1))

    @staticmethod
    def forward(ctx, t, dtype, noise):
        ctx.how = dtype, noise
        return Rounded.off(t, dtype, noise)

    @staticmethod
    def backward(ctx, grad):
        return Rounded.off(grad, *ctx.how), None, None


def run(g, out, rounded=None):
    """rounded(t): what an op reads or gives in the place of t."""
    off = lambda t: rounded(t) if rounded and t.dtype.is_floating_point else t
    leaves = [t.double().clone() if t.dtype.is_floating_point else t for t in g.leaves]
    leaves = [t.requires_grad_() if t.dtype.is_floating_point and i not in g.buffers else t for i, t in enumerate(leaves)]
    values = []
    for _, ins, _, f in g.calls:
        # A buffer is what the op itself writes, in f32.
        args = [leaves[i] if kind == "leaf" and i in g.buffers else off(leaves[i] if kind == "leaf" else values[i])
                for kind, i in ins]
        y = f(*args)
        values.append(off(y.double() if y.dtype.is_floating_point else y))
    loss = 0
    for i in out:
        y = values[i]
        if y.dtype.is_floating_point:
            w = torch.tensor([(k * 3 % 7 - 2.5) / 2 for k in range(y.numel())], dtype=torch.float64).reshape(y.shape)
            loss = loss + (y * w).sum()
    if isinstance(loss, torch.Tensor) and loss.requires_grad:
        loss.backward()
    grads = {i: t.grad for i, t in enumerate(leaves) if t.dtype.is_floating_point and t.grad is not None}
    return {i: values[i].detach() for i in out}, grads, {i: leaves[i] for i in g.buffers}, largest_of(values)


def tolerance(exact, others, unit, flow):
    if not exact.dtype.is_floating_point:
        if any(not torch.equal(exact, t) for t in others):
            raise Unfit
        return 0
    largest = max(1.0, float(exact.abs().max()))
    off = max(float((exact - t).abs().max()) for t in others)
    if not off < 0.1 * largest:
        raise Unfit
    return 6 * off + 4 * unit * largest + unit * flow


def write_for(dtype):
    def write(g, name):
        out = outs(g)
        *exact, most = run(g, out)
        grads = exact[1]
        if not max(most, largest_of(grads.values())) < MOST:
            raise Unfit
        noises = [None] + [torch.Generator().manual_seed(i) for i in range(NOISES)]
        others = [run(g, out, lambda t, noise=noise: Rounded.apply(t, dtype, noise)) for noise in noises]

        def limits(kind, i):
            of = ("out", "grad", "state").index(kind)
            flow = largest_of(grads.values()) if kind == "grad" else 0
            return 0, tolerance(exact[of][i], [o[of][i] for o in others], TYPES[dtype][1], flow)

        return written(g, name, out, *exact, limits)

    return write


def main():
    torch.set_num_threads(1)
    dtype, n = sys.argv[1], int(sys.argv[2])
    first = int(sys.argv[3]) if len(sys.argv) > 3 else 1
    for g in graphs(n, first * 1000000, sorted(OPS), write=write_for(dtype)):
        print(g, flush=True)


if __name__ == "__main__":
    main()
