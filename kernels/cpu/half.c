/* SPDX-License-Identifier: MIT */
/* Bound by memory: 6 bytes per number, 10 or 8 with `add`. The conversions are integer arithmetic
 * that vectorises. */
#include "kernels/cpu/level.h"
#include "kernels/pool/pool.h"

#define GRAIN 32768

/* One loop per case, so that no loop branches. */
#define EACH(to, value)                                                                            \
    do {                                                                                           \
        for (size_t i = begin; i < end; i++)                                                       \
            (to) = (value);                                                                        \
    } while (0)

static void widen(void *ctx, size_t begin, size_t end)
{
    const struct pl_half_args *a = ctx;
    const uint16_t *restrict half = a->half;
    float *restrict wide = a->wide;

    if (a->type == PL_HALF_F16 && a->add)
        EACH(wide[i], wide[i] + pl_f32_of_f16(half[i]));
    else if (a->type == PL_HALF_F16)
        EACH(wide[i], pl_f32_of_f16(half[i]));
    else if (a->add)
        EACH(wide[i], wide[i] + pl_f32_of_bf16(half[i]));
    else
        EACH(wide[i], pl_f32_of_bf16(half[i]));
}

static void narrow(void *ctx, size_t begin, size_t end)
{
    const struct pl_half_args *a = ctx;
    const float *restrict wide = a->wide;
    uint16_t *restrict half = a->half;

    if (a->type == PL_HALF_F16 && a->add)
        EACH(half[i], pl_f16_of_f32(pl_f32_of_f16(half[i]) + wide[i]));
    else if (a->type == PL_HALF_F16)
        EACH(half[i], pl_f16_of_f32(wide[i]));
    else if (a->add)
        EACH(half[i], pl_bf16_of_f32(pl_f32_of_bf16(half[i]) + wide[i]));
    else
        EACH(half[i], pl_bf16_of_f32(wide[i]));
}

void PL_CPU(widen)(const struct pl_half_args *a)
{
    pl_pool_parallel(a->n, GRAIN, widen, (void *)a);
}

void PL_CPU(narrow)(const struct pl_half_args *a)
{
    pl_pool_parallel(a->n, GRAIN, narrow, (void *)a);
}
