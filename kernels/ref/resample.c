/* SPDX-License-Identifier: MIT */
#include "kernels/ref/real.h"

/* The weight of element k of x in element i of y. */
static double weight(const struct pl_resample_args *a, size_t i, size_t k)
{
    struct pl_taps t = pl_taps_of(a->mode, a->n, a->m, i);

    return k == t.first ? t.weight : k > t.first && k < t.first + t.count ? t.others : 0;
}

void PL_REF(resample_forward)(const struct pl_resample_args *a)
{
    const real *x = a->x;
    real *y = a->y;

    for (size_t o = 0; o < a->outer; o++)
        for (size_t i = 0; i < a->m; i++)
            for (size_t c = 0; c < a->inner; c++) {
                struct pl_taps t = pl_taps_of(a->mode, a->n, a->m, i);
                double sum = 0;

                for (size_t k = t.first; k < t.first + t.count; k++)
                    sum += weight(a, i, k) * x[(o * a->n + k) * a->inner + c];
                y[(o * a->m + i) * a->inner + c] = (real)sum;
            }
}

void PL_REF(resample_backward)(const struct pl_resample_args *a)
{
    const real *dy = a->dy;
    real *dx = a->dx;

    for (size_t o = 0; o < a->outer; o++)
        for (size_t k = 0; k < a->n; k++)
            for (size_t c = 0; c < a->inner; c++) {
                real *to = dx + (o * a->n + k) * a->inner + c;
                double sum = 0;

                for (size_t i = 0; i < a->m; i++)
                    if (weight(a, i, k) != 0)
                        sum += weight(a, i, k) * dy[(o * a->m + i) * a->inner + c];
                *to = (real)((a->dx_add ? *to : 0) + sum);
            }
}
