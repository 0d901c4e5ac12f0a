/* SPDX-License-Identifier: MIT */
#include "kernels/ref/real.h"

void PL_REF(relu_forward)(const struct pl_relu_args *a)
{
    const real *x = a->x;
    real *y = a->y;

    for (size_t k = 0; k < a->n; k++)
        y[k] = x[k] <= 0 ? 0 : x[k];
}

void PL_REF(relu_backward)(const struct pl_relu_args *a)
{
    const real *y = a->y, *dy = a->dy;
    real *dx = a->dx;

    for (size_t k = 0; k < a->n; k++) {
        real d = y[k] <= 0 ? 0 : dy[k];

        dx[k] = a->dx_add ? dx[k] + d : d;
    }
}
