/* SPDX-License-Identifier: MIT */
#include "kernels/cpu/level.h"
#include "kernels/pool/pool.h"

#include <math.h>

#define GRAIN 8192

static void body(void *ctx, size_t begin, size_t end)
{
    const struct pl_one_hot_args *a = ctx;

    for (size_t r = begin; r < end; r++) {
        float *y = (float *)a->y + r * a->classes;
        bool valid = a->labels[r] >= 0 && (size_t)a->labels[r] < a->classes;

        for (size_t c = 0; c < a->classes; c++)
            y[c] = valid ? 0 : NAN;
        if (valid)
            y[a->labels[r]] = 1;
    }
}

void PL_CPU(one_hot)(const struct pl_one_hot_args *a)
{
    pl_pool_parallel(a->rows, 1 + GRAIN / (a->classes + 1), body, (void *)a);
}
