#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Records PyTorch's functions of each element, comparisons and choices, with the gradients of
sum(y w), as three C headers. Run by hand for each of map, kinks and choose: elementwise.py NAME |
clang-format > NAME.h. The inputs are in the header; w follows from the index (test-elementwise.c)."""
import math
import sys

import torch
import torch.nn.functional as F

INF, NAN = math.inf, math.nan
# Kinks, both zeros, the ends of domains, bounds of clamp, large numbers (of f32, too), and those not
# finite.
X = [-INF, -2.0**100, -100, -20.5, -3, -1, -0.5, -0.25, -0.0, 0.0, 0.25, 0.5, 1, 2.5, 20.5, 88, 100, 2.0**100,
     INF, NAN]
MAPS = [
    ("PLUME_MAP_EXP", 0, 0, torch.exp), ("PLUME_MAP_LOG", 0, 0, torch.log),
    ("PLUME_MAP_SQRT", 0, 0, torch.sqrt), ("PLUME_MAP_RSQRT", 0, 0, torch.rsqrt),
    ("PLUME_MAP_POW", 2, 0, lambda x: x ** 2), ("PLUME_MAP_POW", 0, 0, lambda x: x ** 0),
    ("PLUME_MAP_POW", 0.5, 0, lambda x: x ** 0.5), ("PLUME_MAP_POW", -1, 0, lambda x: x ** -1),
    ("PLUME_MAP_POW", 2.5, 0, lambda x: x ** 2.5), ("PLUME_MAP_POW", 3, 0, lambda x: x ** 3),
    ("PLUME_MAP_SIN", 0, 0, torch.sin), ("PLUME_MAP_COS", 0, 0, torch.cos),
]
# Those of pieces, or nearly so.
KINKS = [
    ("PLUME_MAP_ABS", 0, 0, torch.abs),
    ("PLUME_MAP_CLAMP", -0.5, 0.25, lambda x: torch.clamp(x, -0.5, 0.25)),
    ("PLUME_MAP_CLAMP", -INF, 1, lambda x: torch.clamp(x, max=1)),
    # PyTorch takes x itself above a threshold of 20 by default; here the function goes on.
    ("PLUME_MAP_SOFTPLUS", 0, 0, lambda x: F.softplus(x, threshold=40)),
    ("PLUME_MAP_ELU", 1, 0, F.elu), ("PLUME_MAP_ELU", 0.3, 0, lambda x: F.elu(x, 0.3)),
    ("PLUME_MAP_LEAKY", 0.01, 0, F.leaky_relu), ("PLUME_MAP_FLOOR", 0, 0, torch.floor),
    ("PLUME_MAP_CEIL", 0, 0, torch.ceil), ("PLUME_MAP_ROUND", 0, 0, torch.round),
    ("PLUME_MAP_SIGN", 0, 0, torch.sign), ("PLUME_MAP_ERF", 0, 0, torch.erf),
    ("PLUME_MAP_TAN", 0, 0, torch.tan),
]
PAIRS = [(a, b) for a in (-INF, -1.5, -0.0, 0.0, 2, INF, NAN) for b in (-INF, -1.5, 0.0, 3, INF, NAN)]
CHOICES = [
    ("PLUME_CHOOSE_MAX", torch.maximum), ("PLUME_CHOOSE_MIN", torch.minimum),
    ("PLUME_CHOOSE_LT", torch.lt), ("PLUME_CHOOSE_LE", torch.le), ("PLUME_CHOOSE_EQ", torch.eq),
    ("PLUME_CHOOSE_NE", torch.ne), ("PLUME_CHOOSE_WHERE", None),
]


def number(v):
    v = float(v.detach() if isinstance(v, torch.Tensor) else v)
    return "NAN" if math.isnan(v) else repr(v).replace("inf", "INFINITY")


def numbers(values):
    return "{" + ", ".join(map(number, values)) + "}"


def leaf(values):
    return torch.tensor(values, dtype=torch.float64, requires_grad=True)


def weighted(y):
    return (y * torch.tensor([(i * 3 % 7 - 2.5) / 2 for i in range(len(y))])).sum()


def maps():
    print(f"static const double golden_x[] = {numbers(X)};\n")
    print("struct golden_map {\n    enum plume_map fn;\n    double p, q;\n"
          f"    double y[{len(X)}], dx[{len(X)}];\n}};\n")
    table("golden_maps", MAPS)


def table(of, functions):
    print(f"static const struct golden_map {of}[] = {{")
    for name, p, q, f in functions:
        x = leaf(X)
        y = f(x)
        weighted(y).backward()
        print(f"    {{{name}, {number(p)}, {number(q)}, {numbers(y)}, {numbers(x.grad)}}},")
    print("};\n")


def choices():
    print(f"static const double golden_a[] = {numbers(a for a, _ in PAIRS)};\n")
    print(f"static const double golden_b[] = {numbers(b for _, b in PAIRS)};\n")
    print("/* where's third operand is i % 5 - 2. */")
    print("static const struct {\n    enum plume_choose op;\n"
          f"    double y[{len(PAIRS)}], da[{len(PAIRS)}], db[{len(PAIRS)}], dc[{len(PAIRS)}];\n"
          "} golden_choose[] = {")
    for name, f in CHOICES:
        a, b = leaf([a for a, _ in PAIRS]), leaf([b for _, b in PAIRS])
        c = leaf([float(i % 5 - 2) for i in range(len(PAIRS))])
        y = f(a, b) if f else torch.where(a != 0, b, c)
        if y.dtype != torch.bool:
            weighted(y).backward()
        grads = [torch.zeros(len(PAIRS)) if t.grad is None else t.grad for t in (a, b, c)]
        print(f"    {{{name}, {numbers(y)}, {', '.join(map(numbers, grads))}}},")
    print("};\n")


def main():
    guard = f"PL_TESTS_GOLDEN_{sys.argv[1].upper()}_H"
    print("/* SPDX-License-Identifier: MIT */")
    print(f"/* Made by elementwise.py with PyTorch {torch.__version__}; do not edit. */")
    print(f"#ifndef {guard}\n#define {guard}\n")
    first = "tests/golden/map.h" if sys.argv[1] == "kinks" else "plume/ops.h"
    print(f"#include \"{first}\"\n\n#include <math.h>\n")
    {"map": maps, "kinks": lambda: table("golden_kinks", KINKS), "choose": choices}[sys.argv[1]]()
    print("#endif")


main()
