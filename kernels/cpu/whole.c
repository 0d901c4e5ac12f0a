/* SPDX-License-Identifier: MIT */
#include "kernels/cpu/level.h"
#include "kernels/pool/pool.h"

#define GRAIN 8192

/* Elements first .. first + n - 1, whose b's follow each other, or are all b[0]. */
static inline void
part(const struct pl_whole_args *a, size_t first, size_t n, const int32_t *b, const bool same)
{
    const int32_t *x = a->a + first;

    if (a->op < PL_WHOLE_LT)
        for (size_t i = 0; i < n; i++)
            a->y[first + i] = pl_whole_number(a->op, x[i], b[same ? 0 : i]);
    else
        for (size_t i = 0; i < n; i++)
            ((float *)a->real)[first + i] = (float)pl_whole_value(a->op, x[i], b[same ? 0 : i]);
}

static void body(void *ctx, size_t begin, size_t end)
{
    const struct pl_whole_args *a = ctx;

    while (begin < end) {
        size_t at = begin % a->m, n = a->m == 1 ? end - begin : PL_MIN(end - begin, a->m - at);

        if (a->m == 1)
            part(a, begin, n, a->b, true);
        else
            part(a, begin, n, a->b + at, false);
        begin += n;
    }
}

void PL_CPU(whole)(const struct pl_whole_args *a)
{
    pl_pool_parallel(a->n, GRAIN, body, (void *)a);
}
