/* SPDX-License-Identifier: MIT */
#include "kernels/ref/real.h"

void PL_REF(reduce_forward)(const struct pl_reduce_args *a)
{
    const real *x = a->x;
    real *y = a->y;

    for (size_t o = 0; o < a->outer; o++)
        for (size_t i = 0; i < a->inner; i++) {
            double sum = 0;

            for (size_t k = 0; k < a->n; k++)
                sum += x[(o * a->n + k) * a->inner + i];
            y[o * a->inner + i] = (real)(a->scale * sum);
        }
}

void PL_REF(reduce_backward)(const struct pl_reduce_args *a)
{
    const real *dy = a->dy;
    real *dx = a->dx;

    for (size_t o = 0; o < a->outer; o++)
        for (size_t k = 0; k < a->n; k++)
            for (size_t i = 0; i < a->inner; i++) {
                real *to = dx + (o * a->n + k) * a->inner + i;

                *to = (real)((a->dx_add ? *to : 0) + a->scale * dy[o * a->inner + i]);
            }
}
