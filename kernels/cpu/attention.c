/* SPDX-License-Identifier: MIT */
/* A head at a time, in blocks of queries: the scores of a block with all its keys stay in a
 * thread's scratch, between two products that run while they are in the cache. */
#include "kernels/cpu/lanes.h"
#include "kernels/cpu/scratch.h"
#include "kernels/cpu/vmath.h"
#include "kernels/pool.h"

#include <math.h>

#define BLOCK 64 /* queries */

struct head {
    const struct pl_attention_args *a;
    const float *q, *k, *v, *dy;
    float *y, *lse, *dq, *dk, *dv;
    size_t y_row;
};

static struct head head_of(const struct pl_attention_args *a, size_t index)
{
    size_t b = index / a->heads, h = index % a->heads;
    size_t at = b * a->time * a->row + h * a->dim;
    size_t y = b * a->time * a->heads * a->dim + h * a->dim;

    return (struct head){
        .a = a,
        .q = (const float *)a->q + at,
        .k = (const float *)a->k + at,
        .v = (const float *)a->v + at,
        .dy = a->dy ? (const float *)a->dy + y : NULL,
        .y = (float *)a->y + y,
        .lse = (float *)a->lse + index * a->time,
        .dq = a->dq ? (float *)a->dq + at : NULL,
        .dk = a->dk ? (float *)a->dk + at : NULL,
        .dv = a->dv ? (float *)a->dv + at : NULL,
        .y_row = a->heads * a->dim,
    };
}

/* c [m, n] = or += scale a b; b is [k, n], or given as its transpose. */
static void product(size_t m,
                    size_t n,
                    size_t k,
                    const float *a,
                    size_t a_row,
                    size_t a_col,
                    const float *b,
                    size_t b_row,
                    size_t b_col,
                    float *c,
                    size_t ldc,
                    double scale,
                    bool add)
{
    PL_CPU(gemm)
    (&(struct pl_gemm){.m = m,
                       .n = n,
                       .k = k,
                       .a = a,
                       .a_row = a_row,
                       .a_col = a_col,
                       .b = b,
                       .b_row = b_row,
                       .b_col = b_col,
                       .c = c,
                       .ldc = ldc,
                       .scale = (float)scale,
                       .add = add});
}

static size_t keys_of(const struct pl_attention_args *a, size_t begin, size_t count)
{
    return a->causal ? begin + count : a->time;
}

/* s [count, keys] = scale q k^T, of queries begin .. */
static void scores(const struct head *h, size_t begin, size_t count, size_t keys, float *s)
{
    const struct pl_attention_args *a = h->a;

    product(count, keys, a->dim, h->q + begin * a->row, a->row, 1, h->k, 1, a->row, s, keys,
            a->scale, false);
}

/* Scores to exponentials; returns their logarithm's sum, and 1 over the sum in *ret_inverse. */
static float row_exp(float *restrict s, size_t n, float *ret_inverse)
{
    float max = s[0], sum;

    for (size_t i = 1; i < n; i++)
        max = s[i] > max ? s[i] : max;
    for (size_t i = 0; i < n; i++)
        s[i] = pl_exp(s[i] - max);
    sum = PL_LANE_SUM(n, s[i]);
    *ret_inverse = 1 / sum;
    return max + logf(sum);
}

static void forward_block(const struct head *h, size_t begin, size_t count, float *s)
{
    const struct pl_attention_args *a = h->a;
    size_t keys = keys_of(a, begin, count);
    float inverse[BLOCK];

    scores(h, begin, count, keys, s);
    for (size_t r = 0; r < count; r++) {
        size_t n = a->causal ? begin + r + 1 : keys;
        float *row = s + r * keys;

        h->lse[begin + r] = row_exp(row, n, &inverse[r]);
        for (size_t j = n; j < keys; j++)
            row[j] = 0;
    }
    product(count, a->dim, keys, s, keys, 1, h->v, a->row, 1, h->y + begin * h->y_row, h->y_row, 1,
            false);
    for (size_t r = 0; r < count; r++)
        for (size_t d = 0; d < a->dim; d++)
            h->y[(begin + r) * h->y_row + d] *= inverse[r];
}

/* p to ds = p (dp - dy y), both [n]. */
static void row_back(float *restrict p, float *restrict dp, size_t n, float mean)
{
    for (size_t j = 0; j < n; j++)
        dp[j] = p[j] * (dp[j] - mean);
}

static void backward_block(const struct head *h, size_t begin, size_t count, float *p, bool first)
{
    const struct pl_attention_args *a = h->a;
    size_t keys = keys_of(a, begin, count);
    const float *dy = h->dy + begin * h->y_row, *y = h->y + begin * h->y_row;
    float *dp = p + count * keys;

    scores(h, begin, count, keys, p);
    product(count, keys, a->dim, dy, h->y_row, 1, h->v, 1, a->row, dp, keys, 1, false);
    for (size_t r = 0; r < count; r++) {
        size_t n = a->causal ? begin + r + 1 : keys;
        const float *dy_row = dy + r * h->y_row, *y_row = y + r * h->y_row;
        float lse = h->lse[begin + r], *row = p + r * keys;

        for (size_t j = 0; j < n; j++)
            row[j] = pl_exp(row[j] - lse);
        row_back(row, dp + r * keys, n, PL_LANE_SUM(a->dim, dy_row[i] * y_row[i]));
        for (size_t j = n; j < keys; j++)
            row[j] = dp[r * keys + j] = 0;
    }
    if (h->dv)
        product(keys, a->dim, count, p, 1, keys, dy, h->y_row, 1, h->dv, a->row, 1,
                a->dv_add || !first);
    if (h->dq)
        product(count, a->dim, keys, dp, keys, 1, h->k, a->row, 1, h->dq + begin * a->row, a->row,
                a->scale, a->dq_add);
    if (h->dk)
        product(keys, a->dim, count, dp, 1, keys, h->q + begin * a->row, a->row, 1, h->dk, a->row,
                a->scale, a->dk_add || !first);
}

static void forward(void *ctx, size_t begin, size_t end)
{
    const struct pl_attention_args *a = ctx;
    float *s = pl_scratch(PL_SCRATCH_ATTENTION, BLOCK * a->time * sizeof(*s));

    for (size_t i = begin; i < end; i++) {
        struct head h = head_of(a, i);

        for (size_t t = 0; t < a->time; t += BLOCK)
            if (s)
                forward_block(&h, t, PL_MIN((size_t)BLOCK, a->time - t), s);
            else
                h.y[t * h.y_row] = NAN;
    }
}

/* The last block has all keys, so it writes all of dk and dv, to which the others add. */
static void backward(void *ctx, size_t begin, size_t end)
{
    const struct pl_attention_args *a = ctx;
    float *p = pl_scratch(PL_SCRATCH_ATTENTION, 2 * BLOCK * a->time * sizeof(*p));
    size_t last = (a->time - 1) / BLOCK * BLOCK;

    for (size_t i = begin; i < end; i++) {
        struct head h = head_of(a, i);

        for (size_t t = last + BLOCK; t > 0; t -= BLOCK)
            if (p)
                backward_block(&h, t - BLOCK, PL_MIN((size_t)BLOCK, a->time - (t - BLOCK)), p,
                               t - BLOCK == last);
            else if (h.dv)
                h.dv[0] = NAN;
    }
}

void PL_CPU(attention_forward)(const struct pl_attention_args *a)
{
    pl_pool_parallel(a->batch * a->heads, 1, forward, (void *)a);
}

void PL_CPU(attention_backward)(const struct pl_attention_args *a)
{
    pl_pool_parallel(a->batch * a->heads, 1, backward, (void *)a);
}
