/* SPDX-License-Identifier: MIT */
/* What is done to parameters and gradients once a step.
 * Rules for all ops: kernels/kernels.h, which includes this. */
#ifndef PL_KERNELS_ARGS_OPTIM_H
#define PL_KERNELS_ARGS_OPTIM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* One step of stochastic gradient descent with momentum as in PyTorch's SGD (dampening 0):
 * g = grad + weight_decay p; m = momentum m + g; p = p - lr m (p - lr g where m is NULL).
 * n elements each. Exact. */
struct pl_sgd_args {
    size_t n;
    double lr, momentum, weight_decay;
    void *param, *velocity;
    const void *grad;
};

/* X(function, struct of arguments) */
#define PL_KERNEL_LIST_OPTIM(X) X(sgd, sgd)

#endif
