/* SPDX-License-Identifier: MIT */
/* Transforms of Winograd's F(m x m, 3x3) for m = 2 and 4, with side = m + 2, see conv2d_winograd.c.
 * The matrices follow Toom and Cook's construction from the points 0, 1, -1 and infinity for m = 2;
 * from 0, +-sqrt(1/2), +-sqrt(2) and infinity for m = 4. Of the known points for m = 4 these round
 * least, as the products of their powers stay near 1: the error of a forward pass is half of what
 * 0, +-1, +-2 leave (Barabasz and others, arXiv 1803.10986, measure such sets).
 *
 * Each function transforms one row or column; the arrays have room for m = 4. */
#ifndef PL_KERNELS_CPU_CONV2D_TILE_H
#define PL_KERNELS_CPU_CONV2D_TILE_H

#include "kernels/cpu/micro.h"

#define PL_SIDE 6 /* of the largest tile */
#define PL_ROOT 1.41421356f
#define PL_HALF_ROOT 0.70710678f

#define PL_TILE_INLINE static inline __attribute__((always_inline)) void

/* v [side] = B' d, of d [side]: pixels. */
PL_TILE_INLINE pl_tile_x(const size_t m, const pl_vec d[PL_SIDE], pl_vec v[PL_SIDE])
{
    if (m == 2) {
        v[0] = d[0] - d[2];
        v[1] = d[1] + d[2];
        v[2] = d[2] - d[1];
        v[3] = d[1] - d[3];
    } else {
        pl_vec low = d[4] - 2 * d[2], low_odd = PL_HALF_ROOT * (d[3] - 2 * d[1]);
        pl_vec high = d[4] - 0.5f * d[2], high_odd = PL_ROOT * (d[3] - 0.5f * d[1]);

        v[0] = d[0] + d[4] - 2.5f * d[2];
        v[1] = low + low_odd;
        v[2] = low - low_odd;
        v[3] = high + high_odd;
        v[4] = high - high_odd;
        v[5] = d[1] + d[5] - 2.5f * d[3];
    }
}

/* d [side] = B v: the gradient of pl_tile_x(). */
PL_TILE_INLINE pl_tile_dx(const size_t m, const pl_vec v[PL_SIDE], pl_vec d[PL_SIDE])
{
    if (m == 2) {
        d[0] = v[0];
        d[1] = v[1] - v[2] + v[3];
        d[2] = v[1] + v[2] - v[0];
        d[3] = -v[3];
    } else {
        pl_vec low = v[1] + v[2], low_odd = PL_HALF_ROOT * (v[1] - v[2]);
        pl_vec high = v[3] + v[4], high_odd = PL_ROOT * (v[3] - v[4]);

        d[0] = v[0];
        d[1] = v[5] - 2 * low_odd - 0.5f * high_odd;
        d[2] = -2.5f * v[0] - 2 * low - 0.5f * high;
        d[3] = low_odd + high_odd - 2.5f * v[5];
        d[4] = v[0] + low + high;
        d[5] = v[5];
    }
}

/* y [m] = A' v, of v [side]: products. */
PL_TILE_INLINE pl_tile_y(const size_t m, const pl_vec v[PL_SIDE], pl_vec y[PL_SIDE])
{
    if (m == 2) {
        y[0] = v[0] + v[1] + v[2];
        y[1] = v[1] - v[2] - v[3];
    } else {
        pl_vec low = v[1] + v[2], low_odd = PL_HALF_ROOT * (v[1] - v[2]);
        pl_vec high = v[3] + v[4], high_odd = PL_ROOT * (v[3] - v[4]);

        y[0] = v[0] + low + high;
        y[1] = low_odd + high_odd;
        y[2] = 0.5f * low + 2 * high;
        y[3] = 0.5f * low_odd + 2 * high_odd + v[5];
    }
}

/* z [side] = A dy, of dy [m]: the gradient of pl_tile_y(). */
PL_TILE_INLINE pl_tile_dy(const size_t m, const pl_vec dy[PL_SIDE], pl_vec z[PL_SIDE])
{
    if (m == 2) {
        z[0] = dy[0];
        z[1] = dy[0] + dy[1];
        z[2] = dy[0] - dy[1];
        z[3] = -dy[1];
    } else {
        pl_vec low = dy[0] + 0.5f * dy[2], low_odd = PL_HALF_ROOT * (dy[1] + 0.5f * dy[3]);
        pl_vec high = dy[0] + 2 * dy[2], high_odd = PL_ROOT * (dy[1] + 2 * dy[3]);

        z[0] = dy[0];
        z[1] = low + low_odd;
        z[2] = low - low_odd;
        z[3] = high + high_odd;
        z[4] = high - high_odd;
        z[5] = dy[3];
    }
}

/* u [side] = G g, of g [3]: weights. */
PL_TILE_INLINE pl_tile_w(const size_t m, const pl_vec g[PL_SIDE], pl_vec u[PL_SIDE])
{
    if (m == 2) {
        pl_vec outer = (g[0] + g[2]) / 2, inner = g[1] / 2;

        u[0] = g[0];
        u[1] = outer + inner;
        u[2] = outer - inner;
        u[3] = g[2];
    } else {
        pl_vec low = g[0] + 0.5f * g[2], high = g[0] + 2 * g[2];

        u[0] = g[0];
        u[1] = -2.0f / 3 * (low + PL_HALF_ROOT * g[1]);
        u[2] = -2.0f / 3 * (low - PL_HALF_ROOT * g[1]);
        u[3] = 1.0f / 6 * (high + PL_ROOT * g[1]);
        u[4] = 1.0f / 6 * (high - PL_ROOT * g[1]);
        u[5] = g[2];
    }
}

/* dg [3] = G' u: the gradient of pl_tile_w(). */
PL_TILE_INLINE pl_tile_dw(const size_t m, const pl_vec u[PL_SIDE], pl_vec dg[PL_SIDE])
{
    if (m == 2) {
        dg[0] = u[0] + (u[1] + u[2]) / 2;
        dg[1] = (u[1] - u[2]) / 2;
        dg[2] = (u[1] + u[2]) / 2 + u[3];
    } else {
        pl_vec low = -2.0f / 3 * (u[1] + u[2]), high = 1.0f / 6 * (u[3] + u[4]);

        dg[0] = u[0] + low + high;
        dg[1] = PL_ROOT / 6 * (u[3] - u[4]) - PL_ROOT / 3 * (u[1] - u[2]);
        dg[2] = 0.5f * low + 2 * high + u[5];
    }
}

/* to [t][t] = T d T' for the transform T of n numbers into t; of d, row r and column c are at
 * d + r * row + c * column. */
PL_TILE_INLINE pl_tile_both(void (*const transform)(const size_t m, const pl_vec *, pl_vec *),
                            const size_t m,
                            const size_t n,
                            const size_t t,
                            const float *d,
                            size_t row,
                            size_t column,
                            pl_vec to[PL_SIDE][PL_SIDE])
{
    pl_vec half[PL_SIDE][PL_SIDE];

#pragma GCC unroll 6
    for (size_t c = 0; c < n; c++) {
        pl_vec in[PL_SIDE], out[PL_SIDE];

#pragma GCC unroll 6
        for (size_t r = 0; r < n; r++)
            in[r] = pl_load(d + r * row + c * column);
        transform(m, in, out);
#pragma GCC unroll 6
        for (size_t r = 0; r < t; r++)
            half[r][c] = out[r];
    }
#pragma GCC unroll 6
    for (size_t r = 0; r < t; r++)
        transform(m, half[r], to[r]);
}

/* Calls f with the size of w's tiles as a constant. */
#define PL_TILE_SIZE(w, f, ...)                                                                    \
    do {                                                                                           \
        if ((w)->m == 4)                                                                           \
            f(4, w, __VA_ARGS__);                                                                  \
        else                                                                                       \
            f(2, w, __VA_ARGS__);                                                                  \
    } while (0)

#endif
