/* SPDX-License-Identifier: MIT */
#include "kernels/cpu/level.h"
#include "kernels/pool/pool.h"

#define GRAIN 32768

static void body(void *ctx, size_t begin, size_t end)
{
    const struct pl_affine_args *a = ctx;
    float scale = (float)a->scale, shift = (float)a->shift, *y = a->y;
    const float *x = a->x;

    if (a->add) {
        PL_INDEPENDENT
        for (size_t i = begin; i < end; i++)
            y[i] = y[i] + (scale * x[i] + shift);
    } else {
        PL_INDEPENDENT
        for (size_t i = begin; i < end; i++)
            y[i] = scale * x[i] + shift;
    }
}

void PL_CPU(affine)(const struct pl_affine_args *a)
{
    pl_pool_parallel(a->n, GRAIN, body, (void *)a);
}
