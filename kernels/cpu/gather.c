/* SPDX-License-Identifier: MIT */
/* Backward is parallel over `outer` and blocks of columns: one thread writes a column of dx, in the
 * order of j, so there is no race and the bits do not depend on the number of threads. */
#include "kernels/cpu/level.h"
#include "kernels/pool/pool.h"

#include <math.h>
#include <string.h>

#define GRAIN 8192
#define COLUMNS 64

static float value(const struct pl_gather_args *a, const float *x, int32_t at, size_t i)
{
    if (a->skips && at == a->skip)
        return 0;
    return at < 0 || (size_t)at >= a->n ? NAN : x[(size_t)at * a->inner + i];
}

/* Rows of [outer * m, inner]. */
static void forward(void *ctx, size_t begin, size_t end)
{
    const struct pl_gather_args *a = ctx;

    for (size_t r = begin; r < end; r++) {
        size_t o = r / a->m, j = r % a->m;
        const float *x = (const float *)a->x + o * a->n * a->inner;
        const int32_t *index = a->index + pl_gather_at(a, o, j, 0);
        float *y = (float *)a->y + r * a->inner;

        if (a->shared && *index >= 0 && (size_t)*index < a->n && !(a->skips && *index == a->skip))
            memcpy(y, x + (size_t)*index * a->inner, a->inner * sizeof(*y));
        else
            for (size_t i = 0; i < a->inner; i++)
                y[i] = value(a, x, index[a->shared ? 0 : i], i);
    }
}

void PL_CPU(gather_forward)(const struct pl_gather_args *a)
{
    if (a->inner)
        pl_pool_parallel(a->outer * a->m, 1 + GRAIN / a->inner, forward, (void *)a);
}

static size_t blocks(const struct pl_gather_args *a)
{
    return (a->inner + COLUMNS - 1) / COLUMNS;
}

static void column_block(const struct pl_gather_args *a, size_t o, size_t first, size_t count)
{
    float *dx = (float *)a->dx + o * a->n * a->inner + first;

    for (size_t k = 0; !a->dx_add && k < a->n; k++)
        memset(dx + k * a->inner, 0, count * sizeof(*dx));
    for (size_t j = 0; j < a->m; j++) {
        const float *dy = (const float *)a->dy + (o * a->m + j) * a->inner + first;
        const int32_t *index = a->index + pl_gather_at(a, o, j, first);

        for (size_t i = 0; i < count; i++) {
            int32_t at = index[a->shared ? 0 : i];

            if (at >= 0 && (size_t)at < a->n && !(a->skips && at == a->skip))
                dx[(size_t)at * a->inner + i] += dy[i];
        }
    }
}

static void backward(void *ctx, size_t begin, size_t end)
{
    const struct pl_gather_args *a = ctx;

    for (; begin < end; begin++) {
        size_t first = begin % blocks(a) * COLUMNS;

        column_block(a, begin / blocks(a), first, PL_MIN((size_t)COLUMNS, a->inner - first));
    }
}

void PL_CPU(gather_backward)(const struct pl_gather_args *a)
{
    size_t columns = PL_MIN((size_t)COLUMNS, a->inner);

    if (columns)
        pl_pool_parallel(a->outer * blocks(a), 1 + GRAIN / (columns * (a->n + a->m)), backward,
                         (void *)a);
}
