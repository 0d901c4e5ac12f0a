#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Random graphs of ops for 16-bit types, for test-graphs.c --half.

halves.py f16|bf16 N [SEED]    writes N graphs to standard output; the same numbers write the same.
halves.py f16|bf16 --each      writes a graph for each op of the table OPS: a norm, then the op, which
                               reads the norm's result if it can; also batch norms between ops
                               that stay in f32.

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
NORMS = ["batchnorm", "layernorm"]  # of --each, in turns
# Ops that make their own inputs.
APART = ["attention", "einsum_many", "full", "one_hot", "range", *(n for n in OPS if n.startswith("whole_"))]


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


def text(t):
    return " ".join(f"{float(v):.7g}" if v.dtype.is_floating_point else str(int(v)) for v in t.detach().flatten())


def as_read(t):
    """A leaf as the test reads it: seven digits, and then f32."""
    return torch.tensor([float(v) for v in text(t).split()], dtype=t.dtype).reshape(t.shape).float().double()


def write_for(dtype):
    def write(g, name):
        g.leaves = [as_read(t) if t.dtype.is_floating_point else t for t in g.leaves]
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

        return written(g, name, out, *exact, limits, text=text)

    return write


def is_after_norm(g):
    return any(("call", 0) in ins for _, ins, _, _ in g.calls[1:])


def is_between(g):
    return len(g.calls) == 3 and all(("call", i) in g.calls[i + 1][1] for i in range(2))


def each(write):
    def first(steps, test):
        # graphs() tries 400 seeds. Some ops take a few of a norm's results only.
        return next(g for seed in range(1, 8000, 400) for g in graphs(1, seed, [], steps, test=test, write=write))

    for i, name in enumerate(sorted(OPS)):
        test = (lambda g: len(g.calls) > 1) if name in APART else is_after_norm
        yield first([NORMS[i % 2], name], test)
    for before in "logsumexp", "std", "var":
        for after in "bce_with_logits", "l1", "mse":
            yield first([before, "batchnorm", after], is_between)


def main():
    torch.set_num_threads(1)
    dtype, n = sys.argv[1:3]
    write, first = write_for(dtype), int(sys.argv[3]) if len(sys.argv) > 3 else 1
    for g in each(write) if n == "--each" else graphs(int(n), first * 1000000, sorted(OPS), write=write):
        print(g, flush=True)


if __name__ == "__main__":
    main()
