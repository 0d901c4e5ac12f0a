/* SPDX-License-Identifier: MIT */
#include "kernels/ref/real.h"

void PL_REF(gather_forward)(const struct pl_gather_args *a)
{
    const real *x = a->x;
    real *y = a->y;

    for (size_t o = 0; o < a->outer; o++)
        for (size_t j = 0; j < a->m; j++)
            for (size_t i = 0; i < a->inner; i++) {
                int32_t at = a->index[pl_gather_at(a, o, j, i)];
                real *to = y + (o * a->m + j) * a->inner + i;

                if (a->skips && at == a->skip)
                    *to = 0;
                else if (at < 0 || (size_t)at >= a->n)
                    *to = (real)NAN;
                else
                    *to = x[(o * a->n + (size_t)at) * a->inner + i];
            }
}

void PL_REF(gather_backward)(const struct pl_gather_args *a)
{
    const real *dy = a->dy;
    real *dx = a->dx;

    for (size_t i = 0; !a->dx_add && i < a->outer * a->n * a->inner; i++)
        dx[i] = 0;
    for (size_t o = 0; o < a->outer; o++)
        for (size_t j = 0; j < a->m; j++)
            for (size_t i = 0; i < a->inner; i++) {
                int32_t at = a->index[pl_gather_at(a, o, j, i)];

                if (at >= 0 && (size_t)at < a->n && !(a->skips && at == a->skip))
                    dx[(o * a->n + (size_t)at) * a->inner + i] += dy[(o * a->m + j) * a->inner + i];
            }
}
