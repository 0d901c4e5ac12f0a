/* SPDX-License-Identifier: MIT */
#include "kernels/ref/real.h"

void PL_REF(add)(const struct pl_add_args *a)
{
    const real *x = a->a, *y = a->b;
    real *dst = a->dst, scale = (real)a->scale;

    for (size_t k = 0; k < a->n; k++)
        dst[k] = (x[k] + y[k]) * scale;
}
