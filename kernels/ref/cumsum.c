/* SPDX-License-Identifier: MIT */
#include "kernels/ref/real.h"

void PL_REF(cumsum)(const struct pl_cumsum_args *a)
{
    const real *x = a->x;
    real *y = a->y;

    for (size_t o = 0; o < a->outer; o++)
        for (size_t i = 0; i < a->inner; i++) {
            double sum = 0;

            for (size_t step = 0; step < a->n; step++) {
                size_t j = a->reverse ? a->n - 1 - step : step;
                size_t at = (o * a->n + j) * a->inner + i;

                sum += x[at];
                y[at] = (a->add ? y[at] : 0) + (real)sum;
            }
        }
}
