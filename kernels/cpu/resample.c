/* SPDX-License-Identifier: MIT */
/* Bound by memory for rows (inner large); columns (inner 1) find their taps anew for each row. */
#include "kernels/cpu/level.h"
#include "kernels/pool/pool.h"

#include <string.h>

#define GRAIN 8192

static void add_line(size_t n, float *restrict to, const float *restrict from, float weight)
{
    for (size_t i = 0; i < n; i++)
        to[i] += weight * from[i];
}

static float weight_of(const struct pl_taps *t, size_t k)
{
    return (float)(k == 0 ? t->weight : t->others);
}

/* Rows of [outer * m, inner]. */
static void forward(void *ctx, size_t begin, size_t end)
{
    const struct pl_resample_args *a = ctx;

    for (size_t r = begin; r < end; r++) {
        struct pl_taps t = pl_taps_of(a->mode, a->n, a->m, r % a->m);
        float *y = (float *)a->y + r * a->inner;

        memset(y, 0, a->inner * sizeof(*y));
        for (size_t k = 0; k < t.count; k++)
            add_line(a->inner, y, (const float *)a->x + (r / a->m * a->n + t.first + k) * a->inner,
                     weight_of(&t, k));
    }
}

void PL_CPU(resample_forward)(const struct pl_resample_args *a)
{
    pl_pool_parallel(a->outer * a->m, 1 + GRAIN / (a->inner + 1), forward, (void *)a);
}

static void backward(void *ctx, size_t begin, size_t end)
{
    const struct pl_resample_args *a = ctx;

    for (size_t o = begin; o < end; o++) {
        float *dx = (float *)a->dx + o * a->n * a->inner;

        if (!a->dx_add)
            memset(dx, 0, a->n * a->inner * sizeof(*dx));
        for (size_t i = 0; i < a->m; i++) {
            struct pl_taps t = pl_taps_of(a->mode, a->n, a->m, i);

            for (size_t k = 0; k < t.count; k++)
                if (weight_of(&t, k) != 0)
                    add_line(a->inner, dx + (t.first + k) * a->inner,
                             (const float *)a->dy + (o * a->m + i) * a->inner, weight_of(&t, k));
        }
    }
}

void PL_CPU(resample_backward)(const struct pl_resample_args *a)
{
    pl_pool_parallel(a->outer, 1 + GRAIN / (a->inner * (a->n + a->m) + 1), backward, (void *)a);
}
