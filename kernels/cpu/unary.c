/* SPDX-License-Identifier: MIT */
/* Bound by the exponential: about 20 operations per element, 8 bytes read and written. */
#include "kernels/cpu/vmath.h"
#include "kernels/pool/pool.h"

#define GRAIN 8192

#define FOR_EACH_ACTIVATION(run)                                                                   \
    switch (a->act) {                                                                              \
    case PL_ACT_NONE:                                                                              \
        run(PL_ACT_NONE);                                                                          \
        break;                                                                                     \
    case PL_ACT_RELU:                                                                              \
        run(PL_ACT_RELU);                                                                          \
        break;                                                                                     \
    case PL_ACT_GELU:                                                                              \
        run(PL_ACT_GELU);                                                                          \
        break;                                                                                     \
    case PL_ACT_GELU_TANH:                                                                         \
        run(PL_ACT_GELU_TANH);                                                                     \
        break;                                                                                     \
    case PL_ACT_SILU:                                                                              \
        run(PL_ACT_SILU);                                                                          \
        break;                                                                                     \
    case PL_ACT_TANH:                                                                              \
        run(PL_ACT_TANH);                                                                          \
        break;                                                                                     \
    case PL_ACT_SIGMOID:                                                                           \
        run(PL_ACT_SIGMOID);                                                                       \
        break;                                                                                     \
    }

static void forward(void *ctx, size_t begin, size_t end)
{
    const struct pl_unary_args *a = ctx;
    const float *restrict x = a->x;
    float *restrict y = a->y;

#define RUN(act)                                                                                   \
    for (size_t i = begin; i < end; i++)                                                           \
    y[i] = pl_activate(act, x[i])
    FOR_EACH_ACTIVATION(RUN)
#undef RUN
}

static void backward(void *ctx, size_t begin, size_t end)
{
    const struct pl_unary_args *a = ctx;
    const float *restrict x = a->x, *restrict dy = a->dy;
    float *restrict dx = a->dx;

#define RUN(act)                                                                                   \
    if (a->dx_add)                                                                                 \
        for (size_t i = begin; i < end; i++)                                                       \
            dx[i] += dy[i] * pl_activate_slope(act, x[i]);                                         \
    else                                                                                           \
        for (size_t i = begin; i < end; i++)                                                       \
        dx[i] = dy[i] * pl_activate_slope(act, x[i])
    FOR_EACH_ACTIVATION(RUN)
#undef RUN
}

void PL_CPU(unary_forward)(const struct pl_unary_args *a)
{
    pl_pool_parallel(a->n, GRAIN, forward, (void *)a);
}

void PL_CPU(unary_backward)(const struct pl_unary_args *a)
{
    pl_pool_parallel(a->n, GRAIN, backward, (void *)a);
}
