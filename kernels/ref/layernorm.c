/* SPDX-License-Identifier: MIT */
#include "kernels/ref/real.h"

/* Element i of an array of the table's type, or of a 16-bit one. */
static real get(const struct pl_layernorm_args *a, bool half, const void *p, size_t i)
{
#if !PL_REF_F64
    if (half)
        return pl_f32_of_half(a->half, ((const uint16_t *)p)[i]);
#endif
    return ((const real *)p)[i];
}

static void set(const struct pl_layernorm_args *a, bool half, void *p, size_t i, real value)
{
#if !PL_REF_F64
    if (half) {
        ((uint16_t *)p)[i] = pl_half_of_f32(a->half, value);
        return;
    }
#endif
    ((real *)p)[i] = value;
}

void PL_REF(layernorm_forward)(const struct pl_layernorm_args *a)
{
    const real *gamma = a->gamma, *beta = a->beta;
    const void *x = a->sum ? a->sum : a->x;
    real *mean = a->mean, *rstd = a->rstd;

    for (size_t i = 0; a->sum && i < a->rows * a->n; i++) {
        size_t k = a->b_rows ? i % (a->b_rows * a->n) : i;

        set(a, a->x_half, a->sum, i, get(a, a->x_half, a->a, i) + get(a, a->y_half, a->b, k));
    }
    for (size_t r = 0; r < a->rows; r++) {
        size_t at = r * a->n;
        double m = 0, v = 0, s;

        for (size_t i = 0; i < a->n && !a->rms; i++)
            m += get(a, a->x_half, x, at + i);
        m /= (double)a->n;
        for (size_t i = 0; i < a->n; i++) {
            double d = get(a, a->x_half, x, at + i) - m;

            v += d * d;
        }
        s = 1 / sqrt(v / (double)a->n + a->eps);
        for (size_t i = 0; i < a->n; i++)
            set(a, a->y_half, a->y, at + i,
                (real)((get(a, a->x_half, x, at + i) - m) * s * (gamma ? gamma[i] : 1) +
                       (beta ? beta[i] : 0)));
        mean[r] = (real)m;
        rstd[r] = (real)s;
    }
}

/* With z = (x - mean) rstd and g = dy gamma: dx = rstd (g - mean(g) - z mean(g z)); with rms
 * without mean(g). */
static void row_backward(const struct pl_layernorm_args *a, size_t r)
{
    const real *gamma = a->gamma;
    double m = ((const real *)a->mean)[r], s = ((const real *)a->rstd)[r], sum = 0, sum_z = 0;
    size_t at = r * a->n;

    for (size_t i = 0; i < a->n; i++) {
        double g = get(a, a->y_half, a->dy, at + i) * (gamma ? (double)gamma[i] : 1);

        sum += a->rms ? 0 : g;
        sum_z += g * (get(a, a->x_half, a->x, at + i) - m) * s;
    }
    for (size_t i = 0; i < a->n; i++) {
        double g = get(a, a->y_half, a->dy, at + i) * (gamma ? (double)gamma[i] : 1);
        double z = (get(a, a->x_half, a->x, at + i) - m) * s;

        set(a, a->x_half, a->dx, at + i,
            (real)((a->dx_add ? get(a, a->x_half, a->dx, at + i) : 0) +
                   s * (g - sum / (double)a->n - z * sum_z / (double)a->n)));
        if (a->dx_too)
            set(a, a->y_half, a->dx_too, at + i, get(a, a->x_half, a->dx, at + i));
    }
}

static void sum_dx(const struct pl_layernorm_args *a)
{
    real *to = a->dx_sums;

    for (size_t i = 0; i < a->n; i++) {
        double sum = a->dx_sums_add ? to[i] : 0;

        for (size_t at = i; at < a->rows * a->n; at += a->n)
            sum += a->dx_too ? get(a, a->y_half, a->dx_too, at) : get(a, a->x_half, a->dx, at);
        to[i] = (real)sum;
    }
}

void PL_REF(layernorm_backward)(const struct pl_layernorm_args *a)
{
    const real *mean = a->mean, *rstd = a->rstd;
    real *dgamma = a->dgamma, *dbeta = a->dbeta;

    for (size_t r = 0; a->dx && r < a->rows; r++)
        row_backward(a, r);
    if (a->dx_sums)
        sum_dx(a);
    for (size_t i = 0; i < a->n; i++) {
        double g = dgamma && a->dgamma_add ? dgamma[i] : 0,
               b = dbeta && a->dbeta_add ? dbeta[i] : 0;

        for (size_t r = 0; r < a->rows; r++) {
            double dy = get(a, a->y_half, a->dy, r * a->n + i);

            g += dy * ((double)get(a, a->x_half, a->x, r * a->n + i) - mean[r]) * rstd[r];
            b += dy;
        }
        if (dgamma)
            dgamma[i] = (real)g;
        if (dbeta)
            dbeta[i] = (real)b;
    }
}
