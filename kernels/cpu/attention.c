/* SPDX-License-Identifier: MIT */
/* Forward after FlashAttention-2 (Dao, arXiv 2307.08691): each block of queries goes through the
 * blocks of keys, with a running maximum of the scores and sums relative to it. */
#include "kernels/cpu/attention.h"

#define ROWS PL_ATT_QUERIES

/* Scratch of one thread. */
struct work {
    float *q;    /* [panels][dim][PL_NR], times the scale */
    float *p;    /* scores, then exponentials [PL_ATT_KEYS][ROWS] */
    float *o;    /* [ROWS][dim rounded up to PL_NR], not yet divided by the sums */
    float *v;    /* the head's values, [panels of dim][keys][PL_NR] */
    float *edge; /* [PL_MR][dim] */
    size_t o_row;
    float max[ROWS] __attribute__((aligned(64)));  /* of scores so far */
    float seen[ROWS] __attribute__((aligned(64))); /* of this block of keys */
    float sum[ROWS] __attribute__((aligned(64)));
    float shrink[ROWS] __attribute__((aligned(64))); /* factor of the earlier keys' terms */
};

PL_ATT_INLINE pl_vec larger(pl_vec a, pl_vec b)
{
    pl_mask more = (pl_mask)(b > a);

    return (pl_vec)(((pl_mask)b & more) | ((pl_mask)a & ~more));
}

/* Scores of the tile at key i and panel p. */
PL_ATT_INLINE void score_tile(
    const struct pl_att_block *b, struct work *w, const float *k, size_t k_row, size_t i, size_t p)
{
    float *to = w->p + i * ROWS + p * PL_NR;
    bool masked = pl_att_masked(b, i, p);
    pl_vec acc[PL_MR][PL_NV];

    pl_micro(b->a->dim, k, k_row, 1, w->q + p * b->a->dim * PL_NR, PL_NR, NULL, acc);
    if (masked) {
        const pl_vec nothing = (pl_vec){0} - INFINITY;

        for (size_t r = 0; r < PL_MR; r++)
            for (size_t v = 0; v < PL_NV; v++) {
                pl_mask sees = pl_att_sees(b, i + r, p, v);

                acc[r][v] = (pl_vec)(((pl_mask)acc[r][v] & sees) | ((pl_mask)nothing & ~sees));
                pl_store(to + r * ROWS + v * PL_LANES, acc[r][v]);
            }
    } else {
#pragma GCC unroll 12
        for (size_t r = 0; r < PL_MR; r++)
#pragma GCC unroll 2
            for (size_t v = 0; v < PL_NV; v++)
                pl_store(to + r * ROWS + v * PL_LANES, acc[r][v]);
    }
#pragma GCC unroll 2
    for (size_t v = 0; v < PL_NV; v++) {
        float *at = w->seen + p * PL_NR + v * PL_LANES;
        pl_vec max = pl_load(at);

#pragma GCC unroll 12
        for (size_t r = 0; r < PL_MR; r++)
            max = larger(max, acc[r][v]);
        pl_store(at, max);
    }
}

static void scores(const struct pl_att_block *b, struct work *w, const float *k)
{
    const struct pl_attention_args *a = b->a;

    for (size_t i = 0; i < b->panels * PL_NR; i++)
        w->seen[i] = -FLT_MAX;
    for (size_t i = 0; i < b->kn; i += PL_MR) {
        size_t row;
        const float *left = pl_att_left(k, a->k_at.time, a->keys, b->k0 + i, a->dim, w->edge, &row);

        for (size_t p = pl_att_first_panel(b, i); p < b->panels; p++)
            score_tile(b, w, left, row, i, p);
    }
}

/* Turns scores into exponentials. */
static void exponentials(const struct pl_att_block *b, struct work *w)
{
    for (size_t p = 0; p < b->panels; p++) {
        size_t rows = pl_att_seen(b, p * PL_NR, PL_NR + PL_MR - 1);

        for (size_t v = 0; v < PL_NR; v += PL_LANES) {
            size_t lane = p * PL_NR + v;
            pl_vec old = pl_load(w->max + lane), max = larger(old, pl_load(w->seen + lane));
            pl_vec sum[2] = {{0}}, shrink = pl_exp_nonpositive(old - max);
            float *at = w->p + lane;
            size_t r = 0;

            for (; r + 2 <= rows; r += 2)
#pragma GCC unroll 2
                for (size_t s = 0; s < 2; s++) {
                    pl_vec e = pl_exp_nonpositive(pl_load(at + (r + s) * ROWS) - max);

                    sum[s] += e;
                    pl_store(at + (r + s) * ROWS, e);
                }
            if (r < rows) {
                pl_vec e = pl_exp_nonpositive(pl_load(at + r * ROWS) - max);

                sum[0] += e;
                pl_store(at + r * ROWS, e);
            }
            pl_store(w->max + lane, max);
            pl_store(w->shrink + lane, shrink);
            pl_store(w->sum + lane, pl_load(w->sum + lane) * shrink + (sum[0] + sum[1]));
        }
    }
}

/* o = exponentials times values; or o is rescaled and they are added. */
static void values(const struct pl_att_block *b, struct work *w)
{
    const struct pl_attention_args *a = b->a;

    for (size_t d = 0; d < w->o_row; d += PL_NR)
        for (size_t i = 0; i < b->n; i += PL_MR) {
            pl_vec acc[PL_MR][PL_NV];

            pl_micro(pl_att_seen(b, i, PL_MR), w->p + i, 1, ROWS,
                     w->v + d * a->keys + b->k0 * PL_NR, PL_NR, NULL, acc);
#pragma GCC unroll 12
            for (size_t r = 0; r < PL_MR; r++)
#pragma GCC unroll 2
                for (size_t v = 0; v < PL_NV; v++) {
                    float *to = w->o + (i + r) * w->o_row + d + v * PL_LANES;

                    if (b->k0 > 0)
                        acc[r][v] += pl_load(to) * w->shrink[i + r];
                    pl_store(to, acc[r][v]);
                }
        }
}

static void finish(const struct pl_att_block *b, const struct work *w, float *y, float *lse)
{
    for (size_t i = 0; i < b->n; i++) {
        float *restrict to = y + (b->t0 + i) * b->a->y_at.time, inverse = 1 / w->sum[i];
        const float *restrict o = w->o + i * w->o_row;

        for (size_t d = 0; d < b->a->dim; d++)
            to[d] = b->a->keys ? o[d] * inverse : 0;  /* o is not written without keys */
        lse[b->t0 + i] = w->max[i] + logf(w->sum[i]); /* -INFINITY without keys */
    }
}

static void head(const struct pl_attention_args *a, size_t batch, size_t index, struct work *w)
{
    const float *q = (const float *)a->q + batch * a->q_at.batch + index * a->q_at.head;
    const float *k = (const float *)a->k + batch * a->k_at.batch + index * a->k_at.head;
    const float *v = (const float *)a->v + batch * a->v_at.batch + index * a->v_at.head;
    float *y = (float *)a->y + batch * a->y_at.batch + index * a->y_at.head;
    float *lse = (float *)a->lse + (batch * a->heads + index) * a->time;
    size_t size = pl_att_block_size(a->time);

    pl_att_pack_columns(v, a->v_at.time, a->keys, a->dim, w->v);
    for (size_t t = 0; t < a->time; t += size) {
        struct pl_att_block b = {.a = a, .t0 = t, .n = PL_MIN(size, a->time - t)};

        b.panels = (b.n + PL_NR - 1) / PL_NR;
        pl_att_pack_queries(&b, q, w->q);
        for (size_t i = 0; i < ROWS; i++) {
            w->max[i] =
                -FLT_MAX; /* finite, so that a first block without visible keys gives no NaN */
            w->sum[i] = 0;
        }
        while (pl_att_next_keys(&b)) {
            scores(&b, w, k);
            exponentials(&b, w);
            values(&b, w);
        }
        finish(&b, w, y, lse);
    }
}

static void no_memory(const struct pl_attention_args *a, size_t batch, size_t index)
{
    pl_scratch_lost();
    for (size_t t = 0; t < a->time; t++)
        ((float *)a->y)[batch * a->y_at.batch + t * a->y_at.time + index * a->y_at.head] = NAN;
}

static void heads(void *ctx, size_t begin, size_t end)
{
    const struct pl_attention_args *a = ctx;
    size_t width = pl_round_up(a->dim, PL_NR);
    size_t q = ROWS * a->dim, p = PL_ATT_KEYS * ROWS, o = ROWS * width, v = width * a->keys;
    size_t edge = pl_round_up(PL_MR * a->dim, PL_NR);
    float *memory = pl_scratch(PL_SCRATCH_ATTENTION, (q + p + o + v + edge) * sizeof(*memory));
    struct work w = {.o_row = width};

    if (memory) {
        w.p = memory;
        w.o = w.p + p;
        w.v = w.o + o;
        w.q = w.v + v;
        w.edge = w.q + q;
    }
    for (size_t i = begin; i < end; i++)
        if (memory)
            head(a, i / a->heads, i % a->heads, &w);
        else
            no_memory(a, i / a->heads, i % a->heads);
}

void PL_CPU(attention_forward)(const struct pl_attention_args *a)
{
    pl_pool_parallel(a->batch * a->heads, 1, heads, (void *)a);
}
