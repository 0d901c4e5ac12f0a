/* SPDX-License-Identifier: MIT */
/* Backward is parallel over columns: one thread writes a column of the table, in the order of the
 * rows, so there is no race and the bits depend neither on the number of threads nor on the chunks.
 * These are as wide as the threads allow, because a row that is read as a whole comes from memory
 * several times as fast as its parts do one by one. */
#include "kernels/cpu/level.h"
#include "kernels/pool/pool.h"

#include <math.h>
#include <string.h>

#define GRAIN 8192
#define COLUMNS 64 /* at least, per chunk */

static void forward(void *ctx, size_t begin, size_t end)
{
    const struct pl_embedding_args *a = ctx;
    const float *table = a->table;
    float *y = a->y;

    for (size_t r = begin; r < end; r++) {
        if (a->ids[r] >= 0 && (size_t)a->ids[r] < a->vocab)
            memcpy(y + r * a->dim, table + (size_t)a->ids[r] * a->dim, a->dim * sizeof(*y));
        else
            for (size_t i = 0; i < a->dim; i++)
                y[r * a->dim + i] = NAN;
    }
}

void PL_CPU(embedding_forward)(const struct pl_embedding_args *a)
{
    pl_pool_parallel(a->rows, 1 + GRAIN / a->dim, forward, (void *)a);
}

static void backward(void *ctx, size_t begin, size_t end)
{
    const struct pl_embedding_args *a = ctx;
    float *dtable = a->dtable;

    for (size_t v = 0; !a->dtable_add && v < a->vocab; v++)
        memset(dtable + v * a->dim + begin, 0, (end - begin) * sizeof(*dtable));
    for (size_t r = 0; r < a->rows; r++) {
        const float *restrict dy = (const float *)a->dy + r * a->dim;
        float *restrict to;

        if (a->ids[r] < 0 || (size_t)a->ids[r] >= a->vocab)
            continue;
        to = dtable + (size_t)a->ids[r] * a->dim;
        for (size_t i = begin; i < end; i++)
            to[i] += dy[i];
    }
}

void PL_CPU(embedding_backward)(const struct pl_embedding_args *a)
{
    size_t share = (a->dim + pl_pool_threads() - 1) / pl_pool_threads();

    pl_pool_parallel(a->dim, (share + COLUMNS - 1) / COLUMNS * COLUMNS, backward, (void *)a);
}
