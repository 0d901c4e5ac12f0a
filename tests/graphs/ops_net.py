# SPDX-License-Identifier: MIT
"""Ops of images, attention, LSTMs and losses, as random calls."""
import torch
import torch.nn.functional as F

from graph import OPS, SIZES, Unfit, apart, away, op
from ops import ACTS, coarse, one, ordered, positive, spread, two


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


def parts_of(g, n):
    """A size for n elements: of 1 to 9, often one that divides n."""
    return g.rnd.choice([k for k in range(1, n + 1) if n % k == 0]) if g.rnd.random() < 0.4 else g.rnd.randint(1, 9)


@op
def adaptive_max_pool2d(g):
    x = image(g) if g.rnd.random() < 0.6 else coarse(g, [g.rnd.choice([1, 2]), g.rnd.choice([1, 3])] + [g.rnd.randint(1, 6) for _ in range(2)])
    apart(g.value(x).flatten(2), 2)
    size = [parts_of(g, n) for n in g.value(x).shape[2:]]
    if g.rnd.random() < 0.3:  # squares
        size = [size[0]] * 2
    return g.call("adaptive_max_pool2d", [x], size, lambda t: F.adaptive_max_pool2d(t, size))


@op
def adaptive_max_pool(g):
    """Along any dimension, which PyTorch has for the last one."""
    x = g.any() if g.rnd.random() < 0.6 else coarse(g, g.shape())
    d = g.rnd.randrange(g.value(x).dim())
    apart(g.value(x), d)
    n = parts_of(g, g.value(x).shape[d])

    def f(t):
        t = t.movedim(d, -1)
        return F.adaptive_max_pool1d(t.reshape(1, -1, t.shape[-1]), n).reshape(list(t.shape[:-1]) + [n]).movedim(-1, d)

    return g.call("adaptive_max_pool", [x], [d, n], f)


@op
def batchnorm(g):
    """In training, with the buffers that it writes. Written out: of an x that is stored channels last,
    and a dy of [2, 2, 4, 1] that is not, PyTorch 2.15 takes dy in the wrong order on the CPU."""
    x = g.any(2)
    c = g.value(x).shape[1]
    relu, eps, momentum = g.rnd.randrange(2), g.rnd.choice([1e-5, 1e-3, 0.1]), g.rnd.choice([0.1, 0.25])
    if g.value(x).numel() == c:
        raise Unfit
    spread(g.value(x).transpose(0, 1).reshape(c, -1))
    ins = [x] + [g.leaf([c], kind) for kind in ("real", "real", "buffer", "buffer")]
    g.leaves[ins[4][1]].abs_()

    def norm(x, w, b, mean, var):
        all_but, each = [d for d in range(x.dim()) if d != 1], [-1] + [1] * (x.dim() - 2)
        v, m = torch.var_mean(x, all_but, correction=0, keepdim=True)
        y = (x - m) / (v + eps).sqrt() * w.reshape(each) + b.reshape(each)
        with torch.no_grad():  # changes the buffers
            z = F.batch_norm(x.contiguous(), mean, var, w, b, True, momentum, eps)
        assert torch.allclose(y, z, atol=1e-4)
        return y

    def f(*t):
        return norm(*t).relu() if relu else norm(*t)

    if relu:
        away(norm(*[g.value(i).clone() for i in ins]))
    return g.call("batchnorm", ins, [eps, momentum, relu], f)


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


@op
def gru(g):
    x = g.any(3, 3)
    b, t, n = g.value(x).shape
    h, biases, last = g.rnd.choice([1, 2, 3]), g.rnd.choice([0, 1, 2, 3, 3, 3]), g.rnd.randrange(3)
    weights = [g.leaf([3 * h, n]), g.leaf([3 * h, h])] + [g.leaf([3 * h]) for k in (1, 2) if biases & k]
    state = [g.leaf([b, h])] if g.rnd.random() < 0.5 else []

    def f(x, w, u, *rest):
        rest, zero = list(rest), torch.zeros(3 * h, dtype=x.dtype)
        bias = [rest.pop(0) if biases & k else zero for k in (1, 2)]
        first = rest[0][None] if rest else torch.zeros(1, b, h, dtype=x.dtype)
        y, hn = torch._VF.gru(x, first, [w, u] + bias, True, 1, 0.0, False, False, True)
        return hn[0] if last == 1 else y

    return g.call("gru", [x] + weights + state, [biases, last], f)


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


@op
def correct(g):
    x = g.any(2, 3)
    apart(g.value(x), -1)
    *rows, c = g.value(x).shape
    return g.call("correct", [x, g.leaf(rows, "int", c)], [],
                  lambda t, i: (ordered(t, -1, True, 1)[..., 0] == i).sum().to(t.dtype).reshape(1))


@op
def cross_entropy_smooth(g):
    x = g.any(2, 3)
    *rows, c = g.value(x).shape
    s = g.rnd.choice([0, 0.1, 0.3, 1])
    return g.call("cross_entropy_smooth", [x, g.leaf(rows, "int", c)], [s],
                  lambda t, i: one(F.cross_entropy(t.reshape(-1, c), i.flatten(), label_smoothing=s)))


def shares(g, shape):
    """A leaf of [0, 1)."""
    p = g.leaf(shape)
    g.leaves[p[1]].abs_().remainder_(1)
    return p


@op
def bce_with_logits(g):
    x = g.any()
    n = list(g.value(x).shape)
    p = shares(g, n if g.rnd.random() < 0.7 else [1])
    if g.rnd.random() < 0.3:  # numbers of classes
        g.leaves[p[1]].round_()
    return g.call("bce_with_logits", [x, p], [], lambda t, p: one(F.binary_cross_entropy_with_logits(t, p.expand(n))))


@op
def kl_div(g):
    x = g.any()
    p = shares(g, list(g.value(x).shape))
    if g.rnd.random() < 0.5:
        positive(g.value(p))
    else:  # zeros, where the gradient of p is infinite
        g.leaves[p[1]][g.leaves[p[1]] < 0.3] = 0
        p = g.call("detach", [p], [], lambda t: t.detach())
    return g.call("kl_div", [x, p], [], lambda t, p: one(F.kl_div(t, p, reduction="batchmean")))


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
