/* SPDX-License-Identifier: MIT */
#include "kernels/cpu/batchnorm.h"

#include <math.h>

PL_INLINE void add_squares(struct pl_bn_pair *p, const float *x, size_t n)
{
    size_t k = 0;

    for (; k + PL_BN_LANES <= n; k += PL_BN_LANES) {
        pl_bn_floats narrow;
        pl_bn_doubles v;

        memcpy(&narrow, x + k, sizeof(narrow));
        v = __builtin_convertvector(narrow, pl_bn_doubles);
        p->lanes[0] += v;
        p->lanes[1] += v * v;
    }
    for (; k < n; k++) {
        p->lanes[0][0] += x[k];
        p->lanes[1][0] += (double)x[k] * x[k];
    }
}

PL_INLINE void add_differences(struct pl_bn_pair *p, const float *x, size_t n, double m)
{
    for (size_t k = 0; k < n; k++) {
        double v = x[k] - m;

        p->lanes[0][k % PL_BN_LANES] += v;
        p->lanes[1][k % PL_BN_LANES] += v * v;
    }
}

/* This rank's sums of x - m and of their squares. */
PL_INLINE void sums_about(const struct pl_batchnorm_args *a,
                          size_t c,
                          double m,
                          const enum pl_half type,
                          double *ret_sum,
                          double *ret_squares)
{
    size_t most = pl_bn_block_of(a, type);
    struct pl_bn_pair p = {0};
    float block[PL_BN_BLOCK];

    for (size_t i = 0; i < a->batch; i++)
        for (size_t k = 0, some; k < a->inner; k += some) {
            some = PL_MIN(most, a->inner - k);
            add_differences(&p,
                            pl_bn_get(type, a->x_half, a->x, pl_bn_place(a, i, c, k), some, block),
                            some, m);
        }
    pl_bn_finish(&p, ret_sum, ret_squares);
}

PL_INLINE void
shifted_of(const struct pl_batchnorm_args *a, size_t begin, size_t end, const enum pl_half type)
{
    for (size_t c = begin; c < end; c++)
        sums_about(a, c, a->shift[c], type, &a->sums[1 + c], &a->sums[1 + a->channels + c]);
}

PL_BN_FOR_TYPES(shifted)

PL_INLINE void
sums_of(const struct pl_batchnorm_args *a, size_t begin, size_t end, const enum pl_half type)
{
    size_t most = pl_bn_block_of(a, type);
    float block[PL_BN_BLOCK];

    for (size_t c = begin; c < end; c++) {
        struct pl_bn_pair p = {0};

        for (size_t n = 0; n < a->batch; n++)
            for (size_t k = 0, some; k < a->inner; k += some) {
                some = PL_MIN(most, a->inner - k);
                add_squares(&p,
                            pl_bn_get(type, a->x_half, a->x, pl_bn_place(a, n, c, k), some, block),
                            some);
            }
        pl_bn_finish(&p, &a->sums[1 + c], &a->sums[1 + a->channels + c]);
    }
}

PL_BN_FOR_TYPES(sums)

/* The sums of each value of an image, less its number in `shifts` if it is `shifted`. */
PL_INLINE void flat_sums(const struct pl_batchnorm_args *a,
                         size_t begin,
                         size_t end,
                         const enum pl_half type,
                         const bool shifted,
                         const double *restrict shifts,
                         struct pl_bn_flat_sums *restrict f)
{
    size_t n_values = (end - begin) * a->inner;
    float block[PL_BN_FLAT];

    memset(f, 0, sizeof(*f));
    for (size_t n = 0; n < a->batch; n++) {
        const float *x =
            pl_bn_get(type, a->x_half, a->x, pl_bn_place(a, n, begin, 0), n_values, block);

        for (size_t k = 0; k < n_values; k++) {
            double v = shifted ? x[k] - shifts[k] : x[k];

            f->of[0][k] += v;
            f->of[1][k] += v * v;
        }
    }
}

PL_INLINE void flat_about(const struct pl_batchnorm_args *a,
                          size_t begin,
                          size_t end,
                          const enum pl_half type,
                          const bool shifted)
{
    size_t n_values = (end - begin) * a->inner;
    struct pl_bn_flat_sums f;
    double shifts[PL_BN_FLAT];

    for (size_t k = 0; shifted && k < n_values; k++)
        shifts[k] = a->shift[begin + k / a->inner];
    flat_sums(a, begin, end, type, shifted, shifts, &f);
    for (size_t c = begin; c < end; c++)
        pl_bn_finish_flat(&f, c - begin, a->inner, &a->sums[1 + c], &a->sums[1 + a->channels + c]);
}

PL_INLINE void
sums_flat_of(const struct pl_batchnorm_args *a, size_t begin, size_t end, const enum pl_half type)
{
    flat_about(a, begin, end, type, false);
}

PL_BN_FOR_TYPES(sums_flat)

PL_INLINE void shifted_flat_of(const struct pl_batchnorm_args *a,
                               size_t begin,
                               size_t end,
                               const enum pl_half type)
{
    flat_about(a, begin, end, type, true);
}

PL_BN_FOR_TYPES(shifted_flat)

void PL_CPU(batchnorm_sums)(const struct pl_batchnorm_args *a)
{
    if (pl_bn_is_for_ref(a)) {
        pl_kernels_ref(PL_REAL_F32)->batchnorm_sums(a);
        return;
    }
    a->sums[0] = (double)(a->batch * a->inner);
    if (a->shift)
        pl_bn_run(a, shifted, shifted_flat);
    else
        pl_bn_run(a, sums, sums_flat);
}

/* The mean and variance of a channel by its sums; true if these have lost the variance, and x has
 * it. */
PL_INLINE bool
moments_of(const struct pl_batchnorm_args *a, size_t c, double *ret_mean, double *ret_var)
{
    double n = a->sums[0], m = a->sums[1 + c] / n;

    *ret_mean = m;
    *ret_var = a->sums[1 + a->channels + c] / n - m * m;
    return a->alone && pl_batchnorm_lost(n, m, *ret_var);
}

/* The variance of n values by the sums of their differences from about their mean, and of squares.
 */
PL_INLINE double variance_about(double n, double sum, double squares)
{
    return squares / n - sum / n * (sum / n);
}

PL_INLINE double variance_of(const struct pl_batchnorm_args *a, size_t c, const enum pl_half type)
{
    double m, var, sum, squares;

    if (!moments_of(a, c, &m, &var))
        return var;
    sums_about(a, c, m, type, &sum, &squares);
    return variance_about(a->sums[0], sum, squares);
}

/* The same of channels [begin, end) together: one by one each value would take a cache line. */
PL_INLINE void flat_variances(const struct pl_batchnorm_args *a,
                              size_t begin,
                              size_t end,
                              const enum pl_half type,
                              double *ret)
{
    double shifts[PL_BN_FLAT], m, var, sum, squares;
    struct pl_bn_flat_sums f;
    bool lost = false;

    for (size_t c = begin; c < end; c++) {
        lost |= moments_of(a, c, &m, &ret[c - begin]);
        for (size_t k = 0; k < a->inner; k++)
            shifts[(c - begin) * a->inner + k] = m;
    }
    if (!lost)
        return;
    flat_sums(a, begin, end, type, true, shifts, &f);
    for (size_t c = begin; c < end; c++) {
        if (!moments_of(a, c, &m, &var))
            continue;
        pl_bn_finish_flat(&f, c - begin, a->inner, &sum, &squares);
        ret[c - begin] = variance_about(a->sums[0], sum, squares);
    }
}

/* var: in training, this batch's. */
PL_INLINE void statistics(const struct pl_batchnorm_args *a, size_t c, double var)
{
    float *mean = a->mean, *inv_std = a->inv_std;
    float *running_mean = a->running_mean, *running_var = a->running_var;
    double n, m, keep = 1 - a->momentum;

    if (!a->training) {
        mean[c] = running_mean[c];
        inv_std[c] = (float)(1 / sqrt(running_var[c] + a->eps));
        return;
    }
    n = a->sums[0];
    m = a->sums[1 + c] / n + (a->shift ? a->shift[c] : 0);
    var = var < 0 ? 0 : var; /* by rounding; NaN stays */
    mean[c] = (float)m;
    inv_std[c] = (float)(1 / sqrt(var + a->eps));
    if (running_mean) {
        running_mean[c] = (float)(keep * running_mean[c] + a->momentum * m);
        running_var[c] =
            (float)(keep * running_var[c] + a->momentum * var * n / PL_MAX(n - 1, 1.0));
    }
}

PL_INLINE void
forward_of(const struct pl_batchnorm_args *a, size_t begin, size_t end, const enum pl_half type)
{
    float x_block[PL_BN_BLOCK], y_block[PL_BN_BLOCK];
    size_t most = pl_bn_block_of(a, type);

    for (size_t c = begin; c < end; c++) {
        statistics(a, c, a->training ? variance_of(a, c, type) : 0);
        for (size_t n = 0; n < a->batch; n++)
            for (size_t k = 0, some; k < a->inner; k += some) {
                size_t at = pl_bn_place(a, n, c, k);

                some = PL_MIN(most, a->inner - k);
                pl_bn_norm(pl_bn_get(type, a->x_half, a->x, at, some, x_block),
                           type && a->y_half ? y_block : (float *)a->y + at, some,
                           pl_bn_mean_of(a, c), pl_bn_scale_of(a, c), pl_bn_shift_of(a, c),
                           a->relu);
                if (type && a->y_half)
                    pl_narrow_row(type, y_block, (uint16_t *)a->y + at, some);
            }
    }
}

PL_BN_FOR_TYPES(forward)

PL_INLINE void forward_flat_of(const struct pl_batchnorm_args *a,
                               size_t begin,
                               size_t end,
                               const enum pl_half type)
{
    size_t n_values = (end - begin) * a->inner;
    float x_block[PL_BN_FLAT], y_block[PL_BN_FLAT];
    double vars[PL_BN_FLAT] = {0};
    struct pl_bn_flat_norm f;

    if (a->training)
        flat_variances(a, begin, end, type, vars);
    for (size_t c = begin; c < end; c++)
        statistics(a, c, vars[c - begin]);
    pl_bn_fill_flat(&f, a, begin, end);
    for (size_t n = 0; n < a->batch; n++) {
        size_t at = pl_bn_place(a, n, begin, 0);

        pl_bn_norm_flat(pl_bn_get(type, a->x_half, a->x, at, n_values, x_block),
                        type && a->y_half ? y_block : (float *)a->y + at, n_values, f.means,
                        f.scales, f.shifts, a->relu);
        if (type && a->y_half)
            pl_narrow_row(type, y_block, (uint16_t *)a->y + at, n_values);
    }
}

PL_BN_FOR_TYPES(forward_flat)

void PL_CPU(batchnorm_forward)(const struct pl_batchnorm_args *a)
{
    if (pl_bn_is_for_ref(a))
        pl_kernels_ref(PL_REAL_F32)->batchnorm_forward(a);
    else
        pl_bn_run(a, forward, forward_flat);
}
