/* SPDX-License-Identifier: MIT */
/* Blocked product after Goto and van de Geijn (ACM TOMS 34(3), 2008): all threads pack KC rows of B
 * into panels of PL_NR columns, then each thread packs blocks of A and multiplies. If packing costs
 * more than it saves (few rows or few columns), the matrix is read in place. */
#include "kernels/cpu/pack.h"
#include "kernels/cpu/scratch.h"
#include "kernels/pool/pool.h"

/* The rows of a block. On a Zen 4 with 16 lanes 384 is faster than 256 by 0 to 4 %, though a panel
 * of B then exceeds the L1; at 8 lanes it is the fastest of 256, 384 and 512 by 1 to 3 %. */
#define KC 384
#define MC (24 * PL_MR)
#define NC 4096
#define FEW_ROWS (2 * PL_MR)    /* with fewer, B is not packed */
#define FEW_COLS PL_NR          /* with fewer, A is not packed */
#define SMALL ((size_t)1 << 16) /* minimum of multiply-adds per chunk for another thread */
#define GROUP 8                 /* panels of B that are packed together */
#define AHEAD 16                /* rows that packing prefetches: they are a page or more apart */
#define LINE 16                 /* floats of a cache line */

/* The product of columns [j0, j0 + n) and of [k0, k0 + k), for all rows. */
struct block {
    const struct pl_gemm *g;
    size_t j0, n, k0, k;
    size_t mc, split, parts; /* rows of a chunk; panels of a part; parts of the columns */
    size_t a_panel;          /* floats from one panel of a packed A to the next */
    float *packed;           /* B, or NULL */
    float scale;
    bool last;
};

/* Packs columns [j, j + PL_NR) of B, zeros past its end. */
static void pack_b(const struct pl_gemm *g, size_t k0, size_t k_count, size_t j, float *panel)
{
    size_t width = PL_MIN(g->n - j, (size_t)PL_NR);
    const float *b = g->b + k0 * g->b_row + j * g->b_col;

    if (g->b_col == 1 && width == PL_NR) {
        for (size_t k = 0; k < k_count; k++)
            memcpy(panel + k * PL_NR, b + k * g->b_row, PL_NR * sizeof(*panel));
    } else if (g->b_col == 1) {
        memset(panel, 0, k_count * PL_NR * sizeof(*panel));
        for (size_t k = 0; k < k_count; k++)
            memcpy(panel + k * PL_NR, b + k * g->b_row, width * sizeof(*panel));
    } else {
        for (size_t v = 0; v < PL_NV; v++) {
            size_t from = PL_MIN(v * PL_LANES, width);

            pl_pack_rows(b + from * g->b_col, g->b_col, PL_MIN(width - from, (size_t)PL_LANES),
                         k_count, panel + v * PL_LANES, PL_NR);
        }
    }
}

/* Packs GROUP panels of a B with unit column stride: long pieces of rows are read; panel by panel
 * each line would come from another page. */
static void pack_b_group(const struct pl_gemm *g, size_t k0, size_t k_count, size_t j, float *to)
{
    const float *b = g->b + k0 * g->b_row + j;

    for (size_t k = 0; k < k_count; k++) {
        const float *row = b + k * g->b_row;

        for (size_t p = 0; p < GROUP; p++)
            __builtin_prefetch(row + AHEAD * g->b_row + p * PL_NR);
        for (size_t p = 0; p < GROUP; p++)
            memcpy(to + (p * k_count + k) * PL_NR, row + p * PL_NR, PL_NR * sizeof(*to));
    }
}

/* pack_a() for an A with unit row stride: one column for all panels at a time. */
static void pack_columns(const struct block *b, size_t i, size_t mc, float *to)
{
    const struct pl_gemm *g = b->g;
    size_t rest = mc % PL_MR, whole = mc - rest;

    for (size_t k = 0; k < b->k; k++) {
        const float *a = g->a + i + (b->k0 + k) * g->a_col;
        float *at = to + k * PL_MR;

        for (size_t r = 0; r < mc; r += 64 / sizeof(*a))
            __builtin_prefetch(a + AHEAD * g->a_col + r);
        for (size_t r = 0; r < whole; r += PL_MR, at += b->a_panel)
            memcpy(at, a + r, PL_MR * sizeof(*at));
        if (rest) {
            memset(at, 0, PL_MR * sizeof(*at));
            memcpy(at, a + whole, rest * sizeof(*at));
        }
    }
}

/* Packs rows [i, i + mc) of A as panels of PL_MR rows, zeros past its end. */
static void pack_a(const struct block *b, size_t i, size_t mc, float *to)
{
    const struct pl_gemm *g = b->g;

    if (g->a_col != 1) {
        pack_columns(b, i, mc, to);
        return;
    }
    for (size_t r = 0; r < mc; r += PL_MR, to += b->a_panel)
        pl_pack_rows(g->a + (i + r) * g->a_row + b->k0, g->a_row, PL_MIN(mc - r, (size_t)PL_MR),
                     b->k, to, PL_MR);
}

static inline __attribute__((always_inline)) pl_vec activate(pl_vec x, bool relu)
{
    return relu ? (pl_vec)((pl_mask)x & ~(pl_mask)(x <= 0)) : x; /* a NaN stays NaN */
}

/* The rows of a tile that crosses C's edge, or has a bias per row. */
static void
store_rows(const struct block *b, pl_vec acc[PL_MR][PL_NV], size_t i, size_t height, size_t j)
{
    const struct pl_gemm *g = b->g;
    size_t width = PL_MIN(g->n - j, (size_t)PL_NR);
    float bias[PL_NR] = {0}, row[PL_NR] = {0};

    if (b->last && g->bias)
        memcpy(bias, g->bias + j, width * sizeof(*bias));
    for (size_t r = 0; r < height; r++) {
        float *c = g->c + (i + r) * g->ldc + j;
        float row_bias = b->last && g->row_bias ? g->row_bias[i + r] : 0;

        if (g->add || b->k0 > 0)
            memcpy(row, c, width * sizeof(*row));
        for (size_t v = 0; v < PL_NV; v++) {
            float *at = row + v * PL_LANES;
            pl_vec x =
                acc[r][v] * b->scale + pl_load(at) + (pl_load(bias + v * PL_LANES) + row_bias);

            pl_store(at, activate(x, b->last && g->relu));
        }
        memcpy(c, row, width * sizeof(*c));
        memset(row, 0, sizeof(row));
    }
}

/* Stores the tile at rows i, columns j. */
static inline __attribute__((always_inline)) void
store(const struct block *b, pl_vec acc[PL_MR][PL_NV], size_t i, size_t height, size_t j)
{
    const struct pl_gemm *g = b->g;
    size_t ldc = g->ldc;
    float *c = g->c + i * ldc + j;
    bool add = g->add || b->k0 > 0, relu = b->last && g->relu;
    pl_vec bias[PL_NV] = {{0}};

    if (height < PL_MR || g->n - j < PL_NR || (b->last && g->row_bias)) {
        store_rows(b, acc, i, height, j);
        return;
    }
    if (b->scale != 1)
#pragma GCC unroll 12
        for (size_t r = 0; r < PL_MR; r++)
#pragma GCC unroll 4
            for (size_t v = 0; v < PL_NV; v++)
                acc[r][v] *= b->scale;
    if (b->last && g->bias)
#pragma GCC unroll 4
        for (size_t v = 0; v < PL_NV; v++)
            bias[v] = pl_load(g->bias + j + v * PL_LANES);
    if (add) {
#pragma GCC unroll 12
        for (size_t r = 0; r < PL_MR; r++)
#pragma GCC unroll 4
            for (size_t v = 0; v < PL_NV; v++)
                acc[r][v] += pl_load(c + r * ldc + v * PL_LANES);
    }
#pragma GCC unroll 12
    for (size_t r = 0; r < PL_MR; r++)
#pragma GCC unroll 4
        for (size_t v = 0; v < PL_NV; v++)
            pl_store(c + r * ldc + v * PL_LANES, activate(acc[r][v] + bias[v], relu));
}

/* One panel of B against the rows [i0, i0 + mc) of A, packed or in place. */
static void panel(const struct block *b,
                  const float *packed_a,
                  const float *y,
                  size_t y_row,
                  size_t i0,
                  size_t mc,
                  size_t j)
{
    const struct pl_gemm *g = b->g;
    pl_vec acc[PL_MR][PL_NV];

    for (size_t i = 0; i < mc; i += PL_MR) {
        size_t height = PL_MIN(mc - i, (size_t)PL_MR);

        /* Without this store() waits for the memory's tile, 5 % of the time at 16 lanes; at 8 lanes
         * it costs 1 %. */
        for (size_t r = 0; PL_LANES > 8 && r < height; r++)
            for (size_t v = 0; v < PL_NR; v += LINE)
                __builtin_prefetch(g->c + (i0 + i + r) * g->ldc + j + v, 1);
        if (packed_a && y_row == PL_NR) {
            pl_micro(b->k, packed_a + i / PL_MR * b->a_panel, 1, PL_MR, y, PL_NR, NULL, acc);
        } else if (packed_a) {
            pl_micro(b->k, packed_a + i / PL_MR * b->a_panel, 1, PL_MR, y, y_row, NULL, acc);
        } else {
            float rest[PL_MR * KC];
            const float *a = g->a + (i0 + i) * g->a_row + b->k0 * g->a_col;

            if (height == PL_MR) {
                pl_micro(b->k, a, g->a_row, g->a_col, y, y_row, NULL, acc);
            } else {
                for (size_t k = 0; k < b->k; k++)
                    for (size_t r = 0; r < PL_MR; r++)
                        rest[k * PL_MR + r] = r < height ? a[r * g->a_row + k * g->a_col] : 0;
                pl_micro(b->k, rest, 1, PL_MR, y, y_row, NULL, acc);
            }
        }
        store(b, acc, i0 + i, height, j);
    }
}

/* Chunk number = (block of rows) * parts + (part of the columns). */
static void multiply(void *ctx, size_t begin, size_t end)
{
    const struct block *b = ctx;
    const struct pl_gemm *g = b->g;
    float own[KC * PL_NR] __attribute__((aligned(64)));

    for (size_t chunk = begin; chunk < end; chunk++) {
        size_t i0 = chunk / b->parts * b->mc, mc = PL_MIN(g->m - i0, b->mc);
        size_t p0 = chunk % b->parts * b->split;
        size_t panels = (b->n + PL_NR - 1) / PL_NR, p1 = PL_MIN(p0 + b->split, panels);
        float *packed_a = NULL;

        if (b->n > FEW_COLS)
            packed_a = pl_scratch(PL_SCRATCH_GEMM_A,
                                  ((b->mc / PL_MR + 1) * b->a_panel + PL_LANES) * sizeof(float));
        if (packed_a)
            pack_a(b, i0, mc, packed_a);
        for (size_t p = p0; p < p1; p++) {
            size_t j = b->j0 + p * PL_NR;
            const float *y = own;
            size_t y_row = PL_NR;

            if (b->packed) {
                y = b->packed + p * PL_NR * b->k;
            } else if (g->b_col == 1 && g->m <= FEW_ROWS && g->n - j >= PL_NR) {
                y = g->b + b->k0 * g->b_row + j;
                y_row = g->b_row;
            } else {
                pack_b(g, b->k0, b->k, j, own);
            }
            panel(b, packed_a, y, y_row, i0, mc, j);
        }
        if (b->last && g->done)
            g->done(g, i0, mc, b->j0 + p0 * PL_NR, PL_MIN(b->n, p1 * PL_NR) - p0 * PL_NR);
    }
}

static void pack_panels(void *ctx, size_t begin, size_t end)
{
    const struct block *b = ctx;

    for (size_t p = begin; p < end;) {
        size_t j = b->j0 + p * PL_NR;
        float *to = b->packed + p * PL_NR * b->k;

        if (b->g->b_col == 1 && end - p >= GROUP && b->g->n - j >= (size_t)GROUP * PL_NR) {
            pack_b_group(b->g, b->k0, b->k, j, to);
            p += GROUP;
        } else {
            pack_b(b->g, b->k0, b->k, j, to);
            p++;
        }
    }
}

/* Enough chunks for all threads; their borders do not change the result's bits. */
static void share(struct block *b)
{
    const struct pl_gemm *g = b->g;
    size_t panels = (b->n + PL_NR - 1) / PL_NR, threads = pl_pool_threads();
    size_t most = PL_MAX(g->m * b->n * b->k / SMALL, (size_t)1), want, blocks;

    want = threads == 1 ? 1 : PL_MIN(4 * threads, most);
    b->mc = PL_MIN((size_t)MC, (g->m / want + PL_MR) / PL_MR * PL_MR);
    b->mc = PL_MAX(b->mc, (size_t)4 * PL_MR);
    blocks = (g->m + b->mc - 1) / b->mc;
    b->parts = PL_MIN((want + blocks - 1) / blocks, panels);
    b->split = (panels + b->parts - 1) / b->parts;
    b->parts = (panels + b->split - 1) / b->split;
    pl_pool_parallel(blocks * b->parts, 1, multiply, b);
}

/* A product with so few rows that packing B, which they share, costs as much as the product. C^T =
 * B^T A^T reads B in place, once, and packs A. */
static bool is_flat(const struct pl_gemm *g)
{
    bool in_place = g->m <= FEW_ROWS && g->b_col == 1;

    return g->m > FEW_COLS / 2 && g->m <= FEW_COLS && !in_place && !g->row_bias &&
           g->n >= 4 * FEW_COLS && g->k >= PL_NR;
}

struct turned {
    const struct pl_gemm *g;
    const float *t; /* C^T, in rows of FEW_COLS */
};

/* Writes rows [i, i + PL_LANES) of C from column j on. */
static void turn_block(const struct turned *turned, size_t i, size_t j)
{
    const struct pl_gemm *g = turned->g;
    size_t width = PL_MIN(g->n - j, (size_t)PL_LANES), height = PL_MIN(g->m - i, (size_t)PL_LANES);
    float bias[PL_LANES] = {0}, row[PL_LANES] = {0};
    pl_vec r[PL_LANES];

    for (size_t l = 0; l < PL_LANES; l++)
        r[l] = pl_load(turned->t + (j + l) * FEW_COLS + i);
    pl_transpose(r);
    if (g->bias)
        memcpy(bias, g->bias + j, width * sizeof(*bias));
    if (width == PL_LANES) {
        for (size_t l = 0; l < height; l++) {
            float *c = g->c + (i + l) * g->ldc + j;
            pl_vec x = r[l] + (g->add ? pl_load(c) : (pl_vec){0}) + pl_load(bias);

            pl_store(c, activate(x, g->relu));
        }
        return;
    }
    for (size_t l = 0; l < height; l++) {
        float *c = g->c + (i + l) * g->ldc + j;

        if (g->add)
            memcpy(row, c, width * sizeof(*row));
        pl_store(row, activate(r[l] + pl_load(row) + pl_load(bias), g->relu));
        memcpy(c, row, width * sizeof(*c));
        memset(row, 0, sizeof(row));
    }
}

/* Blocks of PL_LANES columns. */
static void turn(void *ctx, size_t begin, size_t end)
{
    const struct turned *turned = ctx;
    const struct pl_gemm *g = turned->g;

    for (size_t block = begin; block < end; block++)
        for (size_t i = 0; i < g->m; i += PL_LANES)
            turn_block(turned, i, block * PL_LANES);
    if (g->done)
        g->done(g, 0, g->m, begin * PL_LANES, PL_MIN(end * PL_LANES, g->n) - begin * PL_LANES);
}

/* False if there is no memory for it. */
static bool multiply_turned(const struct pl_gemm *g)
{
    size_t blocks = (g->n + PL_LANES - 1) / PL_LANES;
    float *t = pl_scratch(PL_SCRATCH_GEMM_C, blocks * PL_LANES * FEW_COLS * sizeof(*t));
    struct turned turned = {g, t};

    if (!t)
        return false;
    PL_CPU(gemm)
    (&(struct pl_gemm){.m = g->n,
                       .n = g->m,
                       .k = g->k,
                       .a = g->b,
                       .a_row = g->b_col,
                       .a_col = g->b_row,
                       .b = g->a,
                       .b_row = g->a_col,
                       .b_col = g->a_row,
                       .c = t,
                       .ldc = FEW_COLS,
                       .scale = g->scale});
    pl_pool_parallel(blocks, PL_MAX(SMALL / (PL_LANES * FEW_COLS * 8), (size_t)1), turn, &turned);
    return true;
}

void PL_CPU(gemm)(const struct pl_gemm *g)
{
    size_t steps = PL_MAX((g->k + KC - 1) / KC, (size_t)1);
    size_t kc = PL_MIN((g->k / steps + 8) / 8 * 8, (size_t)KC);
    bool in_place = g->m <= FEW_ROWS && g->b_col == 1;

    if (is_flat(g) && multiply_turned(g))
        return;
    for (size_t j0 = 0; j0 < g->n; j0 += NC) {
        size_t n = PL_MIN(g->n - j0, (size_t)NC), panels = (n + PL_NR - 1) / PL_NR;

        for (size_t k0 = 0; k0 < PL_MAX(g->k, (size_t)1); k0 += kc) {
            struct block b = {.g = g, .j0 = j0, .n = n, .k0 = k0, .k = PL_MIN(g->k - k0, kc)};

            b.a_panel = b.k * PL_MR + LINE;
            b.scale = g->scale != 0 ? g->scale : 1;

            b.last = k0 + b.k >= g->k;
            if (!in_place && g->m > PL_MR) {
                b.packed = pl_scratch(PL_SCRATCH_GEMM_B, panels * PL_NR * b.k * sizeof(float));
                if (b.packed)
                    pl_pool_parallel(panels, pl_round_up(SMALL / (PL_NR * (b.k + 1)) + 1, GROUP),
                                     pack_panels, &b);
            }
            share(&b);
        }
    }
}
