/* SPDX-License-Identifier: MIT */
#include "kernels/ref/activation.h"

void PL_REF(unary_forward)(const struct pl_unary_args *a)
{
    const real *x = a->x;
    real *y = a->y;

    for (size_t i = 0; i < a->n; i++)
        y[i] = (real)ref_activate(a->act, x[i]);
}

void PL_REF(unary_backward)(const struct pl_unary_args *a)
{
    const real *x = a->x, *dy = a->dy;
    real *dx = a->dx;

    for (size_t i = 0; i < a->n; i++)
        dx[i] = (real)((a->dx_add ? dx[i] : 0) + dy[i] * ref_activate_slope(a->act, x[i]));
}
