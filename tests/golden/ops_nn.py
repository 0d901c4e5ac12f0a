#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Records PyTorch's losses and norms of plume/ops_nn.h, with the gradients of sum(y w), as the C
header tests/golden/ops_nn.h. Run by hand: ops_nn.py | clang-format > ops_nn.h. The inputs follow
from the index; op_step.h makes the same."""
import torch
import torch.nn.functional as F

MOST = 48


def values(shape, by, modulus, shift, over):
    n = torch.Size(shape).numel()
    return torch.tensor([((i * by + 3) % modulus - shift) / over for i in range(n)],
                        dtype=torch.float64).reshape(shape).requires_grad_()


def real(shape):
    return values(shape, 7, 11, 5, 4)


def other(shape):
    return values(shape, 5, 13, 6, 4)


def share(shape):
    return values(shape, 1, 5, 0, 4)


labels = torch.tensor([i * 5 % 6 for i in range(4)])
CASES = {
    "l1": ([real([2, 3, 4]), other([3, 4])],
           lambda a, b: F.l1_loss(a, b.expand(2, 3, 4))),
    "huber": ([real([2, 3, 4]), other([2, 3, 4])], lambda a, b: F.huber_loss(a, b, delta=1.25)),
    "bce": ([real([4, 6]), share([4, 6])], F.binary_cross_entropy_with_logits),
    "smooth": ([real([4, 6])], lambda a: F.cross_entropy(a, labels, label_smoothing=0.15)),
    "kl": ([real([4, 6]), share([4, 6])], lambda a, p: F.kl_div(a, p.detach(), reduction="batchmean")),
    "rmsnorm": ([real([2, 3, 4]), other([4])], lambda x, g: F.rms_norm(x, [4], g, 1e-6)),
    "groupnorm": ([real([2, 4, 3, 2]), other([4]), share([4])],
                  lambda x, g, b: F.group_norm(x, 2, g, b)),
}


def numbers(t):
    return "{" + ", ".join(repr(v) for v in t.detach().flatten().tolist()) + "}"


print("/* SPDX-License-Identifier: MIT */")
print(f"/* Made by ops_nn.py with PyTorch {torch.__version__}; do not edit. */")
print("#ifndef PL_TESTS_GOLDEN_OPS_NN_H\n#define PL_TESTS_GOLDEN_OPS_NN_H\n")
print(f"struct golden_nn {{\n    double y[{MOST}], grad[3][{MOST}];\n}};\n")
for name, (leaves, f) in CASES.items():
    y = f(*leaves)
    (y * values(list(y.shape), 3, 7, 3, 2).detach()).sum().backward()
    grads = ", ".join("{0}" if t.grad is None else numbers(t.grad) for t in leaves)
    print(f"static const struct golden_nn golden_{name} = {{{numbers(y)}, {{{grads}}}}};\n")
print("#endif")
