/* SPDX-License-Identifier: MIT */
#include "kernels/ref/real.h"

void PL_REF(normalize_forward)(const struct pl_normalize_args *a)
{
    for (size_t r = 0; r < a->rows; r++) {
        const real *x = (const real *)a->x + r * a->n;
        real *y = (real *)a->y + r * a->n;
        double sum = 0, norm;

        for (size_t i = 0; i < a->n; i++)
            sum += (double)x[i] * x[i];
        norm = sqrt(sum);
        for (size_t i = 0; i < a->n; i++)
            y[i] = (real)(x[i] / (norm <= a->eps ? a->eps : norm));
        ((real *)a->norm)[r] = (real)norm;
    }
}

void PL_REF(normalize_backward)(const struct pl_normalize_args *a)
{
    for (size_t r = 0; r < a->rows; r++) {
        const real *y = (const real *)a->y + r * a->n, *dy = (const real *)a->dy + r * a->n;
        real *dx = (real *)a->dx + r * a->n;
        double norm = ((const real *)a->norm)[r], sum = 0;

        for (size_t i = 0; !(norm <= a->eps) && i < a->n; i++)
            sum += (double)y[i] * dy[i];
        for (size_t i = 0; i < a->n; i++)
            dx[i] = (real)((a->dx_add ? dx[i] : 0) +
                           (dy[i] - y[i] * sum) / (norm <= a->eps ? a->eps : norm));
    }
}
