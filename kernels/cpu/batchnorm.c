/* SPDX-License-Identifier: MIT */
/* One thread handles a channel and sums in a fixed order. */
#include "kernels/cpu/level.h"
#include "kernels/pool/pool.h"

#include <math.h>

#define LANES 8 /* parallel sums */

struct pair {
    double lanes[2][LANES];
};

static void finish(const struct pair *p, double *ret_a, double *ret_b)
{
    *ret_a = *ret_b = 0;
    for (size_t l = 0; l < LANES; l++) {
        *ret_a += p->lanes[0][l];
        *ret_b += p->lanes[1][l];
    }
}

static void add_squares(struct pair *p, const float *x, size_t n)
{
    size_t k = 0;

    for (; k + LANES <= n; k += LANES)
        for (size_t l = 0; l < LANES; l++) {
            double v = x[k + l];

            p->lanes[0][l] += v;
            p->lanes[1][l] += v * v;
        }
    for (; k < n; k++) {
        p->lanes[0][0] += x[k];
        p->lanes[1][0] += (double)x[k] * x[k];
    }
}

static void sums(void *ctx, size_t begin, size_t end)
{
    const struct pl_batchnorm_args *a = ctx;

    for (size_t c = begin; c < end; c++) {
        struct pair p = {0};

        for (size_t n = 0; n < a->batch; n++)
            add_squares(&p, (const float *)a->x + (n * a->channels + c) * a->inner, a->inner);
        finish(&p, &a->sums[1 + c], &a->sums[1 + a->channels + c]);
    }
}

/* No tape asks for 16 bits here, or for a sum. */
static bool is_for_ref(const struct pl_batchnorm_args *a)
{
    return a->x_half || a->y_half || a->r || a->dr;
}

void PL_CPU(batchnorm_sums)(const struct pl_batchnorm_args *a)
{
    if (is_for_ref(a)) {
        pl_kernels_ref(PL_REAL_F32)->batchnorm_sums(a);
        return;
    }
    a->sums[0] = (double)(a->batch * a->inner);
    pl_pool_parallel(a->channels, 1, sums, (void *)a);
}

static void statistics(const struct pl_batchnorm_args *a, size_t c)
{
    float *mean = a->mean, *inv_std = a->inv_std;
    float *running_mean = a->running_mean, *running_var = a->running_var;
    double n, m, var, keep = 1 - a->momentum;

    if (!a->training) {
        mean[c] = running_mean[c];
        inv_std[c] = (float)(1 / sqrt(running_var[c] + a->eps));
        return;
    }
    n = a->sums[0];
    m = a->sums[1 + c] / n;
    var = PL_MAX(a->sums[1 + a->channels + c] / n - m * m, 0.0);
    mean[c] = (float)m;
    inv_std[c] = (float)(1 / sqrt(var + a->eps));
    if (running_mean) {
        running_mean[c] = (float)(keep * running_mean[c] + a->momentum * m);
        running_var[c] =
            (float)(keep * running_var[c] + a->momentum * var * n / PL_MAX(n - 1, 1.0));
    }
}

static void forward(void *ctx, size_t begin, size_t end)
{
    const struct pl_batchnorm_args *a = ctx;

    for (size_t c = begin; c < end; c++) {
        float mean, scale, shift = a->b ? ((const float *)a->b)[c] : 0;

        statistics(a, c);
        mean = ((const float *)a->mean)[c];
        scale = ((const float *)a->inv_std)[c] * (a->w ? ((const float *)a->w)[c] : 1);
        for (size_t n = 0; n < a->batch; n++) {
            size_t at = (n * a->channels + c) * a->inner;
            const float *restrict x = (const float *)a->x + at;
            float *restrict y = (float *)a->y + at;

            if (a->relu)
                for (size_t k = 0; k < a->inner; k++) {
                    float v = (x[k] - mean) * scale + shift;

                    y[k] = v <= 0 ? 0 : v;
                }
            else
                for (size_t k = 0; k < a->inner; k++)
                    y[k] = (x[k] - mean) * scale + shift;
        }
    }
}

void PL_CPU(batchnorm_forward)(const struct pl_batchnorm_args *a)
{
    if (is_for_ref(a))
        pl_kernels_ref(PL_REAL_F32)->batchnorm_forward(a);
    else
        pl_pool_parallel(a->channels, 1, forward, (void *)a);
}

/* y NULL: no relu. */
static void
add_products(struct pair *p, const float *y, const float *dy, const float *x, float mean, size_t n)
{
    size_t k = 0;

    for (; k + LANES <= n; k += LANES)
        for (size_t l = 0; l < LANES; l++) {
            double d = y && y[k + l] <= 0 ? 0 : dy[k + l];

            p->lanes[0][l] += d;
            p->lanes[1][l] += d * ((double)x[k + l] - mean);
        }
    for (; k < n; k++) {
        double d = y && y[k] <= 0 ? 0 : dy[k];

        p->lanes[0][0] += d;
        p->lanes[1][0] += d * ((double)x[k] - mean);
    }
}

static void back_sums(void *ctx, size_t begin, size_t end)
{
    const struct pl_batchnorm_args *a = ctx;
    float *dw = a->dw, *db = a->db;

    for (size_t c = begin; c < end; c++) {
        float mean = ((const float *)a->mean)[c], inv_std = ((const float *)a->inv_std)[c];
        double *sum = &a->back_sums[1 + c], *with_x = &a->back_sums[1 + a->channels + c];
        struct pair p = {0};

        for (size_t n = 0; n < a->batch; n++) {
            size_t at = (n * a->channels + c) * a->inner;

            add_products(&p, a->relu ? (const float *)a->y + at : NULL, (const float *)a->dy + at,
                         (const float *)a->x + at, mean, a->inner);
        }
        finish(&p, sum, with_x);
        if (dw)
            dw[c] = (float)((a->dw_add ? dw[c] : 0) + *with_x * inv_std);
        if (db)
            db[c] = (float)((a->db_add ? db[c] : 0) + *sum);
    }
}

void PL_CPU(batchnorm_back_sums)(const struct pl_batchnorm_args *a)
{
    if (is_for_ref(a)) {
        pl_kernels_ref(PL_REAL_F32)->batchnorm_back_sums(a);
        return;
    }
    a->back_sums[0] = (double)(a->batch * a->inner);
    pl_pool_parallel(a->channels, 1, back_sums, (void *)a);
}

static void backward(void *ctx, size_t begin, size_t end)
{
    const struct pl_batchnorm_args *a = ctx;

    for (size_t c = begin; c < end; c++) {
        float mean = ((const float *)a->mean)[c], inv_std = ((const float *)a->inv_std)[c];
        float scale = inv_std * (a->w ? ((const float *)a->w)[c] : 1), of_dz = 0, of_x = 0;

        if (a->training) {
            of_dz = (float)(a->back_sums[1 + c] / a->back_sums[0]);
            of_x = (float)(a->back_sums[1 + a->channels + c] / a->back_sums[0] * inv_std * inv_std);
        }
        for (size_t n = 0; n < a->batch; n++) {
            size_t at = (n * a->channels + c) * a->inner;
            const float *restrict x = (const float *)a->x + at, *restrict dy =
                                                                    (const float *)a->dy + at;
            const float *restrict y = (const float *)(a->relu ? a->y : a->dy) + at;
            float *restrict dx = (float *)a->dx + at;
            bool relu = a->relu, add = a->dx_add;

            for (size_t k = 0; k < a->inner; k++) {
                float d = relu && y[k] <= 0 ? 0 : dy[k];

                d = (d - of_dz - (x[k] - mean) * of_x) * scale;
                dx[k] = add ? dx[k] + d : d;
            }
        }
    }
}

void PL_CPU(batchnorm_backward)(const struct pl_batchnorm_args *a)
{
    if (is_for_ref(a))
        pl_kernels_ref(PL_REAL_F32)->batchnorm_backward(a);
    else if (a->dx)
        pl_pool_parallel(a->channels, 1, backward, (void *)a);
}
