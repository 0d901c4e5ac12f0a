#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Random graphs of ops with PyTorch's values and gradients, for test-graphs.c.

graphs.py N [SEED]    writes N graphs to standard output; the same N and seed write the same.
graphs.py --each      writes graphs in which each op of the table OPS is used a few times.

Shapes are small and awkward: dimensions of 1, views of views, permutations, slices. A graph is
computed in f64 and f32. What is compared with f32 may differ by much more than the two do."""
import math
import random
import sys

import torch
import torch.nn.functional as F

SIZES = [1, 1, 1, 2, 2, 3, 4, 5, 7]
MOST = 160
OPS = {}
# Graphs of an op alone for --each, if one does not have all of its kinds of inputs.
ALONE = {"lstm": 11}


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
        self.calls = []
        self.late = []  # leaves that an op asked for
        self.values = []

    # -- leaves
    def leaf(self, shape, kind="real", high=1):
        n = math.prod(shape)
        if kind == "real":
            t = torch.tensor([round(self.rnd.gauss(0, 1), 3) for _ in range(n)], dtype=torch.float64)
        else:
            t = torch.tensor([self.rnd.randrange(high) for _ in range(n)], dtype=torch.int64)
        t = t.reshape(shape)
        if kind == "real":
            t = t.float().double()  # exact in both types
        self.leaves.append(t)
        return ("leaf", len(self.leaves) - 1)

    def call(self, name, ins, nums, f):
        try:
            y = f(*[self.value(i) for i in ins])
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
        refs += [("leaf", i) for i, v in enumerate(self.leaves) if v.dtype.is_floating_point and test(v)]
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


# -- ops of elements
def unary(name, f, nums=lambda g: [], check=None):
    def make(g):
        x = g.any()
        n = nums(g)
        if check:
            check(g.value(x), *n)
        return g.call(name, [x], n, lambda t, n=n: f(t, *n))

    OPS[name] = make


def positive(t, *_):
    if (t < 0.05).any():
        raise Unfit


ACTS = [lambda t: t, F.relu, F.gelu, lambda t: F.gelu(t, approximate="tanh"), F.silu, torch.tanh, torch.sigmoid]


@op
def activate(g):
    x, a = g.any(), g.rnd.randrange(len(ACTS))
    if a == 1:
        away(g.value(x))
    return g.call("activate", [x], [a], ACTS[a])


def few(t, *_):
    if t.abs().max() > 5:
        raise Unfit


unary("exp", torch.exp, check=few)
unary("ln", torch.log, check=positive)
unary("sqrt", torch.sqrt, check=positive)
unary("rsqrt", torch.rsqrt, check=positive)
unary("pow", lambda t, p: t ** p, lambda g: [g.rnd.choice([2, 3, 1, 0])], check=few)
unary("abs", torch.abs, check=lambda t: away(t))
unary("clamp", lambda t, p, q: t.clamp(p, q), lambda g: sorted([g.rnd.choice([-1, -.5]), g.rnd.choice([.5, 2])]),
      check=lambda t, p, q: (away(t, p), away(t, q)))
unary("softplus", lambda t: F.softplus(t, threshold=1e9), check=few)
unary("elu", F.elu, lambda g: [g.rnd.choice([1, 0.5])], check=lambda t, a: away(t))
unary("leaky_relu", F.leaky_relu, lambda g: [0.1], check=lambda t, a: away(t))
unary("sin", torch.sin, check=few)
unary("cos", torch.cos, check=few)
unary("scale", lambda t, a, b: a * t + b, lambda g: [g.rnd.choice([-1.5, 0.5, 1]), g.rnd.choice([0, 0.25])])


def two(name, f, check=None):
    def make(g):
        a = g.any()
        b = g.like(list(g.value(a).shape))
        if g.rnd.random() < 0.3:
            a, b = b, a
        if check:
            check(g.value(a), g.value(b))
        return g.call(name, [a, b], [], f)

    OPS[name] = make


def far_from_zero(a, b):
    if (b.abs() < 0.2).any():
        raise Unfit


two("add", torch.add)
two("sub", torch.sub)
two("mul", torch.mul)
two("div", torch.div, far_from_zero)
two("maximum", torch.maximum, lambda a, b: away(a - b))
two("minimum", torch.minimum, lambda a, b: away(a - b))
two("lt", lambda a, b: (a < b).to(a.dtype), lambda a, b: away(a - b))
two("ge", lambda a, b: (a >= b).to(a.dtype), lambda a, b: away(a - b))


@op
def where(g):
    a = g.any()
    shape = list(g.value(a).shape)
    zero = g.call("lt", [a, a], [], lambda x, y: (x < y).to(x.dtype))
    away(g.value(a))
    mask = g.call("lt", [a, zero], [], lambda x, y: (x < y).to(x.dtype))
    return g.call("where", [mask, g.like(shape), g.like(shape)], [], lambda m, x, y: torch.where(m != 0, x, y))


@op
def masked_fill(g):
    a = g.any()
    away(g.value(a), 0)
    b = g.like(list(g.value(a).shape))
    away(g.value(a) - g.value(b))
    mask = g.call("ge", [a, b], [], lambda x, y: (x >= y).to(x.dtype))
    return g.call("masked_fill", [a, mask], [-0.5], lambda x, m: torch.where(m != 0, torch.tensor(-0.5, dtype=x.dtype), x))


# -- shapes
@op
def reshape(g):
    x = g.any()
    n = list(g.value(x).shape)
    flat = [p for s in n for p in ([s] if s in (1, 2, 3, 5, 7) else [2, s // 2] if s % 2 == 0 else [s])]
    while len(flat) > 1 and (len(flat) > 5 or g.rnd.random() < 0.4):
        i = g.rnd.randrange(len(flat) - 1)
        flat[i:i + 2] = [flat[i] * flat[i + 1]]
    while len(flat) < 5 and g.rnd.random() < 0.4:
        flat.insert(g.rnd.randrange(len(flat) + 1), 1)
    return g.call("reshape", [x], flat, lambda t: t.reshape(flat))


@op
def permute(g):
    x = g.any(2)
    order = list(range(g.value(x).dim()))
    g.rnd.shuffle(order)
    return g.call("permute", [x], order, lambda t: t.permute(order))


def some_dim(g, x):
    return g.rnd.randrange(g.value(x).dim())


@op
def slice_(g):
    x = g.any()
    d = some_dim(g, x)
    n = g.value(x).shape[d]
    first = g.rnd.randrange(n)
    count = g.rnd.randint(1, n - first)
    return g.call("slice", [x], [d, first, count], lambda t: t.narrow(d, first, count))


@op
def cat(g):
    x = g.any()
    d = some_dim(g, x)
    list_ = [x]
    for _ in range(g.rnd.randint(0, 2)):
        s = list(g.value(x).shape)
        s[d] = g.rnd.choice(SIZES)
        same = g.real(lambda t: t.dim() == len(s) and all(i == d or a == b for i, (a, b) in enumerate(zip(t.shape, s))))
        list_.append(same or g.leaf(s))
    g.rnd.shuffle(list_)
    return g.call("cat", list_, [d], lambda *t: torch.cat(t, d))


def reduction(name, f):
    def make(g):
        x = g.any()
        n = g.value(x).dim()
        first = g.rnd.randrange(n)
        end = g.rnd.randint(first + 1, n)
        return g.call(name, [x], [first, end], lambda t: one(f(t, list(range(first, end)))))

    OPS[name] = make


def one(t):
    return t.reshape(1) if t.dim() == 0 else t


reduction("sum", lambda t, d: t.sum(d))
reduction("mean", lambda t, d: t.mean(d))


@op
def gather(g):
    x = g.any()
    d = some_dim(g, x)
    s = list(g.value(x).shape)
    n, s[d] = s[d], g.rnd.choice(SIZES)
    return g.call("gather", [x, g.leaf(s, "int", n)], [d], lambda t, i: t.gather(d, i))


@op
def index_select(g):
    x = g.any()
    d = some_dim(g, x)
    index = g.leaf([g.rnd.choice(SIZES)], "int", g.value(x).shape[d])
    return g.call("index_select", [x, index], [d], lambda t, i: t.index_select(d, i))


@op
def one_hot(g):
    n = g.rnd.randint(1, 6)
    return g.call("one_hot", [g.leaf(g.shape(1, 3), "int", n)], [n],
                  lambda i: F.one_hot(i, n).double())


def ordered(t, d, largest, k):
    """Of equal ones the first, which PyTorch's topk leaves open."""
    return t.sort(dim=d, descending=largest, stable=True).indices.narrow(d, 0, k)


def top(name, f, whole=False):
    def make(g):
        x = g.any()
        if g.rnd.random() < 0.4:  # equal ones
            x = g.leaf(g.shape())
            g.leaves[x[1]].copy_((g.leaves[x[1]] * 2).round() / 2)
        d = some_dim(g, x)
        apart(g.value(x), d)
        k = 1 if whole else g.rnd.randint(1, g.value(x).shape[d])
        return g.call(name, [x], [d] if whole else [d, k], lambda t: f(t, d, k))

    OPS[name] = make


top("topk", lambda t, d, k: t.gather(d, ordered(t, d, True, k)))
top("topk_index", lambda t, d, k: ordered(t, d, True, k))
top("smallest_index", lambda t, d, k: ordered(t, d, False, k))
top("max", lambda t, d, k: one(t.gather(d, ordered(t, d, True, 1)).squeeze(d)), True)
top("min", lambda t, d, k: one(t.gather(d, ordered(t, d, False, 1)).squeeze(d)), True)
top("argmax", lambda t, d, k: one(ordered(t, d, True, 1).squeeze(d)), True)
top("argmin", lambda t, d, k: one(ordered(t, d, False, 1).squeeze(d)), True)


@op
def cumsum(g):
    x = g.any()
    d = some_dim(g, x)
    return g.call("cumsum", [x], [d], lambda t: t.cumsum(d))


@op
def pad(g):
    x = g.any()
    d = some_dim(g, x)
    a, b, v = g.rnd.randrange(3), g.rnd.randrange(3), g.rnd.choice([0, 0.5])
    behind = 2 * (g.value(x).dim() - 1 - d)
    return g.call("pad", [x], [d, a, b, v], lambda t: F.pad(t, [0] * behind + [a, b], value=v))


# -- layers
@op
def linear(g):
    x = g.any(2)
    n, m = g.value(x).shape[-1], g.rnd.choice(SIZES)
    a = g.rnd.choice([0, 2, 3, 4, 5, 6])
    ins = [x, g.leaf([m, n])] + ([g.leaf([m])] if g.rnd.random() < 0.5 else [])
    return g.call("linear", ins, [a], lambda x, w, b=None: ACTS[a](F.linear(x, w, b)))


@op
def matmul(g):
    x = g.any(2, 4)
    s = list(g.value(x).shape)
    ta, tb = g.rnd.randrange(2), g.rnd.randrange(2)
    k = s[-2] if ta else s[-1]
    n = g.rnd.choice(SIZES)
    other = ([] if g.rnd.random() < 0.5 else s[:-2]) + ([n, k] if tb else [k, n])
    y = g.real(lambda t: list(t.shape) == other) or g.leaf(other)
    return g.call("matmul", [x, y], [ta, tb],
                  lambda a, b: (a.mT if ta else a) @ (b.mT if tb else b))


def spread(t, dim=-1):
    if (t.std(dim, unbiased=False) < 0.2).any():
        raise Unfit


@op
def layernorm(g):
    x = g.any()
    n = g.value(x).shape[-1]
    spread(g.value(x))
    ins = [x] + ([g.leaf([n]), g.leaf([n])] if g.rnd.random() < 0.6 else [])
    return g.call("layernorm", ins, [0], lambda x, a=None, b=None: F.layer_norm(x, [n], a, b))


@op
def rmsnorm(g):
    x = g.any()
    n = g.value(x).shape[-1]
    if (g.value(x).square().mean(-1) < 0.05).any():
        raise Unfit
    ins = [x] + ([g.leaf([n])] if g.rnd.random() < 0.6 else [])
    return g.call("rmsnorm", ins, [0], lambda x, a=None: F.rms_norm(x, [n], a, 1e-6))


@op
def groupnorm(g):
    x = g.any(2)
    c = g.value(x).shape[1]
    k = g.rnd.choice([k for k in range(1, c + 1) if c % k == 0])
    spread(g.value(x).reshape(g.value(x).shape[0], k, -1))
    ins = [x] + ([g.leaf([c]), g.leaf([c])] if g.rnd.random() < 0.6 else [])
    return g.call("groupnorm", ins, [k, 0], lambda x, a=None, b=None: F.group_norm(x, k, a, b))


unary("softmax", lambda t: t.softmax(-1))
unary("log_softmax", lambda t: t.log_softmax(-1))
unary("normalize", lambda t, e: F.normalize(t, dim=-1, eps=1e-12), lambda g: [0],
      lambda t, e: positive(t.norm(dim=-1)))


@op
def embedding(g):
    table = g.real(lambda t: t.dim() == 2) or g.leaf([g.rnd.choice(SIZES), g.rnd.choice(SIZES)])
    ids = g.leaf(g.shape(1, 3), "int", g.value(table).shape[0])
    return g.call("embedding", [table, ids], [], lambda t, i: F.embedding(i, t))


def image(g, least=1):
    x = g.real(lambda t: t.dim() == 4 and min(t.shape[2:]) >= least)
    return x or g.leaf([g.rnd.choice([1, 2]), g.rnd.choice([1, 2, 4]), g.rnd.randint(least, 6), g.rnd.randint(least, 6)])


@op
def conv2d(g):
    x = image(g)
    k, s, p = [g.rnd.randint(1, 3) for _ in range(2)], g.rnd.randint(1, 2), g.rnd.randint(0, 1)
    b, c, h, w = g.value(x).shape
    if h + 2 * p < k[0] or w + 2 * p < k[1]:
        raise Unfit
    o = g.rnd.choice([1, 2, 3])
    ins = [x, g.leaf([o, c] + k)] + ([g.leaf([o])] if g.rnd.random() < 0.5 else [])
    return g.call("conv2d", ins, [s, p, 0], lambda x, w, b=None: F.conv2d(x, w, b, s, p))


def pool(name, f):
    def make(g):
        x = image(g)
        k, s = g.rnd.randint(1, 3), g.rnd.randint(1, 2)
        p = g.rnd.randint(0, k // 2)
        if min(g.value(x).shape[2:]) + 2 * p < k:
            raise Unfit
        if name == "max_pool2d":
            apart(g.value(x).flatten(2), 2)
        return g.call(name, [x], [k, s, p], lambda t: f(t, k, s, p))

    OPS[name] = make


pool("max_pool2d", F.max_pool2d)
pool("avg_pool2d", F.avg_pool2d)


def attend(q, k, v, heads, causal):
    def split(t):
        return t.reshape(t.shape[0], t.shape[1], heads, -1).transpose(1, 2)

    y = F.scaled_dot_product_attention(split(q), split(k), split(v), is_causal=causal)
    return y.transpose(1, 2).reshape(q.shape[0], q.shape[1], -1)


@op
def attention(g):
    h, w = g.rnd.choice([1, 2]), g.rnd.choice([1, 2, 3])
    x = g.leaf([g.rnd.choice([1, 2]), g.rnd.randint(1, 5), 3 * h * w])
    c = g.rnd.randrange(2)
    return g.call("attention", [x], [h, c], lambda t: attend(*t.chunk(3, 2), h, bool(c)))


@op
def attention_of(g):
    x = g.any(3, 3)
    b, t, w = g.value(x).shape
    h = g.rnd.choice([h for h in range(1, w + 1) if w % h == 0])
    c = g.rnd.randrange(2)
    k = g.real(lambda v: list(v.shape) == [b, t, w]) or g.leaf([b, t, w])
    v = g.real(lambda v: list(v.shape) == [b, t, w]) or g.leaf([b, t, w])
    return g.call("attention_of", [x, k, v], [h, c], lambda q, k, v: attend(q, k, v, h, bool(c)))


@op
def attention_with(g):
    h, group, d, any_ = g.rnd.choice([1, 2]), g.rnd.choice([1, 1, 2, 3]), g.rnd.choice([1, 2, 3]), g.rnd.choice([1, 2])
    b, t, s = g.rnd.choice([1, 2]), g.rnd.choice(SIZES), g.rnd.choice(SIZES)
    q = g.real(lambda v: list(v.shape) == [b, t, h * group * d]) or g.leaf([b, t, h * group * d])
    ins = [q, g.leaf([b, s, h * d]), g.leaf([b, s, h * any_])]
    kind, causal, scale = g.rnd.randrange(3), g.rnd.randrange(2), g.rnd.choice([0, 0, 0.7])
    if kind:
        full = [b, h * group, t, s]
        shape = [n if g.rnd.random() < 0.6 else 1 for n in full][g.rnd.choice([0, 0, 2, 3]):]
        ins.append(g.leaf(shape))
        if kind == 1:  # zeros and others
            mask = g.leaves[ins[3][1]]
            mask.mul_((mask > -0.3).double())

    def f(q, k, v, mask=None):
        split = lambda x, n: x.reshape(x.shape[0], x.shape[1], n, -1).transpose(1, 2)
        score = split(q, h * group) @ split(k, h).repeat_interleave(group, 1).mT * (scale or d ** -0.5)
        sees = torch.ones(t, s, dtype=torch.bool).tril() if causal else torch.ones(t, s, dtype=torch.bool)
        if kind == 1:
            sees = sees & (mask != 0)
        if kind == 2:
            score = score + mask
        any_of = sees.any(-1, keepdim=True)
        p = torch.where(sees | ~any_of, score, -torch.inf).softmax(-1) * any_of
        y = p @ split(v, h).repeat_interleave(group, 1)
        z = F.scaled_dot_product_attention(split(q, h * group), split(k, h), split(v, h), enable_gqa=True, scale=scale or None,
                                           attn_mask=torch.where(sees, 0 if mask is None or kind == 1 else mask, -torch.inf).to(q.dtype).expand(b, h * group, t, s))
        assert torch.allclose(y, z, atol=1e-4)
        return y.transpose(1, 2).reshape(b, t, -1)

    return g.call("attention_with", ins, [h * group, h, causal, int(kind == 2), scale], f)


@op
def rotary(g):
    h, d = g.rnd.choice([1, 2]), 2 * g.rnd.choice([1, 2, 3])
    b, t = g.rnd.choice([1, 2]), g.rnd.choice(SIZES)
    x = g.real(lambda v: list(v.shape) == [b, t, h * d]) or g.leaf([b, t, h * d])
    first, base, turned = g.rnd.choice([0, 3]), g.rnd.choice([100, 10000]), g.rnd.randrange(2)

    def f(x):
        angle = torch.outer(torch.arange(first, first + t), base ** (-2 * torch.arange(d // 2).double() / d)).to(x.dtype)
        c, s = angle.cos()[:, None], angle.sin()[:, None]
        z = x.reshape(b, t, h, d // 2, 2) if turned else x.reshape(b, t, h, 2, d // 2).mT
        z = torch.stack([z[..., 0] * c - z[..., 1] * s, z[..., 0] * s + z[..., 1] * c], -1)
        return (z if turned else z.mT).reshape(b, t, h * d)

    return g.call("rotary", [x], [h, first, base, turned], f)


def convolution(name, f, transposed):
    def make(g):
        x = image(g)
        two = lambda low, high: [g.rnd.randint(low, high) for _ in range(2)]
        k, s, p, d, o = two(1, 3), two(1, 3), two(0, 2), two(1, 2), [0, 0]
        b, c, _, _ = g.value(x).shape
        groups = g.rnd.choice([n for n in range(1, c + 1) if c % n == 0])
        out = groups * g.rnd.choice([1, 2, 3])
        w = [c, out // groups] if transposed else [out, c // groups]
        if transposed:
            o = [g.rnd.randrange(n) for n in s]
        if g.rnd.random() < 0.3:
            d = [1, 1]
        ins = [x, g.leaf(w + k)] + ([g.leaf([out])] if g.rnd.random() < 0.5 else [])
        a = g.rnd.choice([0, 0, 2, 5])
        nums = s + p + d + o + [groups, a]

        def run(x, w, b=None):
            y = F.conv_transpose2d(x, w, b, s, p, o, groups, d) if transposed else F.conv2d(x, w, b, s, p, d, groups)
            return ACTS[a](y)

        if transposed and any(o[i] >= max(s[i], d[i]) for i in range(2)):
            raise Unfit
        return g.call(name, ins, nums, run)

    OPS[name] = make


convolution("conv", F.conv2d, False)
convolution("conv_transpose", F.conv_transpose2d, True)


@op
def conv1d(g):
    x = g.any(3, 3)
    b, c, t = g.value(x).shape
    k, s, p, d = g.rnd.randint(1, 3), g.rnd.randint(1, 2), g.rnd.randint(0, 2), g.rnd.randint(1, 2)
    groups = g.rnd.choice([n for n in range(1, c + 1) if c % n == 0])
    out = groups * g.rnd.choice([1, 2])
    ins = [x, g.leaf([out, c // groups, k])] + ([g.leaf([out])] if g.rnd.random() < 0.5 else [])
    return g.call("conv1d", ins, [s, p, d, groups, 0], lambda x, w, b=None: F.conv1d(x, w, b, s, p, d, groups))


@op
def upsample(g):
    x, mode = image(g), g.rnd.randrange(3)
    size = [g.rnd.randint(1, 9) for _ in range(2)]
    how = [{"mode": "nearest"}, {"mode": "bilinear"}, {"mode": "bilinear", "align_corners": True}][mode]
    return g.call("upsample", [x], size + [mode], lambda t: F.interpolate(t, size=size, **how))


@op
def adaptive_avg_pool2d(g):
    size = [g.rnd.randint(1, 9) for _ in range(2)]
    return g.call("adaptive_avg_pool2d", [image(g)], size, lambda t: F.adaptive_avg_pool2d(t, size))


@op
def resample(g):
    x = g.any(3, 3)
    n, mode = g.rnd.randint(1, 12), g.rnd.randrange(4)
    f = [lambda t: F.interpolate(t, size=n), lambda t: F.interpolate(t, size=n, mode="linear"),
         lambda t: F.interpolate(t, size=n, mode="linear", align_corners=True), lambda t: F.adaptive_avg_pool1d(t, n)][mode]
    return g.call("resample", [x], [2, n, mode], f)


@op
def lstm(g):
    x = g.any(3, 3)
    b, t, n = g.value(x).shape
    h, biased, last = g.rnd.choice([1, 2, 3]), g.rnd.randrange(2), g.rnd.randrange(3)
    weights = [g.leaf([4 * h, n]), g.leaf([4 * h, h])] + ([g.leaf([4 * h]), g.leaf([4 * h])] if biased else [])
    state = [g.leaf([b, h]), g.leaf([b, h])] if g.rnd.random() < 0.5 else []

    def f(x, *rest):
        zero = [torch.zeros(1, b, h, dtype=x.dtype)] * 2
        first = [s[None] for s in rest[len(weights):]] or zero
        y, hn, cn = torch._VF.lstm(x, first, rest[:len(weights)], bool(biased), 1, 0.0, False, False, True)
        return 2 * cn[0] + hn[0] if last == 1 else y

    return g.call("lstm", [x] + weights + state, [biased, last], f)


def loss(name, f, nums=lambda g: [], check=None):
    def make(g):
        a = g.any()
        b = g.leaf(list(g.value(a).shape))
        n = nums(g)
        if check:
            check(g.value(a) - g.value(b), *n)
        return g.call(name, [a, b], n, lambda x, y: one(f(x, y, *n)))

    OPS[name] = make


loss("mse", F.mse_loss)
loss("l1", F.l1_loss, check=lambda d: away(d))
loss("huber", lambda a, b, d: F.huber_loss(a, b, delta=d), lambda g: [0.75], lambda d, at: away(d.abs(), at))


@op
def cross_entropy(g):
    x = g.any(2, 2)
    r, c = g.value(x).shape
    return g.call("cross_entropy", [x, g.leaf([r], "int", c)], [], lambda t, i: one(F.cross_entropy(t, i)))


def nll_of(name, f):
    def make(g):
        x = g.any(2, 2)
        r, c = g.value(x).shape
        labels = g.leaf([r], "int", c)
        ignore = g.rnd.choice([-100, g.rnd.randrange(c)])
        for i in range(1, r):
            if g.rnd.random() < 0.3:
                g.leaves[labels[1]][i] = ignore
        if (g.leaves[labels[1]] == ignore).all():
            raise Unfit
        weights = []
        if g.rnd.random() < 0.6:
            weights = [g.leaf([c])]
            g.leaves[weights[0][1]].abs_().add_(0.25)
        # PyTorch has no gradient of the weights: written out.
        return g.call(name, [x, labels] + weights, [ignore], lambda t, i, w=None: f(t, i, w, ignore))

    OPS[name] = make


def nll_written_out(log_p, labels, w, ignore):
    keep = (labels != ignore).to(log_p.dtype)
    i = torch.where(labels == ignore, 0, labels)
    w = torch.ones(log_p.shape[1], dtype=log_p.dtype) if w is None else w
    own = w[i] * keep
    y = one(-(log_p.gather(1, i[:, None])[:, 0] * own).sum() / own.sum())
    assert torch.allclose(y, F.nll_loss(log_p, labels, w.detach(), ignore_index=ignore).to(y.dtype))
    return y


nll_of("nll", nll_written_out)
nll_of("cross_entropy_but", lambda t, i, w, n: nll_written_out(t.log_softmax(-1), i, w, n))


# -- a whole graph
def replay(g, dtype, noise=None):
    """noise: each result is a rounding of f32 off, so that what depends on one shows."""
    leaves = [t.to(dtype).clone().requires_grad_() if t.dtype.is_floating_point else t for t in g.leaves]
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
    return {i: values[i].detach() for i in out}, grads


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


def write(g, name):
    out = outs(g)
    v64, g64 = run(g, torch.float64, out)
    v32, g32 = run(g, torch.float32, out)
    vn, gn = run(g, torch.float64, out, torch.Generator().manual_seed(1))
    if set(g64) != set(g32) or any(not torch.isfinite(t).all() or t.abs().max() > 1e5 for t in g64.values()):
        raise Unfit
    lines = [f"graph {name}"]
    for t in g.leaves:
        kind = 0 if t.dtype.is_floating_point else 1
        lines.append(f"leaf {kind} {t.dim()} {' '.join(map(str, t.shape))} {text(t)}")
    number = lambda r: r[1] if r[0] == "leaf" else len(g.leaves) + r[1]
    for op_name, ins, nums, _ in g.calls:
        lines.append(f"op {op_name} {len(ins)} {' '.join(str(number(i)) for i in ins)} "
                     f"{len(nums)} {' '.join(map(str, nums))}")
    for i in out:
        a, b = tolerances(v64[i], v32[i], vn[i])
        lines.append(f"out {len(g.leaves) + i} {a:.2g} {b:.2g} {v64[i].numel()} {text(v64[i])}")
    flow = max((float(t.abs().max()) for t in g64.values() if t.numel()), default=0.0)
    for i in g64:
        a, b = tolerances(g64[i], g32[i], gn[i], flow)
        lines.append(f"grad {i} {a:.2g} {b:.2g} {g64[i].numel()} {text(g64[i])}")
    return "\n".join(lines + ["end"])


def attempt(seed, names, steps):
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
    if not g.calls or len(g.leaves) + len(g.calls) > 90:
        raise Unfit
    return write(g, f"{'-'.join(steps) + '-' if steps else ''}{seed}")


def graphs(n, seed, names, steps=None):
    last = seed + 400 * n
    while n > 0 and seed < last:
        try:
            yield attempt(seed, names, steps)
            n -= 1
        except Unfit:
            pass
        seed += 1


def main():
    torch.set_num_threads(1)
    names = sorted(OPS)
    if sys.argv[1] == "--each":
        for name in names:
            # Alone, and of the result of views.
            for steps in ([name], ["permute", "slice", name, "mul"], ["reshape", "permute", name, name]):
                for g in graphs(ALONE.get(name, 1) if steps == [name] else 1, 1, names, steps):
                    print(g, flush=True)
        return
    first = int(sys.argv[2]) if len(sys.argv) > 2 else 1
    for g in graphs(int(sys.argv[1]), first * 1000000, names):
        print(g)


if __name__ == "__main__":
    main()
