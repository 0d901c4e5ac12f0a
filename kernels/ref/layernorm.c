/* SPDX-License-Identifier: MIT */
#include "kernels/ref/real.h"

void PL_REF(layernorm_forward)(const struct pl_layernorm_args *a)
{
    const real *gamma = a->gamma, *beta = a->beta;
    real *mean = a->mean, *rstd = a->rstd;

    for (size_t r = 0; r < a->rows; r++) {
        const real *x = (const real *)a->x + r * a->n;
        real *y = (real *)a->y + r * a->n;
        double m = 0, v = 0, s;

        for (size_t i = 0; i < a->n; i++)
            m += x[i];
        m /= (double)a->n;
        for (size_t i = 0; i < a->n; i++)
            v += (x[i] - m) * (x[i] - m);
        s = 1 / sqrt(v / (double)a->n + a->eps);
        for (size_t i = 0; i < a->n; i++)
            y[i] = (real)((x[i] - m) * s * (gamma ? gamma[i] : 1) + (beta ? beta[i] : 0));
        mean[r] = (real)m;
        rstd[r] = (real)s;
    }
}

/* With z = (x - mean) rstd and g = dy gamma: dx = rstd (g - mean(g) - z mean(g z)). */
static void row_backward(const struct pl_layernorm_args *a, size_t r)
{
    const real *x = (const real *)a->x + r * a->n, *dy = (const real *)a->dy + r * a->n;
    const real *gamma = a->gamma;
    real *dx = (real *)a->dx + r * a->n;
    double m = ((const real *)a->mean)[r], s = ((const real *)a->rstd)[r], sum = 0, sum_z = 0;

    for (size_t i = 0; i < a->n; i++) {
        double g = dy[i] * (gamma ? (double)gamma[i] : 1);

        sum += g;
        sum_z += g * (x[i] - m) * s;
    }
    for (size_t i = 0; i < a->n; i++) {
        double g = dy[i] * (gamma ? (double)gamma[i] : 1), z = (x[i] - m) * s;

        dx[i] = (real)((a->dx_add ? dx[i] : 0) +
                       s * (g - sum / (double)a->n - z * sum_z / (double)a->n));
    }
}

void PL_REF(layernorm_backward)(const struct pl_layernorm_args *a)
{
    const real *x = a->x, *dy = a->dy, *mean = a->mean, *rstd = a->rstd;
    real *dgamma = a->dgamma, *dbeta = a->dbeta;

    for (size_t r = 0; a->dx && r < a->rows; r++)
        row_backward(a, r);
    for (size_t i = 0; i < a->n; i++) {
        double g = dgamma && a->dgamma_add ? dgamma[i] : 0,
               b = dbeta && a->dbeta_add ? dbeta[i] : 0;

        for (size_t r = 0; r < a->rows; r++) {
            g += dy[r * a->n + i] * ((double)x[r * a->n + i] - mean[r]) * rstd[r];
            b += dy[r * a->n + i];
        }
        if (dgamma)
            dgamma[i] = (real)g;
        if (dbeta)
            dbeta[i] = (real)b;
    }
}
