/* SPDX-License-Identifier: MIT */
/* Bound by memory: two or three elements read and one written, a comparison and a selection. */
#include "kernels/cpu/level.h"
#include "kernels/pool/pool.h"

#define GRAIN 8192

static void forward(void *ctx, size_t begin, size_t end)
{
    const struct pl_choose_args *args = ctx;
    const float *restrict a = args->a, *restrict b = args->b, *restrict c = args->c;
    float *restrict y = args->y;

#define RUN(value)                                                                                 \
    for (size_t i = begin; i < end; i++)                                                           \
        y[i] = (value);                                                                            \
    break
    switch (args->op) {
    case PL_CHOOSE_MAX:
        RUN(a[i] > b[i] || a[i] != a[i] ? a[i] : b[i]);
    case PL_CHOOSE_MIN:
        RUN(a[i] < b[i] || a[i] != a[i] ? a[i] : b[i]);
    case PL_CHOOSE_WHERE:
        RUN(a[i] != 0 ? b[i] : c[i]);
    case PL_CHOOSE_LT:
        RUN(a[i] < b[i] ? 1 : 0);
    case PL_CHOOSE_LE:
        RUN(a[i] <= b[i] ? 1 : 0);
    case PL_CHOOSE_EQ:
        RUN(a[i] == b[i] ? 1 : 0);
    case PL_CHOOSE_NE:
        RUN(a[i] != b[i] ? 1 : 0);
    }
#undef RUN
}

static void backward(void *ctx, size_t begin, size_t end)
{
    const struct pl_choose_args *args = ctx;
    const float *restrict a = args->a, *restrict b = args->b, *restrict dy = args->dy;
    float *restrict da = args->da, *restrict db = args->db, *restrict dc = args->dc;

#define RUN(out, add, value)                                                                       \
    if ((out) && (add))                                                                            \
        for (size_t i = begin; i < end; i++)                                                       \
            (out)[i] += (value);                                                                   \
    else if (out)                                                                                  \
        for (size_t i = begin; i < end; i++)                                                       \
    (out)[i] = (value)
    switch (args->op) {
    case PL_CHOOSE_MAX:
        RUN(da, args->da_add, a[i] == b[i] ? 0.5f * dy[i] : a[i] < b[i] ? 0 : dy[i]);
        RUN(db, args->db_add, a[i] == b[i] ? 0.5f * dy[i] : a[i] > b[i] ? 0 : dy[i]);
        break;
    case PL_CHOOSE_MIN:
        RUN(da, args->da_add, a[i] == b[i] ? 0.5f * dy[i] : a[i] > b[i] ? 0 : dy[i]);
        RUN(db, args->db_add, a[i] == b[i] ? 0.5f * dy[i] : a[i] < b[i] ? 0 : dy[i]);
        break;
    case PL_CHOOSE_WHERE:
        RUN(da, args->da_add, 0);
        RUN(db, args->db_add, a[i] != 0 ? dy[i] : 0);
        RUN(dc, args->dc_add, a[i] != 0 ? 0 : dy[i]);
        break;
    default:
        RUN(da, args->da_add, 0);
        RUN(db, args->db_add, 0);
        break;
    }
#undef RUN
}

void PL_CPU(choose_forward)(const struct pl_choose_args *a)
{
    pl_pool_parallel(a->n, GRAIN, forward, (void *)a);
}

void PL_CPU(choose_backward)(const struct pl_choose_args *a)
{
    pl_pool_parallel(a->n, GRAIN, backward, (void *)a);
}
