# SPDX-License-Identifier: MIT
"""Ops of elements, views, indices, sums, products and normalizations, as random calls."""
import math

import torch
import torch.nn.functional as F

from graph import OPS, SIZES, Unfit, apart, away, op


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
unary("tan", torch.tan, check=lambda t: (few(t), positive(t.cos().abs())))
unary("erf", torch.erf)
unary("floor", torch.floor, check=lambda t: away(t - t.round()))
unary("ceil", torch.ceil, check=lambda t: away(t - t.round()))
unary("round", torch.round, check=lambda t: away(t - t.floor(), 0.5))
unary("sign", torch.sign, check=lambda t: away(t))
unary("scale", lambda t, a, b: a * t + b, lambda g: [g.rnd.choice([-1.5, 0.5, 1]), g.rnd.choice([0, 0.25])])
unary("detach", lambda t: t.detach())


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


def coarse(g, shape):
    """A leaf of halves, of which some are equal."""
    x = g.leaf(shape)
    g.leaves[x[1]].copy_((g.leaves[x[1]] * 2).round() / 2)
    return x


def compared(name, f):
    """Some of the elements are equal."""
    def make(g):
        a = g.any() if g.rnd.random() < 0.4 else coarse(g, g.shape())
        b = coarse(g, list(g.value(a).shape)[g.rnd.randrange(g.value(a).dim()):]) if g.rnd.random() < 0.7 else a
        away(g.value(a) - g.value(b))
        return g.call(name, [a, b] if g.rnd.random() < 0.7 else [b, a], [], lambda x, y: f(x, y).to(x.dtype))

    OPS[name] = make


compared("le", torch.le)
compared("gt", torch.gt)
compared("eq", torch.eq)
compared("ne", torch.ne)


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


def reduction(name, f, check=None):
    def make(g):
        x = g.any()
        if check:
            check(g.value(x))
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
def gather_but(g):
    """An index that skips gives 0."""
    x = g.any()
    d, shared, skip = some_dim(g, x), g.rnd.randrange(2), g.rnd.choice([-100, -1, 0, 1])
    s = list(g.value(x).shape)
    n, s[d] = s[d], g.rnd.choice(SIZES)
    index = g.leaf([s[d]] if shared else s, "int", n)
    t = g.leaves[index[1]]
    t[torch.tensor([g.rnd.random() < 0.3 for _ in range(t.numel())]).reshape(t.shape)] = skip

    def f(x, i):
        keep, i = i != skip, torch.where(i == skip, 0, i)
        if not shared:
            return torch.where(keep, x.gather(d, i), 0)
        return torch.where(keep.reshape([-1] + [1] * (x.dim() - 1 - d)), x.index_select(d, i), 0)

    return g.call("gather_but", [x, index], [d, shared, skip], f)


@op
def range_(g):
    n, first, step = g.rnd.choice(SIZES), g.rnd.randint(-9, 9), g.rnd.choice([1, 1, 2, -1, -3, 0])
    return g.call("range", [], [n, first, step], lambda: first + step * torch.arange(n))


@op
def full(g):
    s, v = g.shape(), g.rnd.choice([0, 1, -0.75, 3])
    return g.call("full", [], s + [v], lambda: torch.full(s, v, dtype=torch.float64))


def added(name, f, shared=False, unique=False):
    def make(g):
        x = g.any()
        d = some_dim(g, x)
        s = list(g.value(x).shape)
        n, s[d] = s[d], g.rnd.choice(SIZES)
        if unique and s[d] > n:
            raise Unfit
        index = g.leaf([s[d]] if shared else s, "int", n)
        if unique:
            t = g.leaves[index[1]]
            order = torch.stack([torch.tensor(g.rnd.sample(range(n), s[d])) for _ in range(t.numel() // s[d])])
            t.copy_(order.reshape([k for i, k in enumerate(s) if i != d] + [s[d]]).movedim(-1, d))
        src = g.real(lambda t: list(t.shape) == s) or g.leaf(s)
        return g.call(name, [x, index, src], [d], lambda t, i, v: f(t, d, i, v))

    OPS[name] = make


added("scatter_add", lambda t, d, i, v: t.scatter_add(d, i, v))
added("index_add", lambda t, d, i, v: t.index_add(d, i, v), shared=True)
added("scatter", lambda t, d, i, v: t.scatter(d, i, v), unique=True)


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


# -- whole numbers
def whole(name, f):
    def make(g):
        ints = [("call", i) for i, v in enumerate(g.values) if not v.dtype.is_floating_point]
        a = g.rnd.choice(ints) if ints and g.rnd.random() < 0.6 else g.leaf(g.shape(), "int", 20)
        shape = list(g.value(a).shape)
        if g.rnd.random() < 0.3 and len(shape) > 1:  # a view
            order = g.rnd.sample(range(len(shape)), len(shape))
            a = g.call("permute", [a], order, lambda t: t.permute(order))
            shape = list(g.value(a).shape)
        if name == "whole_to_real":
            return g.call(name, [a], [], f)
        b = g.leaf(g.rnd.choice([shape, shape[g.rnd.randrange(len(shape)):], [1]]), "int", 9)
        g.leaves[b[1]].sub_(4)
        if name in ("whole_div", "whole_mod"):
            g.leaves[b[1]][g.leaves[b[1]] == 0] = 3
        if g.value(a).abs().max() > 2 ** 26:
            raise Unfit
        return g.call(name, [a, b], [], f)

    OPS[name] = make


whole("whole_add", torch.add)
whole("whole_sub", torch.sub)
whole("whole_mul", torch.mul)
whole("whole_div", torch.floor_divide)
whole("whole_mod", torch.remainder)
whole("whole_lt", lambda a, b: (a < b).double())
whole("whole_le", lambda a, b: (a <= b).double())
whole("whole_eq", lambda a, b: (a == b).double())
whole("whole_ne", lambda a, b: (a != b).double())
whole("whole_to_real", lambda a: a.double())


@op
def stack(g):
    x = g.any(1, 4)
    s = list(g.value(x).shape)
    d = g.rnd.randint(0, len(s))
    list_ = [x] + [g.real(lambda t: list(t.shape) == s) or g.leaf(s) for _ in range(g.rnd.randint(0, 3))]
    g.rnd.shuffle(list_)
    return g.call("stack", list_, [d], lambda *t: torch.stack(t, d))


@op
def flip(g):
    x = g.any()
    d = some_dim(g, x)
    return g.call("flip", [x], [d], lambda t: t.flip(d))


@op
def roll(g):
    x = g.any()
    d, by = some_dim(g, x), g.rnd.randint(-8, 8)
    return g.call("roll", [x], [d, by], lambda t: t.roll(by, d))


@op
def add_dim(g):
    x = g.any(1, 4)
    d = g.rnd.randint(0, g.value(x).dim())
    return g.call("add_dim", [x], [d], lambda t: t.unsqueeze(d))


@op
def expand(g):
    x = g.any()
    s = [n if n > 1 or g.rnd.random() < 0.5 else g.rnd.choice(SIZES) for n in g.value(x).shape]
    s = [g.rnd.choice(SIZES) for _ in range(g.rnd.randint(0, 5 - len(s)))] + s
    return g.call("expand", [x], s, lambda t: t.expand(s))


def triangle(name, f):
    def make(g):
        x = g.any(2)
        d = g.rnd.randint(-4, 4)
        return g.call(name, [x], [d], lambda t: f(t, d))

    OPS[name] = make


triangle("tril", torch.tril)
triangle("triu", torch.triu)


def spread_of(name, f, least):
    """Over a range of dimensions, with more elements than the correction."""
    def make(g):
        x = g.any()
        n = list(g.value(x).shape)
        first = g.rnd.randrange(len(n))
        end = g.rnd.randint(first + 1, len(n))
        c = g.rnd.choice([0, 1, 1, 2, 0.5])
        count = math.prod(n[first:end])
        if count <= c:
            raise Unfit
        d = list(range(first, end))
        if (f(g.value(x), d, c) < least).any():
            raise Unfit
        return g.call(name, [x], [first, end, c], lambda t: one(f(t, d, c)))

    OPS[name] = make


def positive_sizes(t):
    positive(t.abs())


# PyTorch has whole corrections in its signature, and takes others.
spread_of("var", lambda t, d, c: t.var(d, correction=c), -1)
spread_of("std", lambda t, d, c: t.std(d, correction=c), 0.1)
reduction("prod", lambda t, d: t.flatten(d[0], d[-1]).prod(d[0]), few)
reduction("logsumexp", lambda t, d: t.logsumexp(d))
reduction("norm", lambda t, d: torch.linalg.vector_norm(t, dim=d), positive_sizes)


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


@op
def einsum(g):
    """Each letter of two tensors is in one or both of them, and in the result or not."""
    x = g.any(1, 4)
    s = list(g.value(x).shape)
    letters = "abcdefghij"
    size = dict(zip(letters, s))
    first, ins = list(letters[:len(s)]), [x]
    second = []
    if g.rnd.random() < 0.8:
        second = g.rnd.sample(first, g.rnd.randint(0, len(first)))
        for c in letters[len(s):len(s) + g.rnd.randint(0 if second else 1, 4 - len(second) if len(second) < 4 else 0)]:
            size[c] = g.rnd.choice(SIZES)
            second.append(c)
        g.rnd.shuffle(second)
        shape = [size[c] for c in second]
        ins.append(g.real(lambda t: list(t.shape) == shape) or g.leaf(shape))
    out = [c for c in size if g.rnd.random() < 0.6][:5]
    g.rnd.shuffle(out)
    form = "".join(first) + ("," + "".join(second) if second else "") + "->" + "".join(out)
    return g.call("einsum", ins, [ord(c) for c in form], lambda *t: one(torch.einsum(form, *t)))


@op
def einsum_dots(g):
    """Neighbours among the dimensions are "...", of which the second tensor has the last ones, or ones."""
    x = g.any(1, 4)
    s = list(g.value(x).shape)
    wide = g.rnd.randint(0, len(s))
    at = g.rnd.randint(0, len(s) - wide)
    letters = "abcd"[:len(s) - wide]
    forms, ins = [letters[:at] + "..." + letters[at:]], [x]
    if g.rnd.random() < 0.8:
        own = g.rnd.sample(letters, g.rnd.randint(0, len(letters)))
        size = dict(zip(letters, s[:at] + s[at + wide:]))
        tail = [n if g.rnd.random() < 0.7 else 1 for n in s[at:at + wide][g.rnd.randint(0, wide):]]
        if own or tail:
            forms.append("..." + "".join(own))
            ins.append(g.leaf(tail + [size[c] if g.rnd.random() < 0.8 else 1 for c in own]))
    out = [c for c in letters if g.rnd.random() < 0.6] + (["..."] if g.rnd.random() < 0.8 else [])
    g.rnd.shuffle(out)
    form = ",".join(forms) + "->" + "".join(out)
    return g.call("einsum", ins, [ord(c) for c in form], lambda *t: one(torch.einsum(form, *t)))


@op
def einsum_many(g):
    letters = "abcd"
    size = {c: g.rnd.choice(SIZES) for c in letters}
    own = [g.rnd.sample(letters, g.rnd.randint(1, 3)) for _ in range(g.rnd.randint(3, 4))]
    ins = [g.leaf([size[c] for c in o]) for o in own]
    out = [c for c in letters if any(c in o for o in own) and g.rnd.random() < 0.5]
    g.rnd.shuffle(out)
    form = ",".join("".join(o) for o in own) + "->" + "".join(out)
    return g.call("einsum", ins, [ord(c) for c in form], lambda *t: one(torch.einsum(form, *t)))


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
def layernorm_without_bias(g):
    x = g.any()
    n = g.value(x).shape[-1]
    spread(g.value(x))
    return g.call("layernorm", [x, g.leaf([n])], [0], lambda x, a: F.layer_norm(x, [n], a))


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
