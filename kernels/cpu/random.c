/* SPDX-License-Identifier: MIT */
/* Bound by Philox, and for normal numbers by the C library's logarithms and sines in f64. */
#include "kernels/cpu/level.h"
#include "kernels/philox.h"
#include "kernels/pool/pool.h"

#define GRAIN 1024 /* counters */

static float value(const struct pl_random_args *a, const uint32_t number[4], unsigned k)
{
    switch (a->kind) {
    case PL_RANDOM_UNIFORM:
        return (float)(a->p + (a->q - a->p) * pl_random_uniform(number, k));
    case PL_RANDOM_BERNOULLI:
        return (float)pl_random_bernoulli(number, k, a->p);
    case PL_RANDOM_NORMAL:
        break;
    }
    return (float)(a->p + a->q * pl_random_normal(number, k));
}

static void body(void *ctx, size_t begin, size_t end)
{
    const struct pl_random_args *a = ctx;
    uint64_t high = a->draw ? *a->draw : a->counter[1];

    for (size_t group = begin; group < end; group++) {
        uint32_t number[4];

        pl_philox(a->key, a->counter[0] + group, high, number);
        for (unsigned k = group ? 0 : a->skip; k < 4 && group * 4 + k < a->n + a->skip; k++)
            ((float *)a->y)[group * 4 + k - a->skip] = value(a, number, k);
    }
}

void PL_CPU(random)(const struct pl_random_args *a)
{
    pl_pool_parallel((a->n + a->skip + 3) / 4, GRAIN, body, (void *)a);
}
