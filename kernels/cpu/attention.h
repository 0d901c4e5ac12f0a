/* SPDX-License-Identifier: MIT */
/* Shared by attention's forward and backward: blocks of queries, packing, tiles of scores.
 *
 * Scores are kept transposed, keys by queries: lanes are queries, so that maxima, sums and the
 * logarithms of sums are vectors and nothing is summed across lanes. A block has up to
 * PL_ATT_QUERIES queries and PL_ATT_KEYS keys. Tiles of PL_MR keys and PL_NR queries that no query
 * sees are skipped; if causal, the products after the scores begin or end at the diagonal.
 *
 * Forward needs 4 and backward 10 batch heads time keys dim operations (half of them if causal) and
 * reads and writes each array once. A thread's scratch is two blocks of scores (147 KB each) and up
 * to three copies of a head's keys. The version before used blocks of 64 queries with all their
 * keys and the general product, which packed keys and values again for each block and skipped no
 * score within its square at the diagonal; it took 1.2 (not causal) to 1.6 times as long. */
#ifndef PL_KERNELS_CPU_ATTENTION_H
#define PL_KERNELS_CPU_ATTENTION_H

#include "kernels/cpu/pack.h"
#include "kernels/cpu/scratch.h"
#include "kernels/pool/pool.h"

#include <float.h>
#include <math.h>

/* Multiples of PL_MR and PL_NR at all levels. */
#define PL_ATT_QUERIES 96
#define PL_ATT_KEYS 384

#define PL_LOG2E 1.44269504088896341f

#define PL_ATT_INLINE static inline __attribute__((always_inline))

/* e^x for x <= 0, as 2^(n + r) with |r| <= 1/2 and a minimax polynomial of degree 5, relative error
 * below 2e-7. Exactly 0 below -88 and for minus infinity; a NaN stays NaN. */
PL_ATT_INLINE pl_vec pl_exp_nonpositive(pl_vec x)
{
    const float magic =
        12582912.0f + 127; /* 1.5 * 2^23, to round by adding it, and the exponent's bias */
    const pl_vec least = (pl_vec){0} - 127;
    pl_vec y = x * PL_LOG2E;
    pl_mask low = (pl_mask)(y < least);
    pl_vec clamped = (pl_vec)(((pl_mask)y & ~low) | ((pl_mask)least & low));
    pl_vec shifted = clamped + magic;
    pl_vec r = clamped - (shifted - magic);
    pl_vec p = r * 1.32647273e-3f + 9.67151299e-3f;

    p = p * r + 5.55073358e-2f;
    p = p * r + 0.240222424f;
    p = p * r + 0.693147004f;
    p = p * r + 1.0f;
    return p * (pl_vec)((pl_mask)shifted << 23); /* the low bits of shifted are n + 127 */
}

/* A block of queries of one head. */
struct pl_att_block {
    const struct pl_attention_args *a;
    size_t t0, n;  /* queries [t0, t0 + n) */
    size_t panels; /* of PL_NR queries */
    size_t k0, kn; /* keys [k0, k0 + kn), without those after the last query */
};

/* The number of queries of a block: blocks of one head are nearly equal. */
static inline size_t pl_att_block_size(size_t time)
{
    size_t blocks = (time + PL_ATT_QUERIES - 1) / PL_ATT_QUERIES;

    return pl_round_up((time + blocks - 1) / blocks, PL_NR);
}

/* Advances to the block's next keys, at first to the first ones; false at the end. */
static inline bool pl_att_next_keys(struct pl_att_block *b)
{
    size_t end = b->a->causal ? b->t0 + b->n : b->a->keys;

    b->k0 += b->kn;
    b->kn = PL_MIN(end - b->k0, (size_t)PL_ATT_KEYS);
    return b->kn > 0;
}

/* Number of the block's keys that rows of queries [i, i + rows) need. */
PL_ATT_INLINE size_t pl_att_seen(const struct pl_att_block *b, size_t i, size_t rows)
{
    size_t end = b->t0 + i + rows;

    if (!b->a->causal)
        return b->kn;
    return end > b->k0 ? PL_MIN(end - b->k0, b->kn) : 0;
}

/* The first panel of queries whose products need the block's keys from i on. A product takes PL_MR
 * queries at once, so it includes keys up to PL_MR - 1 after a panel's last query. */
PL_ATT_INLINE size_t pl_att_first_panel(const struct pl_att_block *b, size_t i)
{
    size_t key = b->k0 + i;

    if (!b->a->causal || key < b->t0 + PL_NR + PL_MR - 1)
        return 0;
    return (key - b->t0 - (PL_MR - 1)) / PL_NR;
}

/* True if some query of panel p does not see some key of the tile at key i. */
PL_ATT_INLINE bool pl_att_masked(const struct pl_att_block *b, size_t i, size_t p)
{
    size_t last = b->k0 + i + PL_MR - 1;

    return last >= b->a->keys || (b->a->causal && last > b->t0 + p * PL_NR);
}

/* A mask of the lanes of vector v of panel p that see the key at i. */
PL_ATT_INLINE pl_mask pl_att_sees(const struct pl_att_block *b, size_t i, size_t p, size_t v)
{
    int32_t first = 0; /* first lane that sees it; no lane sees a key past the end */
    pl_mask lane = {0};

    if (b->k0 + i >= b->a->keys)
        first = PL_LANES;
    else if (b->a->causal && b->k0 + i > b->t0 + p * PL_NR + v * PL_LANES)
        first = (int32_t)PL_MIN(b->k0 + i - (b->t0 + p * PL_NR + v * PL_LANES), (size_t)PL_LANES);
    for (int32_t l = 0; l < PL_LANES; l++)
        lane[l] = l;
    return (pl_mask)(lane >= first);
}

/* Copies rows [0, n) of a [n, dim] as panels [PL_NR rows][dim] with lanes along the rows, zeros
 * after the last one. */
static inline void pl_att_pack_lanes(const float *from, size_t row, size_t n, size_t dim, float *to)
{
    for (size_t p = 0; p < n; p += PL_NR, to += dim * PL_NR)
        for (size_t v = 0; v < PL_NR; v += PL_LANES) {
            size_t first = PL_MIN(p + v, n);

            pl_pack_rows(from + first * row, row, PL_MIN(n - first, (size_t)PL_LANES), dim, to + v,
                         PL_NR);
        }
}

/* Packs a block's queries, times the scale. So a product with keys is the score, of which nothing
 * is rounded again: backward's are forward's, to the bit, and a score that is its row's logarithm
 * of sums has the probability 1, however large it is. */
static inline void pl_att_pack_queries(const struct pl_att_block *b, const float *q, float *to)
{
    const struct pl_attention_args *a = b->a;
    float scale = (float)a->scale;

    pl_att_pack_lanes(q + b->t0 * a->q_at.time, a->q_at.time, b->n, a->dim, to);
    for (size_t i = 0; i < b->panels * PL_NR * a->dim; i++)
        to[i] *= scale;
}

/* As pl_att_pack_lanes(), but as panels [PL_NR of dim][n], lanes along dim, zeros after its end. */
static inline void
pl_att_pack_columns(const float *from, size_t row, size_t n, size_t dim, float *to)
{
    for (size_t d = 0; d < dim; d += PL_NR) {
        size_t width = PL_MIN(dim - d, (size_t)PL_NR);

        for (size_t i = 0; i < n; i++, to += PL_NR) {
            if (width == PL_NR) {
                memcpy(to, from + i * row + d, PL_NR * sizeof(*to));
                continue;
            }
            memset(to, 0, PL_NR * sizeof(*to));
            memcpy(to, from + i * row + d, width * sizeof(*to));
        }
    }
}

/* The PL_MR rows from row i of x [n, dim] on, as a product's left side: in place, or copied to
 * `edge` [PL_MR, dim] with zeros after the last one. Returns their address; *ret_row is their
 * distance. */
static inline const float *pl_att_left(
    const float *x, size_t row, size_t n, size_t i, size_t dim, float *edge, size_t *ret_row)
{
    *ret_row = row;
    if (i + PL_MR <= n)
        return x + i * row;
    *ret_row = dim;
    for (size_t r = 0; r < PL_MR; r++) {
        if (i + r < n)
            memcpy(edge + r * dim, x + (i + r) * row, dim * sizeof(*edge));
        else
            memset(edge + r * dim, 0, dim * sizeof(*edge));
    }
    return edge;
}

#endif
