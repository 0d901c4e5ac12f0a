/* SPDX-License-Identifier: MIT */
/* Each element is compared with the last of the k first so far, and is seldom inserted: close to
 * one comparison per element, but k in the worst case (ascending numbers). */
#include "kernels/cpu/level.h"
#include "kernels/pool/pool.h"

#define GRAIN 8192

static void one(const struct pl_top_args *a, const float *x, int32_t *index)
{
    size_t step = a->inner;

    for (size_t j = 0; j < a->n; j++) {
        float v = x[j * step];
        size_t at = PL_MIN(j, a->k);

        for (; at > 0; at--) {
            int32_t other = index[(at - 1) * step];

            if (!pl_top_before(a->least, a->nan_first, v, x[(size_t)other * step]))
                break;
            if (at < a->k)
                index[at * step] = other;
        }
        if (at < a->k)
            index[at * step] = (int32_t)j;
    }
}

static void body(void *ctx, size_t begin, size_t end)
{
    const struct pl_top_args *a = ctx;

    for (; begin < end; begin++) {
        size_t o = begin / a->inner, i = begin % a->inner;

        one(a, (const float *)a->x + o * a->n * a->inner + i, a->index + o * a->k * a->inner + i);
    }
}

void PL_CPU(top)(const struct pl_top_args *a)
{
    pl_pool_parallel(a->outer * a->inner, 1 + GRAIN / (a->n + 1), body, (void *)a);
}
