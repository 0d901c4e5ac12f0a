#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Random graphs of ops with PyTorch's values and gradients, for test-graphs.c.

graphs.py N [SEED]    writes N graphs to standard output; the same N and seed write the same.
graphs.py --each      writes graphs in which each op of the table OPS is used a few times.
graphs.py --huge      writes graphs of each activation of a huge number, of 0 and of a NaN, quotients, and batch norms far from 0.
graphs.py --far       writes batch norms of many numbers far from 0.

Shapes are small and awkward: dimensions of 1, views of views, permutations, slices. A graph is
computed in f64 and f32; halves.py has the 16-bit types. What is compared with f32 may differ by much more than the two do."""
import math
import random
import sys

import torch
from torch.nn import functional as F

import ops  # fills OPS
import ops_net  # noqa: F401, fills OPS
from graph import OPS, Graph, Unfit

# Graphs of an op alone for --each, if one does not have all of its kinds of inputs.
ALONE = {"adaptive_max_pool": 8, "adaptive_max_pool2d": 10, "add_dim": 8, "batchnorm": 6, "bce_with_logits": 4,
         "cross_entropy_smooth": 4, "eq": 4, "gather_but": 6, "einsum": 24, "einsum_dots": 24, "einsum_many": 12, "expand": 6, "flip": 4, "gru": 16, "index_add": 8,
         "kl_div": 4, "lstm": 11,
         "prod": 4, "roll": 12, "scatter": 8, "scatter_add": 8, "stack": 8, "std": 6, "tril": 6, "triu": 6, "var": 6}
# Layers of rows of a table, which the engine does on the table: graphs of each.
ON_TABLES = {"linear": 6, "lstm": 6, "gru": 6}


# -- a whole graph
def replay(g, dtype, noise=None):
    """noise: each result is a rounding of f32 off, so that what depends on one shows."""
    leaves = [t.to(dtype).clone() if t.dtype.is_floating_point else t for t in g.leaves]
    leaves = [t.requires_grad_() if t.dtype.is_floating_point and i not in g.buffers else t for i, t in enumerate(leaves)]
    values = []
    for name, ins, nums, f in g.calls:
        args = [leaves[i] if kind == "leaf" else values[i] for kind, i in ins]
        y = f(*args)
        y = y.to(dtype) if y.dtype.is_floating_point else y
        if noise and y.dtype.is_floating_point:
            y = y * (1 + 1e-7 * torch.randn(y.shape, generator=noise, dtype=dtype))
        values.append(y)
    return leaves, values


def outs(g):
    used = {r for _, ins, _, _ in g.calls for r in ins}
    return [i for i in range(len(g.calls)) if ("call", i) not in used][:12]


def run(g, dtype, out, noise=None):
    leaves, values = replay(g, dtype, noise)
    loss = 0
    for i in out:
        y = values[i]
        if not y.dtype.is_floating_point:
            continue
        w = torch.tensor([(k * 3 % 7 - 2.5) / 2 for k in range(y.numel())], dtype=dtype).reshape(y.shape)
        loss = loss + (y * w).sum()
    if isinstance(loss, torch.Tensor) and loss.requires_grad:
        loss.backward()
    grads = {i: t.grad for i, t in enumerate(leaves) if t.dtype.is_floating_point and t.grad is not None}
    return {i: values[i].detach() for i in out}, grads, {i: leaves[i] for i in g.buffers}


def text(values):
    return " ".join(repr(float(v)) if v.dtype.is_floating_point else str(int(v)) for v in values.detach().flatten())


def tolerances(a, b, noisy, flow=0.0):
    """f64: sums of up to some hundred terms in another order. f32: a few times what PyTorch's own f32
    and roundings of f32 are off, some roundings of the largest, and of `flow`, the graph's largest
    gradient: such as of the weights of classes that have one row, where the terms cancel."""
    largest = max(1.0, float(a.abs().max()))
    if not a.dtype.is_floating_point:
        if not torch.equal(a, b) or not torch.equal(a, noisy):
            raise Unfit
        return 0, 0
    off = max(float((a - b.double()).abs().max()), float((a - noisy).abs().max()))
    if off > 1e-3 * largest:
        raise Unfit
    return 1e-11 * largest, 20 * off + 2e-5 * largest + 2e-6 * flow


def written(g, name, out, values, grads, states, limits, text=text):
    """The text of a graph. limits(kind, i) are the tolerances of what is expected of tensor i; text(t) is that of its
    values."""
    lines = [f"graph {name}"]
    for i, t in enumerate(g.leaves):
        kind = 2 if i in g.buffers else 0 if t.dtype.is_floating_point else 1
        lines.append(f"leaf {kind} {t.dim()} {' '.join(map(str, t.shape))} {text(t)}")
    number = lambda r: r[1] if r[0] == "leaf" else len(g.leaves) + r[1]
    for op_name, ins, nums, _ in g.calls:
        lines.append(f"op {op_name} {len(ins)} {' '.join(str(number(i)) for i in ins)} "
                     f"{len(nums)} {' '.join(map(str, nums))}")
    for kind, tensors in ("out", {i: values[i] for i in out}), ("grad", grads), ("state", states):
        for i, t in sorted(tensors.items()):
            a, b = limits(kind, i)
            lines.append(f"{kind} {len(g.leaves) + i if kind == 'out' else i} {a:.2g} {b:.2g} {t.numel()} {text(t)}")
    return "\n".join(lines + ["end"])


def largest_of(tensors):
    return max((float(t.detach().abs().max()) for t in tensors if t.dtype.is_floating_point and t.numel()), default=0.0)


def write(g, name):
    out = outs(g)
    exact = run(g, torch.float64, out)
    single = run(g, torch.float32, out)
    noisy = run(g, torch.float64, out, torch.Generator().manual_seed(1))
    grads = exact[1]
    if set(grads) != set(single[1]) or any(not torch.isfinite(t).all() for t in grads.values()) or largest_of(grads.values()) > 1e5:
        raise Unfit

    def limits(kind, i):
        of = ("out", "grad", "state").index(kind)
        return tolerances(exact[of][i], single[of][i], noisy[of][i], largest_of(grads.values()) if kind == "grad" else 0.0)

    return written(g, name, out, *exact, limits)


def is_on_table(g):
    """True if the last op takes rows of a table that has half as many rows as there are positions, or fewer."""
    if len(g.calls) != 2 or ("call", 0) != g.calls[1][1][0]:
        return False
    table, ids = (g.value(r) for r in g.calls[0][1])
    return 2 * table.shape[0] <= ids.numel()


def attempt(seed, names, steps, test=lambda g: True, write=write):
    rnd = random.Random(seed)
    g = Graph(rnd)
    for name in steps or [rnd.choice(names) for _ in range(rnd.randint(1, 14))]:
        before = len(g.leaves), len(g.calls)
        for _ in range(6):
            try:
                OPS[name](g)
                break
            except Unfit:
                del g.leaves[before[0]:], g.calls[before[1]:], g.values[before[1]:]
                g.buffers = {i for i in g.buffers if i < before[0]}
    if not g.calls or len(g.leaves) + len(g.calls) > 90 or not test(g):
        raise Unfit
    return write(g, f"{'-'.join(steps) + '-' if steps else ''}{seed}")


def graphs(n, seed, names, steps=None, **more):
    last = seed + 400 * n
    while n > 0 and seed < last:
        try:
            yield attempt(seed, names, steps, **more)
            n -= 1
        except Unfit:
            pass
        seed += 1


def huge():
    """The square of the larger ones is infinite in f32, where PyTorch's own gelu_tanh has no gradient. At 0 relu has none."""
    for act, f in enumerate(ops.ACTS):
        for number in [s * x for x in (1e5, 1e20, 1e30) for s in (1, -1)] + [0, math.nan]:
            g = Graph(random.Random(1))
            g.leaves = [torch.tensor([number], dtype=torch.float32).double()]
            g.calls = [("activate", [("leaf", 0)], [act], f)]
            values, grads, states = exact = run(g, torch.float64, [0])
            yield written(g, f"activate-{act}-of-{number:g}", [0], values, grads, states, of_largest(exact, 1e-11))
    yield from quotients()
    yield from far()


def of_largest(exact, f64, mean=None):
    """Tolerances relative to the largest number; mean: a leaf that has numbers far from 0, and must not be a deviation off."""
    def limits(kind, i):
        largest = max(1.0, float(exact[("out", "grad", "state").index(kind)][i].abs().max()))
        return f64 * largest, (2e-7 if kind == "state" and i == mean else 2e-5) * largest

    return limits


def quotients():
    """The square of the divisor is 0 or infinite in f32, or the gradient divided by it is infinite: the divisor's is not."""
    for a, b, scale in (1e38, 1e20, 1), (2e-28, 2e-25, 1), (1e-37, 1e-34, 6e4):
        for n in 1, 3:
            g = Graph(random.Random(1))
            g.leaves = [torch.tensor(values).double() for values in ([a, 0, -2 * a], [b] * n)]
            g.buffers = {0}  # dy / b is its gradient
            g.calls = [("div", [("leaf", 0), ("leaf", 1)], [], torch.div),
                       ("scale", [("call", 0)], [scale, 0], lambda t, scale=scale: scale * t)]
            values, grads, states = exact = run(g, torch.float64, [1])
            yield written(g, f"div-by-{n}-of-{b:g}", [1], values, grads, states, of_largest(exact, 1e-11))


def batch_norm(x, w, b, mean, var):
    return F.batch_norm(x, mean, var, w, b, True, 0.5, 1e-5)


def far():
    """The mean of whole numbers, and their differences from it, are numbers of f32. Their sum is not."""
    for place in (2.0**20, -(2.0**22)):
        g = Graph(random.Random(1))
        g.leaves = [place + torch.tensor([[k * 5 % 8, k * k % 8] for k in range(128)], dtype=torch.float64).reshape(16, 8, 2).transpose(1, 2)]
        g.leaves += [torch.tensor(pair, dtype=torch.float64) for pair in ([1, -2], [0.5, 1], [0, place], [1, 4])]
        g.buffers = {3, 4}
        g.calls = [("batchnorm", [("leaf", i) for i in range(5)], [1e-5, 0.5, 0], batch_norm)]
        values, grads, states = exact = run(g, torch.float64, [0])
        yield written(g, f"batchnorm-at-{place:g}", [0], values, grads, states, of_largest(exact, 1e-10, 3))


def many_far():
    """Where the mean of squares less the square of the mean is off in f64, too."""
    yield many(2e6, 100, 200)
    yield many(12345678, 1000, 1000)


def many(place, a, b):
    """a times b whole numbers around `place`, whose mean it is, in no order. The first four are shown."""
    def around(n):
        half = (3 * torch.randn(n // 2, dtype=torch.float64, generator=noise)).round()
        return torch.cat([half, -half])[torch.randperm(n, generator=noise)]

    noise = torch.Generator().manual_seed(1)
    g = Graph(random.Random(1))
    g.leaves = [around(a).reshape(a, 1, 1), place + torch.stack([around(b), around(b)], 1).reshape(1, b, 2)]
    g.leaves += [torch.tensor(pair, dtype=torch.float64) for pair in ([1, -2], [0.5, 1], [0, place], [1, 4])]
    g.buffers = {0, 1, 4, 5}
    g.calls = [("add", [("leaf", 0), ("leaf", 1)], [], torch.add),
               ("reshape", [("call", 0)], [a * b, 2], lambda t: t.reshape(a * b, 2)),
               ("batchnorm", [("call", 1)] + [("leaf", i) for i in range(2, 6)], [1e-5, 0.5, 0], batch_norm),
               ("slice", [("call", 2)], [0, 0, 4], lambda t: t.narrow(0, 0, 4))]
    values, grads, states = exact = run(g, torch.float64, [3])
    return written(g, f"batchnorm-of-{a * b}-at-{place:g}", [3], values, grads, states, of_largest(exact, 1e-9, 4))


def main():
    torch.set_num_threads(1)
    names = sorted(OPS)
    if sys.argv[1] == "--huge":
        print("\n".join(huge()))
        return
    if sys.argv[1] == "--far":
        print("\n".join(many_far()))
        return
    if sys.argv[1] == "--each":
        for name in names:
            # Alone, and of the result of views.
            for steps in ([name], ["permute", "slice", name, "mul"], ["reshape", "permute", name, name]):
                for g in graphs(ALONE.get(name, 1) if steps == [name] else 1, 1, names, steps):
                    print(g, flush=True)
        for name, n in ON_TABLES.items():
            for g in graphs(n, 1, names, ["embedding", name], test=is_on_table):
                print(g, flush=True)
        return
    first = int(sys.argv[2]) if len(sys.argv) > 2 else 1
    for g in graphs(int(sys.argv[1]), first * 1000000, names):
        print(g)


if __name__ == "__main__":
    main()
