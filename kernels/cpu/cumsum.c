/* SPDX-License-Identifier: MIT */
/* Bound by memory if there are columns side by side, else by additions that wait for each other. */
#include "kernels/cpu/level.h"
#include "kernels/pool/pool.h"

#define GRAIN 8192
#define COLUMNS 64

static size_t blocks(const struct pl_cumsum_args *a)
{
    return (a->inner + COLUMNS - 1) / COLUMNS;
}

static void column_block(const struct pl_cumsum_args *a, size_t o, size_t first, size_t count)
{
    double sums[COLUMNS] = {0};

    for (size_t step = 0; step < a->n; step++) {
        size_t j = a->reverse ? a->n - 1 - step : step, at = (o * a->n + j) * a->inner + first;
        const float *restrict x = (const float *)a->x + at;
        float *restrict y = (float *)a->y + at;

        for (size_t i = 0; i < count; i++)
            sums[i] += x[i];
        if (a->add)
            for (size_t i = 0; i < count; i++)
                y[i] += (float)sums[i];
        else
            for (size_t i = 0; i < count; i++)
                y[i] = (float)sums[i];
    }
}

static void body(void *ctx, size_t begin, size_t end)
{
    const struct pl_cumsum_args *a = ctx;

    for (; begin < end; begin++) {
        size_t first = begin % blocks(a) * COLUMNS;

        column_block(a, begin / blocks(a), first, PL_MIN((size_t)COLUMNS, a->inner - first));
    }
}

void PL_CPU(cumsum)(const struct pl_cumsum_args *a)
{
    size_t columns = PL_MIN((size_t)COLUMNS, a->inner);

    pl_pool_parallel(a->outer * blocks(a), 1 + GRAIN / (columns * a->n + 1), body, (void *)a);
}
