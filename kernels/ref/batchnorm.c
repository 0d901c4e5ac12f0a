/* SPDX-License-Identifier: MIT */
#include "kernels/ref/real.h"

/* Element i of an array of the table's type, or of a 16-bit one. */
static real get(const struct pl_batchnorm_args *a, bool half, const void *p, size_t i)
{
#if !PL_REF_F64
    if (half)
        return pl_f32_of_half(a->half, ((const uint16_t *)p)[i]);
#endif
    return ((const real *)p)[i];
}

static void set(const struct pl_batchnorm_args *a, bool half, void *p, size_t i, real value)
{
#if !PL_REF_F64
    if (half) {
        ((uint16_t *)p)[i] = pl_half_of_f32(a->half, value);
        return;
    }
#endif
    ((real *)p)[i] = value;
}

/* Index of value k of channel c. */
static size_t index_of(const struct pl_batchnorm_args *a, size_t c, size_t k)
{
    return (k / a->inner * a->channels + c) * a->inner + k % a->inner;
}

void PL_REF(batchnorm_sums)(const struct pl_batchnorm_args *a)
{
    a->sums[0] = (double)(a->batch * a->inner);
    for (size_t c = 0; c < a->channels; c++) {
        double sum = 0, squares = 0;

        for (size_t k = 0; k < a->batch * a->inner; k++) {
            double v = get(a, a->x_half, a->x, index_of(a, c, k)) - (a->shift ? a->shift[c] : 0);

            sum += v;
            squares += v * v;
        }
        a->sums[1 + c] = sum;
        a->sums[1 + a->channels + c] = squares;
    }
}

/* The variance of this rank's n values by their differences from m, their mean but for rounding. */
static double variance_of(const struct pl_batchnorm_args *a, size_t c, double m, double n)
{
    double sum = 0, squares = 0;

    for (size_t k = 0; k < a->batch * a->inner; k++) {
        double v = (double)get(a, a->x_half, a->x, index_of(a, c, k)) - m;

        sum += v;
        squares += v * v;
    }
    return squares / n - sum / n * (sum / n);
}

static void statistics(const struct pl_batchnorm_args *a, size_t c)
{
    real *mean = a->mean, *inv_std = a->inv_std;
    real *running_mean = a->running_mean, *running_var = a->running_var;
    double n, m, var;

    if (!a->training) {
        mean[c] = running_mean[c];
        inv_std[c] = (real)(1 / sqrt(running_var[c] + a->eps));
        return;
    }
    n = a->sums[0];
    m = a->sums[1 + c] / n;
    var = a->sums[1 + a->channels + c] / n - m * m;
    if (a->alone && (PL_REF_F64 || pl_batchnorm_lost(n, m, var)))
        var = variance_of(a, c, m, n);
    m += a->shift ? a->shift[c] : 0;
    var = var < 0 ? 0 : var; /* by rounding; NaN stays */
    mean[c] = (real)m;
    inv_std[c] = (real)(1 / sqrt(var + a->eps));
    if (running_mean) {
        running_mean[c] = (real)((1 - a->momentum) * running_mean[c] + a->momentum * m);
        running_var[c] =
            (real)((1 - a->momentum) * running_var[c] + a->momentum * var * n / fmax(n - 1, 1));
    }
}

void PL_REF(batchnorm_forward)(const struct pl_batchnorm_args *a)
{
    const real *w = a->w, *b = a->b, *mean = a->mean, *inv_std = a->inv_std;

    for (size_t c = 0; c < a->channels; c++) {
        statistics(a, c);
        for (size_t k = 0; k < a->batch * a->inner; k++) {
            size_t i = index_of(a, c, k);
            double v =
                ((double)get(a, a->x_half, a->x, i) - mean[c]) * inv_std[c] * (w ? w[c] : 1) +
                (b ? b[c] : 0);

            if (a->r) {
                set(a, a->y_half, a->y, i, (real)v);
                v = (double)get(a, a->y_half, a->y, i) + get(a, a->y_half, a->r, i);
            }
            set(a, a->y_half, a->y, i, (real)(a->relu && v <= 0 ? 0 : v));
        }
    }
}

static double dz_of(const struct pl_batchnorm_args *a, size_t i)
{
    return a->relu && get(a, a->y_half, a->y, i) <= 0 ? 0 : get(a, a->y_half, a->dy, i);
}

void PL_REF(batchnorm_back_sums)(const struct pl_batchnorm_args *a)
{
    const real *mean = a->mean, *inv_std = a->inv_std;
    real *dw = a->dw, *db = a->db;

    a->back_sums[0] = (double)(a->batch * a->inner);
    for (size_t c = 0; c < a->channels; c++) {
        double sum = 0, with_x = 0;

        for (size_t k = 0; k < a->batch * a->inner; k++) {
            size_t i = index_of(a, c, k);

            if (a->dr)
                set(a, a->y_half, a->dr, i,
                    (real)((a->dr_add ? get(a, a->y_half, a->dr, i) : 0) + dz_of(a, i)));
            sum += dz_of(a, i);
            with_x += dz_of(a, i) * ((double)get(a, a->x_half, a->x, i) - mean[c]);
        }
        a->back_sums[1 + c] = sum;
        a->back_sums[1 + a->channels + c] = with_x;
        if (dw)
            dw[c] = (real)((a->dw_add ? dw[c] : 0) + with_x * inv_std[c]);
        if (db)
            db[c] = (real)((a->db_add ? db[c] : 0) + sum);
    }
}

void PL_REF(batchnorm_backward)(const struct pl_batchnorm_args *a)
{
    const real *w = a->w, *mean = a->mean, *inv_std = a->inv_std;

    for (size_t c = 0; a->dx && c < a->channels; c++) {
        double s = inv_std[c], of_dz = 0, of_x = 0;

        if (a->training) {
            of_dz = a->back_sums[1 + c] / a->back_sums[0];
            of_x = a->back_sums[1 + a->channels + c] / a->back_sums[0] * s * s;
        }
        for (size_t k = 0; k < a->batch * a->inner; k++) {
            size_t i = index_of(a, c, k);
            double d = dz_of(a, i) - of_dz - ((double)get(a, a->x_half, a->x, i) - mean[c]) * of_x;

            d *= (w ? w[c] : 1) * s;
            set(a, a->x_half, a->dx, i, (real)((a->dx_add ? get(a, a->x_half, a->dx, i) : 0) + d));
        }
    }
}
