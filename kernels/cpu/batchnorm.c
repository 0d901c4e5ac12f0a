/* SPDX-License-Identifier: MIT */
/* One thread handles a channel and sums in a fixed order. If a channel of an image is shorter than
 * a vector, a thread handles neighbouring channels together ("flat"): their values are contiguous,
 * and each value of an image has sums of its own. */
#include "kernels/cpu/vmath.h"
#include "kernels/pool/pool.h"

#include <math.h>
#include <string.h>

#define LANES 8  /* parallel sums */
#define FLAT 256 /* the most values of an image that are handled together */

static bool is_flat(const struct pl_batchnorm_args *a)
{
    return a->inner < LANES;
}

/* Calls body for each channel, or for the channels of FLAT values. */
static void run(const struct pl_batchnorm_args *a,
                void (*each)(void *ctx, size_t begin, size_t end),
                void (*flat)(void *ctx, size_t begin, size_t end))
{
    if (is_flat(a))
        pl_pool_parallel(a->channels, FLAT / PL_MAX(a->inner, (size_t)1), flat, (void *)a);
    else
        pl_pool_parallel(a->channels, 1, each, (void *)a);
}

typedef float floats __attribute__((vector_size(LANES * sizeof(float))));
typedef int32_t bits __attribute__((vector_size(LANES * sizeof(int32_t))));
typedef double doubles __attribute__((vector_size(LANES * sizeof(double))));

struct pair {
    doubles lanes[2];
};

static void finish(const struct pair *p, double *ret_a, double *ret_b)
{
    *ret_a = *ret_b = 0;
    for (size_t l = 0; l < LANES; l++) {
        *ret_a += p->lanes[0][l];
        *ret_b += p->lanes[1][l];
    }
}

PL_INLINE void add_squares(struct pair *p, const float *x, size_t n)
{
    size_t k = 0;

    for (; k + LANES <= n; k += LANES) {
        floats narrow;
        doubles v;

        memcpy(&narrow, x + k, sizeof(narrow));
        v = __builtin_convertvector(narrow, doubles);
        p->lanes[0] += v;
        p->lanes[1] += v * v;
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

struct flat_sums {
    double of[2][FLAT];
};

/* Channel c of the block that begins with channel `begin`. */
static void
finish_flat(const struct flat_sums *f, size_t c, size_t inner, double *ret_a, double *ret_b)
{
    *ret_a = *ret_b = 0;
    for (size_t k = c * inner; k < (c + 1) * inner; k++) {
        *ret_a += f->of[0][k];
        *ret_b += f->of[1][k];
    }
}

static void sums_flat(void *ctx, size_t begin, size_t end)
{
    const struct pl_batchnorm_args *a = ctx;
    size_t n_values = (end - begin) * a->inner;
    struct flat_sums f;

    memset(&f, 0, sizeof(f));
    for (size_t n = 0; n < a->batch; n++) {
        const float *x = (const float *)a->x + (n * a->channels + begin) * a->inner;

        for (size_t k = 0; k < n_values; k++) {
            double v = x[k];

            f.of[0][k] += v;
            f.of[1][k] += v * v;
        }
    }
    for (size_t c = begin; c < end; c++)
        finish_flat(&f, c - begin, a->inner, &a->sums[1 + c], &a->sums[1 + a->channels + c]);
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
    run(a, sums, sums_flat);
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
    var = a->sums[1 + a->channels + c] / n - m * m;
    var = var < 0 ? 0 : var; /* by rounding; NaN stays */
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

/* Writes a channel's value for each of its values in an image. */
static void repeat(float *to, float value, size_t n)
{
    for (size_t k = 0; k < n; k++)
        to[k] = value;
}

static void forward_flat(void *ctx, size_t begin, size_t end)
{
    const struct pl_batchnorm_args *a = ctx;
    size_t n_values = (end - begin) * a->inner;
    float means[FLAT], scales[FLAT], shifts[FLAT];

    for (size_t c = begin; c < end; c++) {
        size_t at = (c - begin) * a->inner;

        statistics(a, c);
        repeat(means + at, ((const float *)a->mean)[c], a->inner);
        repeat(scales + at, ((const float *)a->inv_std)[c] * (a->w ? ((const float *)a->w)[c] : 1),
               a->inner);
        repeat(shifts + at, a->b ? ((const float *)a->b)[c] : 0, a->inner);
    }
    for (size_t n = 0; n < a->batch; n++) {
        size_t at = (n * a->channels + begin) * a->inner;
        const float *restrict x = (const float *)a->x + at;
        float *restrict y = (float *)a->y + at;

        if (a->relu)
            for (size_t k = 0; k < n_values; k++) {
                float v = (x[k] - means[k]) * scales[k] + shifts[k];

                y[k] = v <= 0 ? 0 : v;
            }
        else
            for (size_t k = 0; k < n_values; k++)
                y[k] = (x[k] - means[k]) * scales[k] + shifts[k];
    }
}

void PL_CPU(batchnorm_forward)(const struct pl_batchnorm_args *a)
{
    if (is_for_ref(a))
        pl_kernels_ref(PL_REAL_F32)->batchnorm_forward(a);
    else
        run(a, forward, forward_flat);
}

/* y counts if relu is true. */
PL_INLINE void add_products(struct pair *p,
                            const float *y,
                            const float *dy,
                            const float *x,
                            double mean,
                            size_t n,
                            const bool relu)
{
    size_t k = 0;

    for (; k + LANES <= n; k += LANES) {
        floats dz, of_x, of_y;
        doubles d;

        memcpy(&dz, dy + k, sizeof(dz));
        memcpy(&of_x, x + k, sizeof(of_x));
        if (relu) {
            memcpy(&of_y, y + k, sizeof(of_y));
            dz = (floats)((bits)dz & ~(bits)(of_y <= 0));
        }
        d = __builtin_convertvector(dz, doubles);
        p->lanes[0] += d;
        p->lanes[1] += d * (__builtin_convertvector(of_x, doubles) - mean);
    }
    for (; k < n; k++) {
        double d = relu && y[k] <= 0 ? 0 : dy[k];

        p->lanes[0][0] += d;
        p->lanes[1][0] += d * (x[k] - mean);
    }
}

/* dw and db of a channel whose sums are there. */
static void write_sums(const struct pl_batchnorm_args *a, size_t c)
{
    float *dw = a->dw, *db = a->db;

    if (dw)
        dw[c] = (float)((a->dw_add ? dw[c] : 0) +
                        a->back_sums[1 + a->channels + c] * ((const float *)a->inv_std)[c]);
    if (db)
        db[c] = (float)((a->db_add ? db[c] : 0) + a->back_sums[1 + c]);
}

static void back_sums(void *ctx, size_t begin, size_t end)
{
    const struct pl_batchnorm_args *a = ctx;

    for (size_t c = begin; c < end; c++) {
        float mean = ((const float *)a->mean)[c];
        struct pair p = {0};

        for (size_t n = 0; n < a->batch; n++) {
            size_t at = (n * a->channels + c) * a->inner;

            const float *x = (const float *)a->x + at, *dy = (const float *)a->dy + at;
            const float *y = (const float *)(a->relu ? a->y : a->dy) + at;

            if (a->relu)
                add_products(&p, y, dy, x, mean, a->inner, true);
            else
                add_products(&p, y, dy, x, mean, a->inner, false);
        }
        finish(&p, &a->back_sums[1 + c], &a->back_sums[1 + a->channels + c]);
        write_sums(a, c);
    }
}

static void back_sums_flat(void *ctx, size_t begin, size_t end)
{
    const struct pl_batchnorm_args *a = ctx;
    size_t n_values = (end - begin) * a->inner;
    float means[FLAT];
    struct flat_sums f;

    memset(&f, 0, sizeof(f));
    for (size_t c = begin; c < end; c++)
        repeat(means + (c - begin) * a->inner, ((const float *)a->mean)[c], a->inner);
    for (size_t n = 0; n < a->batch; n++) {
        size_t at = (n * a->channels + begin) * a->inner;
        const float *x = (const float *)a->x + at, *dy = (const float *)a->dy + at;
        const float *y = (const float *)(a->relu ? a->y : a->dy) + at;
        float d[FLAT];

        for (size_t k = 0; k < n_values; k++)
            d[k] = a->relu && y[k] <= 0 ? 0 : dy[k];
        for (size_t k = 0; k < n_values; k++) {
            f.of[0][k] += d[k];
            f.of[1][k] += d[k] * ((double)x[k] - means[k]);
        }
    }
    for (size_t c = begin; c < end; c++) {
        finish_flat(&f, c - begin, a->inner, &a->back_sums[1 + c],
                    &a->back_sums[1 + a->channels + c]);
        write_sums(a, c);
    }
}

void PL_CPU(batchnorm_back_sums)(const struct pl_batchnorm_args *a)
{
    if (is_for_ref(a)) {
        pl_kernels_ref(PL_REAL_F32)->batchnorm_back_sums(a);
        return;
    }
    a->back_sums[0] = (double)(a->batch * a->inner);
    run(a, back_sums, back_sums_flat);
}

/* dx of a channel is (dz - of_dz - (x - mean) of_x) scale. */
struct slope {
    float of_dz, of_x, scale;
};

static struct slope slope_of(const struct pl_batchnorm_args *a, size_t c)
{
    float inv_std = ((const float *)a->inv_std)[c];
    struct slope s = {.scale = inv_std * (a->w ? ((const float *)a->w)[c] : 1)};

    if (a->training) {
        s.of_dz = (float)(a->back_sums[1 + c] / a->back_sums[0]);
        s.of_x = (float)(a->back_sums[1 + a->channels + c] / a->back_sums[0] * inv_std * inv_std);
    }
    return s;
}

static void backward(void *ctx, size_t begin, size_t end)
{
    const struct pl_batchnorm_args *a = ctx;

    for (size_t c = begin; c < end; c++) {
        float mean = ((const float *)a->mean)[c];
        struct slope s = slope_of(a, c);

        for (size_t n = 0; n < a->batch; n++) {
            size_t at = (n * a->channels + c) * a->inner;
            const float *restrict x = (const float *)a->x + at, *restrict dy =
                                                                    (const float *)a->dy + at;
            const float *restrict y = (const float *)(a->relu ? a->y : a->dy) + at;
            float *restrict dx = (float *)a->dx + at;
            bool relu = a->relu, add = a->dx_add;

            for (size_t k = 0; k < a->inner; k++) {
                float d = relu && y[k] <= 0 ? 0 : dy[k];

                d = (d - s.of_dz - (x[k] - mean) * s.of_x) * s.scale;
                dx[k] = add ? dx[k] + d : d;
            }
        }
    }
}

static void backward_flat(void *ctx, size_t begin, size_t end)
{
    const struct pl_batchnorm_args *a = ctx;
    size_t n_values = (end - begin) * a->inner;
    float means[FLAT], of_dz[FLAT], of_x[FLAT], scales[FLAT];

    for (size_t c = begin; c < end; c++) {
        size_t at = (c - begin) * a->inner;
        struct slope s = slope_of(a, c);

        repeat(means + at, ((const float *)a->mean)[c], a->inner);
        repeat(of_dz + at, s.of_dz, a->inner);
        repeat(of_x + at, s.of_x, a->inner);
        repeat(scales + at, s.scale, a->inner);
    }
    for (size_t n = 0; n < a->batch; n++) {
        size_t at = (n * a->channels + begin) * a->inner;
        const float *restrict x = (const float *)a->x + at, *restrict dy =
                                                                (const float *)a->dy + at;
        const float *restrict y = (const float *)(a->relu ? a->y : a->dy) + at;
        float *restrict dx = (float *)a->dx + at;
        bool relu = a->relu, add = a->dx_add;

        for (size_t k = 0; k < n_values; k++) {
            float d = relu && y[k] <= 0 ? 0 : dy[k];

            d = (d - of_dz[k] - (x[k] - means[k]) * of_x[k]) * scales[k];
            dx[k] = add ? dx[k] + d : d;
        }
    }
}

void PL_CPU(batchnorm_backward)(const struct pl_batchnorm_args *a)
{
    if (is_for_ref(a))
        pl_kernels_ref(PL_REAL_F32)->batchnorm_backward(a);
    else if (a->dx)
        run(a, backward, backward_flat);
}
