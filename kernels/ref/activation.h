/* SPDX-License-Identifier: MIT */
/* The activations and their slopes, in double. */
#ifndef PL_KERNELS_REF_ACTIVATION_H
#define PL_KERNELS_REF_ACTIVATION_H

#include "kernels/ref/real.h"

static inline double ref_activate(enum pl_activation act, double x)
{
    switch (act) {
    case PL_ACT_RELU:
        return x <= 0 ? 0 : x;
    case PL_ACT_GELU:
        return x * 0.5 * erfc(-x * M_SQRT1_2);
    case PL_ACT_GELU_TANH:
        return 0.5 * x * (1 + tanh(sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
    case PL_ACT_SILU:
        return x / (1 + exp(-x));
    case PL_ACT_TANH:
        return tanh(x);
    case PL_ACT_SIGMOID:
        return 1 / (1 + exp(-x));
    default:
        return x;
    }
}

static inline double ref_activate_slope(enum pl_activation act, double x)
{
    double t;

    switch (act) {
    case PL_ACT_RELU:
        return x <= 0 ? 0 : 1;
    case PL_ACT_GELU:
        return 0.5 * erfc(-x * M_SQRT1_2) + x * exp(-x * x / 2) / sqrt(2 * M_PI);
    case PL_ACT_GELU_TANH:
        t = tanh(sqrt(2 / M_PI) * (x + 0.044715 * x * x * x));
        return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * sqrt(2 / M_PI) * (1 + 3 * 0.044715 * x * x);
    case PL_ACT_SILU:
        t = 1 / (1 + exp(-x));
        return t + x * t * (1 - t);
    case PL_ACT_TANH:
        t = tanh(x);
        return 1 - t * t;
    case PL_ACT_SIGMOID:
        t = 1 / (1 + exp(-x));
        return t * (1 - t);
    default:
        return 1;
    }
}

#endif
