/* SPDX-License-Identifier: MIT */
/* Bound by Philox' multiplications, about 10 per element; nothing is stored for backward. */
#include "kernels/cpu/level.h"
#include "kernels/philox.h"
#include "kernels/pool/pool.h"

#define GRAIN 4096 /* a multiple of 4 */
#define BLOCK 256

/* The numbers of BLOCK consecutive counters, by lane, in a loop that vectorises. */
static void numbers(uint64_t key, uint64_t counter, uint64_t high, uint32_t out[4][BLOCK / 4])
{
    for (size_t i = 0; i < BLOCK / 4; i++) {
        uint32_t lanes[4];

        pl_philox(key, counter + i, high, lanes);
        for (size_t k = 0; k < 4; k++)
            out[k][i] = lanes[k];
    }
}

static void body(void *ctx, size_t begin, size_t end)
{
    const struct pl_dropout_args *a = ctx;
    uint32_t limit = pl_dropout_limit(a->p), random[4][BLOCK / 4];
    uint64_t high = a->draw ? *a->draw : a->counter[1];
    float scale = (float)(1 / (1 - a->p));

    for (; begin < end; begin += BLOCK) {
        const float *restrict src = (const float *)a->src + begin;
        float *restrict dst = (float *)a->dst + begin;
        size_t n = PL_MIN((size_t)BLOCK, end - begin);

        numbers(a->key, a->counter[0] + begin / 4, high, random);
        for (size_t i = 0; i < n; i++) {
            float value = random[i % 4][i / 4] < limit ? 0 : src[i] * scale;

            dst[i] = a->add ? dst[i] + value : value;
        }
    }
}

/* A range whose first element is not the first of a counter: of a microbatch, if its rows are odd.
 * Counters are not shared with the loop above, so that it stays as it is. */
static void skip_body(void *ctx, size_t begin, size_t end)
{
    const struct pl_dropout_args *a = ctx;
    uint32_t limit = pl_dropout_limit(a->p), lanes[4];
    uint64_t high = a->draw ? *a->draw : a->counter[1];
    float scale = (float)(1 / (1 - a->p));
    const float *src = a->src;
    float *dst = a->dst;

    for (size_t i = begin; i < end; i++) {
        size_t at = i + a->skip;
        float value;

        if (at % 4 == 0 || i == begin)
            pl_philox(a->key, a->counter[0] + at / 4, high, lanes);
        value = lanes[at % 4] < limit ? 0 : src[i] * scale;
        dst[i] = a->add ? dst[i] + value : value;
    }
}

void PL_CPU(dropout)(const struct pl_dropout_args *a)
{
    pl_pool_parallel(a->n, GRAIN, a->skip ? skip_body : body, (void *)a);
}
