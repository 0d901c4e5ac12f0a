/* SPDX-License-Identifier: MIT */
/* Bound by memory. Chunks are whole repetitions of b, or pieces of one if b is not repeated. */
#include "kernels/cpu/lanes.h"
#include "kernels/cpu/level.h"
#include "kernels/pool/pool.h"

#include <string.h>

#define GRAIN 32768
/* Repetitions whose terms are added up apart: rounding grows with these and their number. */
#define TIMES 256
#define FEW (GRAIN / TIMES) /* elements of b at most in a chunk, if there are more repetitions */

#define BY_OP(op, add, sub, mul, div)                                                              \
    switch (op) {                                                                                  \
    case PL_BINARY_ADD:                                                                            \
        add;                                                                                       \
        break;                                                                                     \
    case PL_BINARY_SUB:                                                                            \
        sub;                                                                                       \
        break;                                                                                     \
    case PL_BINARY_MUL:                                                                            \
        mul;                                                                                       \
        break;                                                                                     \
    case PL_BINARY_DIV:                                                                            \
        div;                                                                                       \
        break;                                                                                     \
    }

#define EACH(statement)                                                                            \
    for (size_t i = 0; i < n; i++)                                                                 \
    statement

static void forward_run(enum pl_binary op,
                        size_t n,
                        const float *restrict a,
                        const float *restrict b,
                        float *restrict y)
{
    BY_OP(op, EACH(y[i] = a[i] + b[i]), EACH(y[i] = a[i] - b[i]), EACH(y[i] = a[i] * b[i]),
          EACH(y[i] = a[i] / b[i]))
}

static void forward_scalar(
    enum pl_binary op, size_t n, const float *restrict a, const float b, float *restrict y)
{
    BY_OP(op, EACH(y[i] = a[i] + b), EACH(y[i] = a[i] - b), EACH(y[i] = a[i] * b),
          EACH(y[i] = a[i] / b))
}

/* Calls run for each piece of [begin, end) in which b's index rises without a jump. */
static void forward(void *ctx, size_t begin, size_t end)
{
    const struct pl_binary_args *p = ctx;
    const float *a = p->a, *b = p->b;
    float *y = p->y;

    if (p->m == 1) {
        forward_scalar(p->op, end - begin, a + begin, b[0], y + begin);
        return;
    }
    while (begin < end) {
        size_t at = begin % p->m, n = PL_MIN(p->m - at, end - begin);

        forward_run(p->op, n, a + begin, b + at, y + begin);
        begin += n;
    }
}

void PL_CPU(binary_forward)(const struct pl_binary_args *a)
{
    pl_pool_parallel(a->n, GRAIN, forward, (void *)a);
}

static void da_run(enum pl_binary op,
                   bool add,
                   size_t n,
                   const float *restrict dy,
                   const float *restrict b,
                   size_t step,
                   float *restrict da)
{
    const float one = b[0];

    if (op == PL_BINARY_ADD || op == PL_BINARY_SUB) {
        if (add)
            EACH(da[i] += dy[i]);
        else
            EACH(da[i] = dy[i]);
    } else if (step == 0 && op == PL_BINARY_MUL) {
        if (add)
            EACH(da[i] += dy[i] * one);
        else
            EACH(da[i] = dy[i] * one);
    } else if (step == 0) { /* 1 / one may be infinite */
        if (add)
            EACH(da[i] += dy[i] / one);
        else
            EACH(da[i] = dy[i] / one);
    } else if (op == PL_BINARY_MUL) {
        if (add)
            EACH(da[i] += dy[i] * b[i]);
        else
            EACH(da[i] = dy[i] * b[i]);
    } else {
        if (add)
            EACH(da[i] += dy[i] / b[i]);
        else
            EACH(da[i] = dy[i] / b[i]);
    }
}

static void backward_a(void *ctx, size_t begin, size_t end)
{
    const struct pl_binary_args *p = ctx;
    const float *dy = p->dy, *b = p->b;
    float *da = p->da;

    while (begin < end) {
        size_t at = begin % p->m, n = p->m == 1 ? end - begin : PL_MIN(p->m - at, end - begin);

        da_run(p->op, p->da_add, n, dy + begin, b + at, p->m == 1 ? 0 : 1, da + begin);
        begin += n;
    }
}

/* Adds the terms of n elements of db from `begin` on, of repetitions [first, end), in order. */
static void add_terms(const struct pl_binary_args *p,
                      size_t first,
                      size_t end,
                      size_t begin,
                      size_t n,
                      float *restrict db)
{
    const float *restrict b = (const float *)p->b + begin;

    for (size_t at = first * p->m + begin; first < end; first++, at += p->m) {
        const float *restrict dy = (const float *)p->dy + at, *restrict a =
                                                                  (const float *)p->a + at;

        BY_OP(p->op, EACH(db[i] += dy[i]), EACH(db[i] -= dy[i]), EACH(db[i] += dy[i] * a[i]),
              EACH(db[i] -= dy[i] * (a[i] / b[i] / b[i])))
    }
}

/* db's elements [begin, end), summed over all repetitions. */
static void backward_b(void *ctx, size_t begin, size_t end)
{
    const struct pl_binary_args *p = ctx;
    float *restrict db = (float *)p->db + begin, sums[FEW];
    size_t n = end - begin, times = p->n / p->m;

    if (!p->db_add)
        EACH(db[i] = 0);
    if (times <= TIMES) {
        add_terms(p, 0, times, begin, n, db);
        return;
    }
    for (size_t first = 0; first < times; first += TIMES) {
        memset(sums, 0, n * sizeof(*sums));
        add_terms(p, first, PL_MIN(first + TIMES, times), begin, n, sums);
        EACH(db[i] += sums[i]);
    }
}

static void backward_scalar(const struct pl_binary_args *p)
{
    const float *restrict a = p->a, *restrict dy = p->dy;
    float b = *(const float *)p->b, *db = p->db, sum = 0;

    BY_OP(p->op, sum = PL_LANE_SUM(p->n, dy[i]), sum = -PL_LANE_SUM(p->n, dy[i]),
          sum = PL_LANE_SUM(p->n, dy[i] * a[i]), sum = -PL_LANE_SUM(p->n, dy[i] * (a[i] / b / b)))
    *db = p->db_add ? *db + sum : sum;
}

void PL_CPU(binary_backward)(const struct pl_binary_args *a)
{
    if (a->da)
        pl_pool_parallel(a->n, GRAIN, backward_a, (void *)a);
    if (a->db && a->m == 1)
        backward_scalar(a);
    else if (a->db)
        pl_pool_parallel(a->m, PL_MAX(GRAIN / (a->n / a->m), (size_t)64), backward_b, (void *)a);
}
