/* SPDX-License-Identifier: MIT */
/* Bound by memory: each element is read once. Rows (inner 1) are summed by lanes; otherwise lines
 * of `inner` are added. */
#include "kernels/cpu/level.h"
#include "kernels/pool/pool.h"

#define GRAIN 32768
#define CHUNKS_MAX 256

/* f64 lanes: sums over whole batches keep their precision. */
static double sum_row(const float *restrict x, size_t n)
{
    double lane[16] = {0};
    size_t i = 0;

    for (; i + 16 <= n; i += 16)
        for (size_t k = 0; k < 16; k++)
            lane[k] += x[i + k];
    for (; i < n; i++)
        lane[i % 16] += x[i];
    for (size_t half = 8; half > 0; half /= 2)
        for (size_t k = 0; k < half; k++)
            lane[k] += lane[k + half];
    return lane[0];
}

static void rows_forward(void *ctx, size_t begin, size_t end)
{
    const struct pl_reduce_args *a = ctx;
    float *y = a->y;

    for (size_t o = begin; o < end; o++)
        y[o] = (float)(a->scale * sum_row((const float *)a->x + o * a->n, a->n));
}

struct whole {
    const struct pl_reduce_args *args;
    size_t chunk;
    double sums[CHUNKS_MAX];
};

static void whole_forward(void *ctx, size_t begin, size_t end)
{
    struct whole *w = ctx;

    w->sums[begin / w->chunk] = sum_row((const float *)w->args->x + begin, end - begin);
}

static void lines_forward(void *ctx, size_t begin, size_t end)
{
    const struct pl_reduce_args *a = ctx;
    double sums[64];

    for (; begin < end; begin++)
        for (size_t first = 0; first < a->inner; first += 64) {
            const float *restrict x = (const float *)a->x + begin * a->n * a->inner + first;
            float *y = (float *)a->y + begin * a->inner + first;
            size_t n = PL_MIN((size_t)64, a->inner - first);

            for (size_t i = 0; i < n; i++)
                sums[i] = 0;
            for (size_t k = 0; k < a->n; k++)
                for (size_t i = 0; i < n; i++)
                    sums[i] += x[k * a->inner + i];
            for (size_t i = 0; i < n; i++)
                y[i] = (float)(a->scale * sums[i]);
        }
}

void PL_CPU(reduce_forward)(const struct pl_reduce_args *a)
{
    struct whole w = {.args = a};
    double sum = 0;

    if (a->inner > 1) {
        pl_pool_parallel(a->outer, 1 + GRAIN / (a->n * a->inner), lines_forward, (void *)a);
    } else if (a->outer > 1) {
        pl_pool_parallel(a->outer, 1 + GRAIN / a->n, rows_forward, (void *)a);
    } else if (a->outer == 1) {
        w.chunk = PL_MAX((size_t)GRAIN, (a->n + CHUNKS_MAX - 1) / CHUNKS_MAX);
        pl_pool_parallel(a->n, w.chunk, whole_forward, &w);
        for (size_t i = 0; i * w.chunk < a->n; i++)
            sum += w.sums[i];
        *(float *)a->y = (float)(a->scale * sum);
    }
}

static void line(bool add, size_t n, float *restrict dx, const float *restrict dy, float scale)
{
    if (add)
        for (size_t i = 0; i < n; i++)
            dx[i] += scale * dy[i];
    else
        for (size_t i = 0; i < n; i++)
            dx[i] = scale * dy[i];
}

static void constant(bool add, size_t n, float *restrict dx, float value)
{
    if (add)
        for (size_t i = 0; i < n; i++)
            dx[i] += value;
    else
        for (size_t i = 0; i < n; i++)
            dx[i] = value;
}

static void backward(void *ctx, size_t begin, size_t end)
{
    const struct pl_reduce_args *a = ctx;
    const float *dy = a->dy;
    float *dx = a->dx, scale = (float)a->scale;

    for (size_t r = begin; r < end; r++) /* row r of [outer * n, inner] */
        line(a->dx_add, a->inner, dx + r * a->inner, dy + r / a->n * a->inner, scale);
}

static void backward_rows(void *ctx, size_t begin, size_t end)
{
    const struct pl_reduce_args *a = ctx;
    const float *dy = a->dy;

    while (begin < end) {
        size_t row = begin / a->n, n = PL_MIN((row + 1) * a->n, end) - begin;

        constant(a->dx_add, n, (float *)a->dx + begin, (float)a->scale * dy[row]);
        begin += n;
    }
}

void PL_CPU(reduce_backward)(const struct pl_reduce_args *a)
{
    if (a->inner > 1)
        pl_pool_parallel(a->outer * a->n, 1 + GRAIN / a->inner, backward, (void *)a);
    else
        pl_pool_parallel(a->outer * a->n, GRAIN, backward_rows, (void *)a);
}
