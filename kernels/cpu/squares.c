/* SPDX-License-Identifier: MIT */
/* Bound by memory. Parallel over rows of squares, and rows of x. */
#include "kernels/cpu/level.h"
#include "kernels/pool/pool.h"

#include <math.h>

#define GRAIN 16384 /* elements */

/* Row r of [batch, rows]. */
static void gather_row(void *ctx, size_t begin, size_t end)
{
    const struct pl_squares_args *a = ctx;

    for (size_t r = begin; r < end; r++) {
        size_t n = r / a->rows, i = r % a->rows;
        float *y = (float *)a->dst + r * a->columns * 4 * a->wide;

        for (size_t j = 0; j < a->columns; j++)
            for (size_t place = 0; place < 4; place++, y += a->wide) {
                size_t row = 2 * i + place / 2 - a->before_h, col = 2 * j + place % 2 - a->before_w;
                bool there = row < a->height && col < a->width; /* below 0 they wrap around */
                const float *x = (const float *)a->src;

                x += there ? ((n * a->height + row) * a->width + col) * a->channels : 0;
                for (size_t c = 0; c < a->wide; c++)
                    y[c] = there && c < a->channels ? x[c] : 0;
                for (size_t c = 0; a->bad && c < a->wide; c++)
                    if (!isfinite(y[c])) {
                        __atomic_fetch_add(a->bad, 1, __ATOMIC_RELAXED);
                        y[c] = 0;
                    }
            }
    }
}

/* Row r of [batch, height]. */
static void scatter_row(void *ctx, size_t begin, size_t end)
{
    const struct pl_squares_args *a = ctx;

    for (size_t r = begin; r < end; r++) {
        size_t n = r / a->height, row = r % a->height + a->before_h;
        float *x = (float *)a->dst + r * a->width * a->channels;

        for (size_t col = a->before_w; col < a->width + a->before_w; col++, x += a->channels) {
            size_t i = row / 2, j = col / 2, place = row % 2 * 2 + col % 2;
            bool there = i < a->rows && j < a->columns;
            const float *y = (const float *)a->src;

            y += there ? (((n * a->rows + i) * a->columns + j) * 4 + place) * a->wide : 0;
            for (size_t c = 0; c < a->channels; c++) {
                float value = there ? y[c] : 0;

                x[c] = a->add ? x[c] + value : value;
            }
        }
    }
}

void PL_CPU(space_to_depth)(const struct pl_squares_args *a)
{
    pl_pool_parallel(a->batch * a->rows, 1 + GRAIN / (4 * a->columns * a->wide + 1), gather_row,
                     (void *)(uintptr_t)a);
}

void PL_CPU(depth_to_space)(const struct pl_squares_args *a)
{
    pl_pool_parallel(a->batch * a->height, 1 + GRAIN / (a->width * a->channels + 1), scatter_row,
                     (void *)(uintptr_t)a);
}
