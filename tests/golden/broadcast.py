#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Records PyTorch's a + b, a - b, a b and a / b of shapes that are broadcast, and the gradients of
sum(y w), as the C header tests/golden/broadcast.h. Run by hand: broadcast.py | clang-format >
broadcast.h. The inputs follow from the index; test-broadcast.c makes the same."""

import torch

SHAPES = [
    ([2, 1], [3]), ([2, 1], [1, 3]), ([3], [2, 1]), ([2, 3, 2], [3, 1]), ([2, 1, 2], [1, 3, 1]),
    ([1, 1], [4]), ([4], [1, 1, 1]), ([2, 1, 1, 1], [3, 2, 1]), ([1], [2, 2]), ([1, 2, 1], [2, 1, 3]),
    ([2, 2], [2, 1]), ([1, 1, 1], [1]),
]


def values(shape, by, least):
    n = torch.Size(shape).numel()
    return torch.tensor([((i * by + 3) % 11 + least) / 4 for i in range(n)],
                        dtype=torch.float64).reshape(shape).requires_grad_()


def numbers(list_):
    return "{" + ", ".join(repr(float(v)) for v in list_) + "}"


print("/* SPDX-License-Identifier: MIT */")
print(f"/* Made by broadcast.py with PyTorch {torch.__version__}; do not edit. */")
print("#ifndef PL_TESTS_GOLDEN_BROADCAST_H\n#define PL_TESTS_GOLDEN_BROADCAST_H\n")
print("#include <stddef.h>\n")
print("static const struct {\n    size_t a_rank, a[4], b_rank, b[4], rank, shape[4];\n    int op;\n"
      "    double y[12], da[12], db[12];\n} golden_broadcast[] = {")
for a_shape, b_shape in SHAPES:
    for op, f in enumerate([torch.add, torch.sub, torch.mul, torch.div]):
        a, b = values(a_shape, 7, -5), values(b_shape, 5, 2)
        y = f(a, b)
        (y * values(list(y.shape), 3, -4).detach()).sum().backward()
        for t in (y, a, b):
            assert t.numel() <= 12
        shapes = ", ".join(f"{len(s)}, {{{', '.join(map(str, s))}}}" for s in
                           (a_shape, b_shape, list(y.shape)))
        print(f"    {{{shapes}, {op}, {numbers(y.flatten())}, {numbers(a.grad.flatten())},"
              f" {numbers(b.grad.flatten())}}},")
print("};\n\n#endif")
