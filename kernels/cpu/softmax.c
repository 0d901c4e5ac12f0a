/* SPDX-License-Identifier: MIT */
#include "kernels/cpu/lanes.h"
#include "kernels/cpu/vmath.h"
#include "kernels/pool/pool.h"

#include <math.h>

#define GRAIN 8192

static float row_max(const float *restrict x, size_t n)
{
    float max = x[0];

    for (size_t i = 1; i < n; i++)
        max = x[i] > max ? x[i] : max;
    return max;
}

static void forward(void *ctx, size_t begin, size_t end)
{
    const struct pl_softmax_args *a = ctx;
    size_t n = a->n;

    for (size_t r = begin; r < end; r++) {
        const float *restrict x = (const float *)a->x + r * n;
        float *restrict y = (float *)a->y + r * n;
        float max = row_max(x, n), sum;

        for (size_t i = 0; i < n; i++)
            y[i] = pl_exp(x[i] - max);
        sum = PL_LANE_SUM(n, y[i]);
        if (a->log) {
            float log_sum = logf(sum); /* max is subtracted first: large ones would round it */

            for (size_t i = 0; i < n; i++)
                y[i] = x[i] - max - log_sum;
        } else {
            float inverse = 1 / sum;

            for (size_t i = 0; i < n; i++)
                y[i] *= inverse;
        }
    }
}

static void backward(void *ctx, size_t begin, size_t end)
{
    const struct pl_softmax_args *a = ctx;
    size_t n = a->n;

    for (size_t r = begin; r < end; r++) {
        const float *restrict y = (const float *)a->y + r * n;
        const float *restrict dy = (const float *)a->dy + r * n;
        float *restrict dx = (float *)a->dx + r * n, keep = a->dx_add ? 1 : 0;
        float sum = a->log ? PL_LANE_SUM(n, dy[i]) : PL_LANE_SUM(n, y[i] * dy[i]);

        if (!a->dx_add) /* the old contents may be anything, also NaN */
            for (size_t i = 0; i < n; i++)
                dx[i] = 0;
        if (a->log)
            for (size_t i = 0; i < n; i++)
                dx[i] = keep * dx[i] + dy[i] - pl_exp(y[i]) * sum;
        else
            for (size_t i = 0; i < n; i++)
                dx[i] = keep * dx[i] + y[i] * (dy[i] - sum);
    }
}

void PL_CPU(softmax_forward)(const struct pl_softmax_args *a)
{
    pl_pool_parallel(a->rows, 1 + GRAIN / a->n, forward, (void *)a);
}

void PL_CPU(softmax_backward)(const struct pl_softmax_args *a)
{
    pl_pool_parallel(a->rows, 1 + GRAIN / a->n, backward, (void *)a);
}
