/* SPDX-License-Identifier: MIT */
#include "kernels/cpu/level.h"

void PL_CPU(add)(const struct pl_add_args *a)
{
    const float *x = a->a, *y = a->b;
    float *dst = a->dst, scale = (float)a->scale;

    /* dst may be x or y itself but never a shifted overlap, so iterations are independent. */
    PL_INDEPENDENT
    for (size_t k = 0; k < a->n; k++)
        dst[k] = (x[k] + y[k]) * scale;
}
