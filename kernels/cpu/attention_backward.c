/* SPDX-License-Identifier: MIT */
/* Backward after FlashAttention-2 (Dao, arXiv 2307.08691): the probabilities p of a block are
 * recomputed from the rows' logarithms of sums. With dp = dy v^T and mean = dy y per row, ds = p
 * (dp - mean), dv += p^T dy, dk += ds^T q, dq += ds k. */
#include "kernels/cpu/attention.h"
#include "kernels/cpu/lanes.h"

#define ROWS PL_ATT_QUERIES

/* Scratch of one thread. [columns] = [panels of dim][rows][PL_NR], [lanes] = [panels of
 * rows][dim][PL_NR] */
struct work {
    float *p, *ds;             /* [PL_ATT_KEYS][ROWS] */
    float *q_lanes, *dy_lanes; /* of the block's queries; q times the scale */
    float *q, *dy;             /* the same as columns */
    float *k;                  /* columns, of the head */
    float *dq;                 /* [ROWS][width] */
    float *dk, *dv;            /* columns, of the head, rows rounded up to PL_MR */
    float *edge;               /* [PL_MR][dim] */
    size_t width, keys;        /* dim and keys rounded up to PL_NR and PL_MR */
    float lse[ROWS] __attribute__((aligned(64)));
    float mean[ROWS] __attribute__((aligned(64)));
};

/* The arrays of one head. */
struct head {
    const struct pl_attention_args *a;
    const float *q, *k, *v, *y, *dy, *lse;
    float *dq, *dk, *dv;
};

/* p of the tile at key i and panel p. */
PL_ATT_INLINE void score_tile(const struct pl_att_block *b,
                              const struct work *w,
                              const float *k,
                              size_t k_row,
                              size_t i,
                              size_t p)
{
    float *to = w->p + i * ROWS + p * PL_NR;
    bool masked = pl_att_masked(b, i, p);
    pl_vec acc[PL_MR][PL_NV], lse[PL_NV];

    pl_micro(b->a->dim, k, k_row, 1, w->q_lanes + p * b->a->dim * PL_NR, PL_NR, NULL, acc);
#pragma GCC unroll 2
    for (size_t v = 0; v < PL_NV; v++)
        lse[v] = pl_load(w->lse + p * PL_NR + v * PL_LANES);
#pragma GCC unroll 12
    for (size_t r = 0; r < PL_MR; r++)
#pragma GCC unroll 2
        for (size_t v = 0; v < PL_NV; v++) {
            pl_vec s = acc[r][v] - lse[v];
            pl_mask over = (pl_mask)(s > 0); /* rounding error, or overflow of large scores */

            pl_store(to + r * ROWS + v * PL_LANES,
                     pl_exp_nonpositive((pl_vec)((pl_mask)s & ~over)));
        }
    if (masked)
        for (size_t r = 0; r < PL_MR; r++)
            for (size_t v = 0; v < PL_NV; v++) {
                float *at = to + r * ROWS + v * PL_LANES;
                pl_vec e = pl_load(at);

                pl_store(at, (pl_vec)((pl_mask)e & pl_att_sees(b, i + r, p, v)));
            }
}

/* ds of the same tile. */
PL_ATT_INLINE void difference_tile(const struct pl_att_block *b,
                                   const struct work *w,
                                   const float *v_left,
                                   size_t v_row,
                                   size_t i,
                                   size_t p)
{
    const float *probability = w->p + i * ROWS + p * PL_NR;
    float *to = w->ds + i * ROWS + p * PL_NR;
    pl_vec acc[PL_MR][PL_NV], mean[PL_NV];

    pl_micro(b->a->dim, v_left, v_row, 1, w->dy_lanes + p * b->a->dim * PL_NR, PL_NR, NULL, acc);
#pragma GCC unroll 2
    for (size_t v = 0; v < PL_NV; v++)
        mean[v] = pl_load(w->mean + p * PL_NR + v * PL_LANES);
#pragma GCC unroll 12
    for (size_t r = 0; r < PL_MR; r++)
#pragma GCC unroll 2
        for (size_t v = 0; v < PL_NV; v++)
            pl_store(to + r * ROWS + v * PL_LANES,
                     pl_load(probability + r * ROWS + v * PL_LANES) * (acc[r][v] - mean[v]));
}

static void scores(const struct pl_att_block *b, const struct head *h, struct work *w)
{
    const struct pl_attention_args *a = b->a;

    for (size_t i = 0; i < b->kn; i += PL_MR) {
        size_t first = pl_att_first_panel(b, i), row;
        const float *left =
            pl_att_left(h->k, a->k_at.time, a->keys, b->k0 + i, a->dim, w->edge, &row);

        for (size_t p = first; p < b->panels; p++)
            score_tile(b, w, left, row, i, p);
        if (!h->dq && !h->dk)
            continue;
        left = pl_att_left(h->v, a->v_at.time, a->keys, b->k0 + i, a->dim, w->edge, &row);
        for (size_t p = first; p < b->panels; p++)
            difference_tile(b, w, left, row, i, p);
    }
}

/* sums [columns of keys] += x^T y, x = p or ds, y [columns of the block's queries]. */
static void to_keys(
    const struct pl_att_block *b, const struct work *w, const float *x, const float *y, float *sums)
{
    for (size_t d = 0; d < w->width; d += PL_NR)
        for (size_t i = 0; i < b->kn; i += PL_MR) {
            float *to = sums + d * w->keys + (b->k0 + i) * PL_NR;
            pl_vec acc[PL_MR][PL_NV];
            size_t from = 0; /* the first query that sees key i */

            if (b->a->causal && b->k0 + i > b->t0)
                from = b->k0 + i - b->t0;
            pl_micro(b->n - from, x + i * ROWS + from, ROWS, 1, y + d * b->n + from * PL_NR, PL_NR,
                     NULL, acc);
#pragma GCC unroll 12
            for (size_t r = 0; r < PL_MR; r++)
#pragma GCC unroll 2
                for (size_t v = 0; v < PL_NV; v++) {
                    float *at = to + r * PL_NR + v * PL_LANES;

                    pl_store(at, pl_load(at) + acc[r][v]);
                }
        }
}

/* dq = or += ds k. */
static void to_queries(const struct pl_att_block *b, const struct work *w)
{
    for (size_t d = 0; d < w->width; d += PL_NR)
        for (size_t i = 0; i < b->n; i += PL_MR) {
            pl_vec acc[PL_MR][PL_NV];

            pl_micro(pl_att_seen(b, i, PL_MR), w->ds + i, 1, ROWS,
                     w->k + d * b->a->keys + b->k0 * PL_NR, PL_NR, NULL, acc);
#pragma GCC unroll 12
            for (size_t r = 0; r < PL_MR; r++)
#pragma GCC unroll 2
                for (size_t v = 0; v < PL_NV; v++) {
                    float *at = w->dq + (i + r) * w->width + d + v * PL_LANES;

                    pl_store(at, b->k0 > 0 ? pl_load(at) + acc[r][v] : acc[r][v]);
                }
        }
}

/* Packs a block of queries and computes their per-query numbers. */
static void prepare(const struct pl_att_block *b, const struct head *h, struct work *w)
{
    const struct pl_attention_args *a = b->a;
    const float *q = h->q + b->t0 * a->q_at.time, *dy = h->dy + b->t0 * a->dy_at.time;

    pl_att_pack_queries(b, h->q, w->q_lanes);
    if (h->dk)
        pl_att_pack_columns(q, a->q_at.time, b->n, a->dim, w->q);
    if (h->dv)
        pl_att_pack_columns(dy, a->dy_at.time, b->n, a->dim, w->dy);
    memset(w->lse, 0, sizeof(w->lse));
    memset(w->mean, 0, sizeof(w->mean));
    for (size_t t = 0; t < b->n; t++)
        w->lse[t] = h->lse[b->t0 + t];
    if (!h->dq && !h->dk)
        return;
    pl_att_pack_lanes(dy, a->dy_at.time, b->n, a->dim, w->dy_lanes);
    for (size_t t = 0; t < b->n; t++) {
        const float *y = h->y + (b->t0 + t) * a->y_at.time, *dy_row = dy + t * a->dy_at.time;

        w->mean[t] = PL_LANE_SUM(a->dim, dy_row[i] * y[i]);
    }
}

static void
write_row(float *restrict to, const float *restrict from, size_t n, float scale, bool add)
{
    if (add)
        for (size_t i = 0; i < n; i++)
            to[i] += scale * from[i];
    else
        for (size_t i = 0; i < n; i++)
            to[i] = scale * from[i];
}

static void write_columns(const struct work *w,
                          const struct pl_attention_args *a,
                          float *to,
                          size_t row,
                          const float *from,
                          double scale,
                          bool add)
{
    for (size_t d = 0; d < a->dim; d += PL_NR)
        for (size_t j = 0; j < a->keys; j++)
            write_row(to + j * row + d, from + d * w->keys + j * PL_NR,
                      PL_MIN(a->dim - d, (size_t)PL_NR), (float)scale, add);
}

static void one_head(const struct head *h, struct work *w)
{
    const struct pl_attention_args *a = h->a;
    size_t size = pl_att_block_size(a->time);

    if (h->dq)
        pl_att_pack_columns(h->k, a->k_at.time, a->keys, a->dim, w->k);
    if (h->dq && a->keys == 0) /* no key writes it then */
        memset(w->dq, 0, ROWS * w->width * sizeof(*w->dq));
    if (h->dk)
        memset(w->dk, 0, w->width * w->keys * sizeof(*w->dk));
    if (h->dv)
        memset(w->dv, 0, w->width * w->keys * sizeof(*w->dv));
    for (size_t t = 0; t < a->time; t += size) {
        struct pl_att_block b = {.a = a, .t0 = t, .n = PL_MIN(size, a->time - t)};

        b.panels = (b.n + PL_NR - 1) / PL_NR;
        prepare(&b, h, w);
        while (pl_att_next_keys(&b)) {
            scores(&b, h, w);
            if (h->dv)
                to_keys(&b, w, w->p, w->dy, w->dv);
            if (h->dk)
                to_keys(&b, w, w->ds, w->q, w->dk);
            if (h->dq)
                to_queries(&b, w);
        }
        for (size_t i = 0; h->dq && i < b.n; i++)
            write_row(h->dq + (t + i) * a->dq_at.time, w->dq + i * w->width, a->dim,
                      (float)a->scale, a->dq_add);
    }
    if (h->dk)
        write_columns(w, a, h->dk, a->dk_at.time, w->dk, a->scale, a->dk_add);
    if (h->dv)
        write_columns(w, a, h->dv, a->dv_at.time, w->dv, 1, a->dv_add);
}

/* Without memory the result is NaNs. */
static void no_memory(const struct head *h)
{
    pl_scratch_lost();
    for (size_t t = 0; h->dq && t < h->a->time; t++)
        h->dq[t * h->a->dq_at.time] = NAN;
    for (size_t t = 0; t < h->a->keys; t++) {
        if (h->dk)
            h->dk[t * h->a->dk_at.time] = NAN;
        if (h->dv)
            h->dv[t * h->a->dv_at.time] = NAN;
    }
}

static bool reserve(const struct pl_attention_args *a, struct work *w)
{
    size_t width = pl_round_up(a->dim, PL_NR), keys = pl_round_up(a->keys, PL_MR);
    size_t block = ROWS * width;
    const struct {
        float **at;
        size_t n;
    } parts[] = {
        {&w->p, PL_ATT_KEYS * ROWS},
        {&w->ds, PL_ATT_KEYS * ROWS},
        {&w->q_lanes, block},
        {&w->dy_lanes, block},
        {&w->q, block},
        {&w->dy, block},
        {&w->k, width * keys},
        {&w->dq, block},
        {&w->dk, width * keys},
        {&w->dv, width * keys},
        {&w->edge, PL_MR * width},
    };
    size_t total = 0;
    float *memory;

    w->width = width;
    w->keys = keys;
    for (size_t i = 0; i < PL_COUNT(parts); i++)
        total += parts[i].n;
    memory = pl_scratch(PL_SCRATCH_ATTENTION, total * sizeof(*memory));
    for (size_t i = 0; memory && i < PL_COUNT(parts); i++) {
        *parts[i].at = memory;
        memory += parts[i].n;
    }
    return memory;
}

static void heads(void *ctx, size_t begin, size_t end)
{
    const struct pl_attention_args *a = ctx;
    struct work w;
    bool ready = reserve(a, &w);

    for (size_t n = begin; n < end; n++) {
        size_t batch = n / a->heads, index = n % a->heads;
        struct head h = {.a = a, .lse = (const float *)a->lse + n * a->time};

        h.q = (const float *)a->q + batch * a->q_at.batch + index * a->q_at.head;
        h.k = (const float *)a->k + batch * a->k_at.batch + index * a->k_at.head;
        h.v = (const float *)a->v + batch * a->v_at.batch + index * a->v_at.head;
        h.y = (const float *)a->y + batch * a->y_at.batch + index * a->y_at.head;
        h.dy = (const float *)a->dy + batch * a->dy_at.batch + index * a->dy_at.head;
        h.dq = a->dq ? (float *)a->dq + batch * a->dq_at.batch + index * a->dq_at.head : NULL;
        h.dk = a->dk ? (float *)a->dk + batch * a->dk_at.batch + index * a->dk_at.head : NULL;
        h.dv = a->dv ? (float *)a->dv + batch * a->dv_at.batch + index * a->dv_at.head : NULL;
        if (ready)
            one_head(&h, &w);
        else
            no_memory(&h);
    }
}

void PL_CPU(attention_backward)(const struct pl_attention_args *a)
{
    pl_pool_parallel(a->batch * a->heads, 1, heads, (void *)a);
}
