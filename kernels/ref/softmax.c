/* SPDX-License-Identifier: MIT */
#include "kernels/ref/real.h"

void PL_REF(softmax_forward)(const struct pl_softmax_args *a)
{
    for (size_t r = 0; r < a->rows; r++) {
        const real *x = (const real *)a->x + r * a->n;
        real *y = (real *)a->y + r * a->n, max = x[0];
        double sum = 0;

        for (size_t i = 1; i < a->n; i++)
            max = x[i] > max ? x[i] : max;
        for (size_t i = 0; i < a->n; i++)
            sum += exp((double)x[i] - max);
        for (size_t i = 0; i < a->n; i++)
            y[i] = (real)(a->log ? (double)x[i] - max - log(sum) : exp((double)x[i] - max) / sum);
    }
}

void PL_REF(softmax_backward)(const struct pl_softmax_args *a)
{
    for (size_t r = 0; r < a->rows; r++) {
        const real *y = (const real *)a->y + r * a->n, *dy = (const real *)a->dy + r * a->n;
        real *dx = (real *)a->dx + r * a->n;
        double sum = 0;

        for (size_t i = 0; i < a->n; i++)
            sum += a->log ? dy[i] : (double)y[i] * dy[i];
        for (size_t i = 0; i < a->n; i++)
            dx[i] = (real)((a->dx_add ? dx[i] : 0) +
                           (a->log ? dy[i] - exp(y[i]) * sum : y[i] * (dy[i] - sum)));
    }
}
