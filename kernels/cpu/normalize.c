/* SPDX-License-Identifier: MIT */
#include "kernels/cpu/lanes.h"
#include "kernels/cpu/level.h"
#include "kernels/pool/pool.h"

#include <math.h>

#define GRAIN 16384

static void forward(void *ctx, size_t begin, size_t end)
{
    const struct pl_normalize_args *a = ctx;
    size_t n = a->n;

    for (size_t r = begin; r < end; r++) {
        const float *restrict x = (const float *)a->x + r * n;
        float *restrict y = (float *)a->y + r * n;
        float norm = sqrtf(PL_LANE_SUM(n, x[i] * x[i]));
        float inverse = 1 / (norm <= (float)a->eps ? (float)a->eps : norm);

        for (size_t i = 0; i < n; i++)
            y[i] = x[i] * inverse;
        ((float *)a->norm)[r] = norm;
    }
}

static void backward(void *ctx, size_t begin, size_t end)
{
    const struct pl_normalize_args *a = ctx;
    size_t n = a->n;

    for (size_t r = begin; r < end; r++) {
        const float *restrict y = (const float *)a->y + r * n;
        const float *restrict dy = (const float *)a->dy + r * n;
        float *restrict dx = (float *)a->dx + r * n;
        float norm = ((const float *)a->norm)[r], eps = (float)a->eps;
        float inverse = 1 / (norm <= eps ? eps : norm);
        float sum = norm <= eps ? 0 : PL_LANE_SUM(n, y[i] * dy[i]);

        if (a->dx_add)
            for (size_t i = 0; i < n; i++)
                dx[i] += (dy[i] - y[i] * sum) * inverse;
        else
            for (size_t i = 0; i < n; i++)
                dx[i] = (dy[i] - y[i] * sum) * inverse;
    }
}

void PL_CPU(normalize_forward)(const struct pl_normalize_args *a)
{
    pl_pool_parallel(a->rows, 1 + GRAIN / a->n, forward, (void *)a);
}

void PL_CPU(normalize_backward)(const struct pl_normalize_args *a)
{
    pl_pool_parallel(a->rows, 1 + GRAIN / a->n, backward, (void *)a);
}
