/* SPDX-License-Identifier: MIT */
/* Attention with masks, between different lengths, with fewer heads of keys; rotary positions.
 * Include it after plume/module.h. Values and gradients are PyTorch's. */
#ifndef PL_OPS_ATTENTION_H
#define PL_OPS_ATTENTION_H

#include "plume/ops.h"

#include <errno.h>
#include <math.h>

/* Rotary position embedding (arXiv 2104.09864) of queries or keys x [batch, time, heads dim]: turns
 * pair i of each head by the angle (first + time) base^(-2 i / dim); base is usually 10000. Pairs
 * are elements i and i + dim / 2, as in LLaMA; if `interleaved`, 2 i and 2 i + 1. */
static inline plume_tensor *plume_rotary(struct plume_context *pl,
                                         plume_tensor *x,
                                         size_t heads,
                                         size_t first,
                                         double base,
                                         int interleaved)
{
    struct plume_op_args args = {{(int64_t)heads, (int64_t)first, interleaved}, {base}};

    return plume_op_call(pl, PLUME_OP_ROTARY, &x, 1, &args);
}

/* Zeros are the defaults, except for heads. */
struct plume_attention_how {
    size_t heads;
    size_t
        kv_heads; /* heads of keys and values, each for heads / kv_heads of the queries; 0: heads */
    int causal;   /* the query of time t sees the keys of times 0 to t */
    plume_tensor *mask; /* broadcast to [batch, heads, time, keys]; NULL: none */
    int mask_is_added;  /* the mask is added to the scores; otherwise a query sees where it is not 0
                         */
    double scale;       /* of the scores; 0: 1 / sqrt(dim) */
    double dropout;     /* of the probabilities, in training */
};

/* 1 where key <= query, else 0: [time, keys]. Of sums of ones and zeros, which all types hold. */
static inline plume_tensor *plume_causal_mask(struct plume_context *pl, size_t time, size_t keys)
{
    size_t n = time > keys ? time : keys;
    plume_tensor *upper = plume_cumsum(pl, plume_one_hot(pl, plume_arange(pl, n), n), 1);

    return plume_slice(pl, plume_slice(pl, plume_transpose(pl, upper, 0, 1), 0, 0, time), 1, 0,
                       keys);
}

/* [batch, n, heads dim] as [batch, kv, heads / kv * n, dim]. */
static inline plume_tensor *plume_heads_first(
    struct plume_context *pl, plume_tensor *x, const size_t *shape, size_t heads, size_t kv)
{
    const size_t order[] = {0, 2, 3, 1, 4};
    size_t apart[] = {shape[0], shape[1], kv, heads / kv, shape[2] / heads};
    size_t together[] = {shape[0], kv, heads / kv * shape[1], shape[2] / heads};

    return plume_reshape(pl, plume_permute(pl, plume_reshape(pl, x, 5, apart), order), 4, together);
}

/* Hides from *scores what the masks forbid; *ret_any is 0 for queries that see nothing, or NULL. */
static inline plume_tensor *plume_mask_scores(struct plume_context *pl,
                                              plume_tensor *scores,
                                              const struct plume_attention_how *how,
                                              size_t time,
                                              size_t keys,
                                              plume_tensor **ret_any)
{
    plume_tensor *sees = how->causal ? plume_causal_mask(pl, time, keys) : NULL, *hidden;
    const size_t one = 1;

    *ret_any = NULL;
    if (how->mask && how->mask_is_added)
        scores = plume_add(pl, scores, how->mask);
    else if (how->mask) {
        plume_tensor *zero = plume_full(pl, 1, &one, 0);
        plume_tensor *given = plume_ne(pl, how->mask, zero);

        sees = sees ? plume_mul(pl, sees, given) : given;
        *ret_any = plume_topk(pl, sees, sees ? pl->api->shape(sees, NULL) - 1 : 0, 1, NULL);
        /* Those see all, so that their sums are not 0. */
        sees = plume_maximum(pl, sees, plume_scale(pl, *ret_any, -1, 1));
    }
    if (!sees)
        return scores;
    hidden = plume_full(pl, 1, &one, -HUGE_VAL);
    return plume_where(pl, sees, scores, hidden);
}

/* softmax(scale q k^T) v by heads: q [batch, time, heads dim], k [batch, keys, kv_heads dim], v
 * [batch, keys, kv_heads any]; result [batch, time, heads any]. Another tensor may be attended to
 * (cross attention). A query that a mask of ones and zeros lets see nothing gets 0; one whose added
 * mask is minus infinity throughout gets NaN. Without mask, dropout, scale and fewer heads, and
 * with equal lengths, this is plume_attention_of(); otherwise the probabilities [batch, heads,
 * time, keys] are kept in memory. */
static inline plume_tensor *plume_attention_with(struct plume_context *pl,
                                                 plume_tensor *q,
                                                 plume_tensor *k,
                                                 plume_tensor *v,
                                                 const struct plume_attention_how *how)
{
    size_t qs[PLUME_RANK_MAX] = {0}, ks[PLUME_RANK_MAX] = {0}, vs[PLUME_RANK_MAX] = {0};
    size_t kv, dim;
    plume_tensor *scores, *any, *y;
    double scale;

    if (!q || !k || !v || !how)
        return plume_refuse_null(pl, "attention_with: q, k, v or how is NULL");
    kv = how->kv_heads ? how->kv_heads : how->heads;
    if (pl->api->shape(q, qs) != 3 || pl->api->shape(k, ks) != 3 || how->heads == 0 ||
        how->heads % kv || qs[2] % how->heads || ks[2] % kv || ks[2] / kv != qs[2] / how->heads ||
        ks[0] != qs[0])
        return plume_refuse_two(pl,
                                "attention_with: wanted: q [batch, time, heads dim], k [batch, "
                                "keys, kv_heads dim], and kv_heads divides heads",
                                q, k);
    if (pl->api->shape(v, vs) != 3 || vs[2] % kv || ks[1] != vs[1] || vs[0] != qs[0])
        return plume_refuse_two(pl,
                                "attention_with: wanted: k [batch, keys, kv_heads dim], v [batch, "
                                "keys, kv_heads any]",
                                k, v);
    dim = qs[2] / how->heads;
    if (!how->mask && how->dropout <= 0 && how->scale == 0 && kv == how->heads && qs[1] == ks[1] &&
        ks[2] == vs[2])
        return plume_attention_of(pl, q, k, v, how->heads, how->causal);
    /* Before the product, which may have numbers that f16 has not, where the scores have none. */
    scale = how->scale != 0 ? how->scale : 1 / sqrt((double)dim);
    q = scale < 1 ? plume_scale(pl, q, scale, 0) : q;
    q = plume_heads_first(pl, q, qs, how->heads, kv);
    k = plume_heads_first(pl, k, ks, kv, kv);
    v = plume_heads_first(pl, v, vs, kv, kv);
    scores = plume_matmul(pl, q, k, 0, 1);
    scores = scale > 1 ? plume_scale(pl, scores, scale, 0) : scores;
    {
        size_t by_head[] = {qs[0], how->heads, qs[1], ks[1]};
        size_t by_kv[] = {qs[0], kv, how->heads / kv * qs[1], ks[1]};

        scores = plume_reshape(pl, scores, 4, by_head);
        scores = plume_softmax(pl, plume_mask_scores(pl, scores, how, qs[1], ks[1], &any));
        scores = plume_reshape(pl, plume_dropout(pl, scores, how->dropout), 4, by_kv);
    }
    y = plume_matmul(pl, scores, v, 0, 0); /* [batch, kv, heads / kv * time, any] */
    {
        size_t by_head[] = {qs[0], how->heads, qs[1], vs[2] / kv};
        size_t joined[] = {qs[0], qs[1], how->heads * (vs[2] / kv)};

        y = plume_reshape(pl, y, 4, by_head);
        if (any)
            y = plume_mul(pl, y, any);
        return plume_reshape(pl, plume_transpose(pl, y, 1, 2), 3, joined);
    }
}

#endif
