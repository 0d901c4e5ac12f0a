/* SPDX-License-Identifier: MIT */
/* Weights of Winograd's convolutions and their gradient, see conv2d_winograd.c: vectors of PL_LANES
 * kernels, whose taps lie side by side in w and dw and are transposed. */
#include "kernels/cpu/conv2d_tile.h"
#include "kernels/cpu/conv2d_winograd.h"
#include "kernels/cpu/pack.h"
#include "kernels/pool/pool.h"

/* Element (row k, column n) of factors as panels of PL_NR columns of `rows` rows. */
static size_t panel_at(size_t rows, size_t k, size_t n)
{
    return (n / PL_NR * rows + k) * PL_NR + n % PL_NR;
}

/* The taps of n kernels, `step` apart, as PL_LANES columns: zeros from column n on. */
static inline void take_kernels(
    const struct pl_conv2d_args *a, size_t first, size_t step, size_t n, float to[9][PL_LANES])
{
    const float *w = (const float *)a->w + first * 9;
    size_t after = (a->out * a->in - first) * 9; /* floats from w on */

    if ((PL_LANES - 1) * step * 9 + pl_round_up(9, (size_t)PL_LANES) > after || n < PL_LANES) {
        for (size_t l = 0; l < PL_LANES; l++)
            for (size_t t = 0; t < 9; t++)
                to[t][l] = l < n ? w[l * step * 9 + t] : 0;
        return;
    }
    for (size_t t = 0; t < 9; t += PL_LANES) {
        pl_vec r[PL_LANES];

#pragma GCC unroll 16
        for (size_t l = 0; l < PL_LANES; l++)
            r[l] = pl_load(w + l * step * 9 + t);
        pl_transpose(r);
#pragma GCC unroll 16
        for (size_t l = 0; l < PL_LANES; l++)
            if (t + l < 9)
                pl_store(to[t + l], r[l]);
    }
}

struct weights {
    const struct pl_winograd *w;
    bool turned;
    float *to;
};

/* Columns [begin, end) of the factors. */
PL_TILE_INLINE
spread_weights(const size_t m,
               const struct pl_winograd *w,
               const struct weights *all,
               size_t begin,
               size_t end)
{
    const struct pl_conv2d_args *a = w->a;
    bool turned = all->turned;
    size_t rows = turned ? a->out : a->in, columns = turned ? a->in : a->out;
    size_t step = (turned ? w->turned_size : w->w_size) / w->products;

    for (size_t n = begin; n < end; n += PL_LANES) {
        for (size_t k = 0; k < rows; k++) {
            size_t first = turned ? k * a->in + n : n * a->in + k;
            float g[9][PL_LANES], *at = all->to + panel_at(rows, k, n);
            pl_vec u[PL_SIDE][PL_SIDE];

            take_kernels(a, first, turned ? 1 : a->in, n < columns ? columns - n : 0, g);
            pl_tile_both(pl_tile_w, m, 3, m + 2, g[0], (size_t)3 * PL_LANES, PL_LANES, u);
            for (size_t r = 0; r < m + 2; r++)
                for (size_t s = 0; s < m + 2; s++, at += step)
                    pl_store(at, u[r][s]);
        }
    }
}

static void weights_part(void *ctx, size_t begin, size_t end)
{
    const struct weights *all = ctx;

    PL_TILE_SIZE(all->w, spread_weights, all, begin, end);
}

void PL_CPU(winograd_weights)(const struct pl_winograd *w, bool turned, float *to)
{
    struct weights all = {w, turned, to};

    pl_pool_parallel(pl_round_up(turned ? w->a->in : w->a->out, (size_t)PL_NR), PL_NR, weights_part,
                     &all);
}

/* Adds column l of the taps to kernel l of dw, for l < n. more: kernels of this thread follow,
 * whose taps may be written to. */
static inline void add_kernels(pl_vec g[PL_SIDE][PL_SIDE], size_t n, bool more, float *dw)
{
    if (n < PL_LANES || !more) {
        for (size_t l = 0; l < n; l++)
            for (size_t t = 0; t < 9; t++)
                dw[l * 9 + t] += g[t / 3][t % 3][l];
        return;
    }
    for (size_t t = 0; t < 9; t += PL_LANES) {
        pl_vec r[PL_LANES];

#pragma GCC unroll 16
        for (size_t l = 0; l < PL_LANES; l++)
            r[l] = t + l < 9 ? g[(t + l) / 3][(t + l) % 3] : (pl_vec){0};
        pl_transpose(r);
#pragma GCC unroll 16
        for (size_t l = 0; l < PL_LANES; l++)
            pl_store(dw + l * 9 + t, pl_load(dw + l * 9 + t) + r[l]);
    }
}

PL_TILE_INLINE
gather_dw(const size_t m,
          const struct pl_winograd *w,
          size_t begin,
          size_t end,
          const float *sums,
          float *dw)
{
    const struct pl_conv2d_args *a = w->a;
    size_t step = w->dw_size / w->products;

    dw += begin * a->in * 9;
    for (size_t o = begin; o < end; o++, dw += a->in * 9) {
        for (size_t c = 0; c < a->in; c += PL_LANES) {
            pl_vec g[PL_SIDE][PL_SIDE];

            pl_tile_both(pl_tile_dw, m, m + 2, 3, sums + o * w->in + c, (m + 2) * step, step, g);
            add_kernels(g, PL_MIN(a->in - c, (size_t)PL_LANES), c + PL_LANES < a->in, dw + c * 9);
        }
    }
}

void PL_CPU(winograd_dw_rows)(
    const struct pl_winograd *w, size_t begin, size_t end, const float *sums, float *dw)
{
    PL_TILE_SIZE(w, gather_dw, begin, end, sums, dw);
}

void PL_CPU(winograd_dw)(const struct pl_winograd *w, const float *sums, float *dw)
{
    PL_CPU(winograd_dw_rows)(w, 0, w->a->out, sums, dw);
}
