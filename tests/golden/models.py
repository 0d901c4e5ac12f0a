#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Records what four small models do in PyTorch, as the C header tests/golden/models.h: logits,
loss and gradients of the first step, and the losses of 20 steps and of an evaluation, in f64; the
losses in f32 and under autocast to bf16; and 20 steps of the mlp with f16 weights and f32 master
weights (O2).

Run by hand with a PyTorch for CPU: models.py > models.h. No weights are kept: both sides make them
from fill() below, whose values are exact in f32. tests/engine/test-golden.c is the other side.
"""

import numpy
import torch
import torch.nn.functional as F

STEPS, BATCHES, SAMPLES = 20, 4, 48
torch.set_num_threads(1)


def mix(seed, count):
    """32 random bits for each of 0..count-1: the finalizer of MurmurHash3 (public domain)."""
    with numpy.errstate(over="ignore"):
        h = numpy.arange(count, dtype=numpy.uint32)
        h = h + numpy.uint32(seed & 0xFFFFFFFF) * numpy.uint32(0x9E3779B9)
        h ^= h >> numpy.uint32(16)
        h *= numpy.uint32(0x85EBCA6B)
        h ^= h >> numpy.uint32(13)
        h *= numpy.uint32(0xC2B2AE35)
        h ^= h >> numpy.uint32(16)
    return h


def fill(seed, shape, scale=1.0, shift=0.0):
    """In [shift - scale, shift + scale); scale is a power of two."""
    count = int(numpy.prod(shape))
    u = (mix(seed, count) >> numpy.uint32(8)).astype(numpy.float64)
    return torch.tensor((u * 2.0 ** -23 - 1) * scale + shift, dtype=torch.float64).reshape(shape)


def labels(seed, shape, classes):
    count = int(numpy.prod(shape))
    return torch.tensor((mix(seed, count) % numpy.uint32(classes)).astype(numpy.int64)
                        ).reshape(shape)


class Mlp:
    table = [("w1", (20, 13), 0.5, 0), ("b1", (20,), 0.125, 0), ("w2", (20, 20), 0.5, 0),
             ("b2", (20,), 0.125, 0), ("w3", (7, 20), 0.25, 0), ("b3", (7,), 0.125, 0)]

    @staticmethod
    def batch(k):
        return fill(1000 + k, (9, 13)), labels(2000 + k, (9,), 7)

    @staticmethod
    def logits(p, x):
        h = F.relu(F.linear(x, p["w1"], p["b1"]))
        h = F.relu(F.linear(h, p["w2"], p["b2"]))
        return F.linear(h, p["w3"], p["b3"])

    @staticmethod
    def optimizer(params):
        return torch.optim.SGD(params, lr=0.125, momentum=0.875, weight_decay=0.015625)


class Cnn(Mlp):
    table = [("c1", (4, 1, 3, 3), 0.5, 0), ("d1", (4,), 0.125, 0),
             ("c2", (6, 4, 3, 3), 0.25, 0), ("d2", (6,), 0.125, 0),
             ("w1", (16, 96), 0.125, 0), ("b1", (16,), 0.125, 0),
             ("w2", (10, 16), 0.25, 0), ("b2", (10,), 0.125, 0)]

    @staticmethod
    def batch(k):
        return fill(1000 + k, (5, 1, 12, 12)), labels(2000 + k, (5,), 10)

    @staticmethod
    def logits(p, x):
        h = F.relu(F.conv2d(x, p["c1"], p["d1"]))
        h = F.relu(F.conv2d(h, p["c2"], p["d2"]))
        h = F.max_pool2d(h, 2).flatten(1)
        h = F.relu(F.linear(h, p["w1"], p["b1"]))
        return F.linear(h, p["w2"], p["b2"])


class Bn(Cnn):
    """With batch normalisation, which the cnn is without: its running mean and variance (biased in
    the batch's own normalisation, unbiased in what is kept) show in the loss of evaluation."""
    table = [("c1", (4, 1, 3, 3), 0.5, 0), ("n1.w", (4,), 0.25, 1), ("n1.b", (4,), 0.25, 0),
             ("w1", (10, 100), 0.125, 0), ("b1", (10,), 0.125, 0)]
    kept = None
    training = True

    @staticmethod
    def logits(p, x):
        h = F.conv2d(x, p["c1"])
        if Bn.kept is None:
            Bn.kept = torch.zeros(4, dtype=torch.float64), torch.ones(4, dtype=torch.float64)
        mean, var = (k.to(h.dtype if h.dtype == torch.float64 else torch.float32)
                     for k in Bn.kept)
        h = F.batch_norm(h, mean, var, p["n1.w"], p["n1.b"], Bn.training, momentum=0.1, eps=1e-5)
        Bn.kept = mean.double(), var.double()
        h = F.max_pool2d(F.relu(h), 2).flatten(1)
        return F.linear(h, p["w1"], p["b1"])

    @staticmethod
    def optimizer(params):  # a lower rate: with the other one rounding errors grow fast
        return torch.optim.SGD(params, lr=0.03125, momentum=0.875, weight_decay=0.015625)


LAYERS, HEADS, WIDTH, CONTEXT, VOCAB = 2, 2, 16, 12, 11


class Gpt:
    table = [("token", (VOCAB, WIDTH), 0.25, 0), ("place", (CONTEXT, WIDTH), 0.25, 0)]
    for layer in range(LAYERS):
        for name, shape, scale, shift in (
                ("ln1.w", (WIDTH,), 0.25, 1), ("ln1.b", (WIDTH,), 0.25, 0),
                ("qkv.w", (3 * WIDTH, WIDTH), 0.5, 0), ("qkv.b", (3 * WIDTH,), 0.125, 0),
                ("out.w", (WIDTH, WIDTH), 0.25, 0), ("out.b", (WIDTH,), 0.125, 0),
                ("ln2.w", (WIDTH,), 0.25, 1), ("ln2.b", (WIDTH,), 0.25, 0),
                ("up.w", (4 * WIDTH, WIDTH), 0.5, 0), ("up.b", (4 * WIDTH,), 0.125, 0),
                ("down.w", (WIDTH, 4 * WIDTH), 0.25, 0), ("down.b", (WIDTH,), 0.125, 0)):
            table.append((f"h{layer}.{name}", shape, scale, shift))
    table += [("ln.w", (WIDTH,), 0.25, 1), ("ln.b", (WIDTH,), 0.25, 0)]

    @staticmethod
    def batch(k):
        return labels(1000 + k, (3, CONTEXT), VOCAB), labels(2000 + k, (3, CONTEXT), VOCAB)

    @staticmethod
    def logits(p, x):
        b, t = x.shape
        norm = lambda h, name: F.layer_norm(h, (WIDTH,), p[name + ".w"], p[name + ".b"])
        line = lambda h, name: F.linear(h, p[name + ".w"], p[name + ".b"])
        h = F.embedding(x, p["token"]) + p["place"][:t]
        for i in range(LAYERS):
            q, k, v = (u.view(b, t, HEADS, WIDTH // HEADS).transpose(1, 2)
                       for u in line(norm(h, f"h{i}.ln1"), f"h{i}.qkv").split(WIDTH, dim=2))
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            h = h + line(y.transpose(1, 2).reshape(b, t, WIDTH), f"h{i}.out")
            y = F.gelu(line(norm(h, f"h{i}.ln2"), f"h{i}.up"), approximate="tanh")
            h = h + line(y, f"h{i}.down")
        return F.linear(norm(h, "ln"), p["token"])

    @staticmethod
    def optimizer(params):
        return torch.optim.AdamW(params, lr=0.015625, betas=(0.9, 0.999), eps=1e-8,
                                 weight_decay=0.0625)


def params(model, dtype):
    return {name: fill(i + 1, shape, scale, shift).to(dtype).requires_grad_()
            for i, (name, shape, scale, shift) in enumerate(model.table)}


def loss_of(model, p, k, dtype):
    x, y = model.batch(k)
    logits = model.logits(p, x.to(dtype) if x.is_floating_point() else x)
    return logits, F.cross_entropy(logits.reshape(-1, logits.shape[-1]).float()
                                   if dtype == torch.half or logits.dtype == torch.bfloat16
                                   else logits.reshape(-1, logits.shape[-1]), y.reshape(-1))


def losses(model, dtype, autocast=False):
    """Of the training steps, and behind them that of the first batch in evaluation."""
    p = params(model, dtype)
    Bn.kept = None
    optimizer = model.optimizer(list(p.values()))
    out = []
    for step in range(STEPS):
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            _, loss = loss_of(model, p, step % BATCHES, dtype)
        loss.backward()
        optimizer.step()
        out.append(loss.item())
    Bn.training = False
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        out.append(loss_of(model, p, 0, dtype)[1].item())
    Bn.training = True
    return out


def o2(model, bad_step=6):
    """f16 weights, f32 master weights in the optimizer, loss scaled by 2^16 at first: halved where
    a gradient is not finite (and the step skipped), doubled after 5 good steps. The batch of
    bad_step is made 2^14 times as large, which f16 does not bear. [(loss, scale, skipped)]"""
    half = {n: v.detach().half().requires_grad_() for n, v in params(model, torch.float32).items()}
    master = params(model, torch.float32)
    optimizer = model.optimizer(list(master.values()))
    scale, good, out = 65536.0, 0, []
    for step in range(STEPS):
        x, y = model.batch(step % BATCHES)
        x = (x * (16384 if step == bad_step else 1)).half()
        logits = model.logits(half, x)
        loss = F.cross_entropy(logits.float(), y)
        grads = torch.autograd.grad(loss * scale, list(half.values()))
        finite = all(bool(torch.isfinite(g).all()) for g in grads)
        out.append((loss.item(), scale, int(not finite)))
        if finite:
            for w, g in zip(master.values(), grads):
                w.grad = g.float() / scale
            optimizer.step()
            with torch.no_grad():
                for h, w in zip(half.values(), master.values()):
                    h.copy_(w)
            good += 1
            if good == 5:
                scale, good = scale * 2, 0
        else:
            scale, good = scale / 2, 0
    return out


def literal(v):
    return {"nan": "NAN", "inf": "INFINITY", "-inf": "-INFINITY"}.get(repr(float(v)),
                                                                   repr(float(v)))


def numbers(name, values):
    print(f"static const double {name}[] = {{")
    line = "   "
    for word in map(literal, values):
        if len(line) + len(word) + 2 > 98:
            print(line)
            line = "   "
        line += " " + word + ","
    print(line + "\n};\n")


def some(tensor):
    """At most SAMPLES elements, evenly apart; stride 1 where all fit twice over."""
    flat = tensor.detach().flatten()
    stride = 1 if len(flat) <= 2 * SAMPLES else len(flat) // SAMPLES
    return flat[::stride].tolist(), stride


def record(name, model):
    p = params(model, torch.float64)
    Bn.kept = None
    logits, loss = loss_of(model, p, 0, torch.float64)
    loss.backward()
    sampled, stride = some(logits)
    numbers(f"{name}_logits", sampled)
    rows, entries = [], []
    for i, (key, shape, scale, shift) in enumerate(model.table):
        grad, step = some(p[key].grad)
        dims = ", ".join(map(str, shape))
        rows.append(f'    {{"{key}", {len(shape)}, {{{dims}}}, {scale}, {shift}, {step}, '
                    f'{len(grad)}, {len(entries)}, {p[key].grad.norm().item()!r}}},')
        entries += grad
    numbers(f"{name}_grads", entries)
    print(f"static const struct golden_param {name}_params[] = {{")
    print("\n".join(rows) + "\n};\n")
    numbers(f"{name}_f64", losses(model, torch.float64))
    numbers(f"{name}_f32", losses(model, torch.float32))
    numbers(f"{name}_bf16", losses(model, torch.float32, autocast=True))
    print(f"#define {name.upper()}_LOGITS_STRIDE {stride}")
    print(f"#define {name.upper()}_LOSS {loss.item()!r}\n")


def main():
    print(f"""/* SPDX-License-Identifier: MIT */
/* Made by tests/golden/models.py with PyTorch {torch.__version__.split('+')[0]}; do not edit. */
/* clang-format off */
#ifndef PL_TESTS_GOLDEN_MODELS_H
#define PL_TESTS_GOLDEN_MODELS_H

#include <math.h>
#include <stddef.h>

#define GOLDEN_STEPS {STEPS} /* and one loss more, of evaluating batch 0 */
#define GOLDEN_BATCHES {BATCHES}

/* A parameter, made by fill(its place + 1, scale, shift), and gradients of the first step: of every
 * stride-th element, n of them from grads[first] on; norm of all. */
struct golden_param {{
    const char *name;
    size_t rank, shape[4];
    double scale, shift;
    size_t stride, n, first;
    double norm;
}};
""")
    for name, model in (("mlp", Mlp), ("cnn", Cnn), ("bn", Bn), ("gpt", Gpt)):
        record(name, model)
    trace = o2(Mlp)
    for i, word in enumerate(("loss", "scale", "skipped")):
        numbers(f"mlp_o2_{word}", [row[i] for row in trace])
    print("#endif")


if __name__ == "__main__":
    main()
