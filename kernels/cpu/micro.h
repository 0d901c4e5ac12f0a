/* SPDX-License-Identifier: MIT */
/* The inner loop of products: a tile of PL_MR x PL_NR of C in registers, as in Goto and van de
 * Geijn (ACM TOMS 34(3), 2008). Each element is summed over k in order, so its bits depend on
 * neither the position of the tile nor the thread. */
#ifndef PL_KERNELS_CPU_MICRO_H
#define PL_KERNELS_CPU_MICRO_H

#include "kernels/cpu/level.h"

#include <string.h>

typedef float pl_vec __attribute__((vector_size(PL_LANES * sizeof(float))));
typedef int32_t pl_mask __attribute__((vector_size(PL_LANES * sizeof(int32_t))));

#define PL_NV 2 /* vectors per row of a tile */
#define PL_NR (PL_NV * PL_LANES)
#if PL_CPU_LEVEL == 4
#define PL_MR 12 /* the tile takes 24 of 32 registers */
#elif PL_CPU_LEVEL == 3
#define PL_MR 6 /* 12 of 16 */
#else
#define PL_MR 4 /* 8 of 16 */
#endif

static inline size_t pl_round_up(size_t n, size_t to)
{
    return (n + to - 1) / to * to;
}

static inline __attribute__((always_inline)) pl_vec pl_load(const float *p)
{
    pl_vec v;

    memcpy(&v, p, sizeof(v));
    return v;
}

static inline __attribute__((always_inline)) void pl_store(float *p, pl_vec v)
{
    memcpy(p, &v, sizeof(v));
}

/* Element i is element mask[i] of the concatenation of a and b. */
#ifdef __clang__ /* clang has no such builtin; the fuzzers are built with clang */
static inline pl_vec pl_shuffle(pl_vec a, pl_vec b, pl_mask mask)
{
    pl_vec to;

    for (size_t i = 0; i < PL_LANES; i++)
        to[i] = mask[i] < PL_LANES ? a[mask[i]] : b[mask[i] - PL_LANES];
    return to;
}
#else
#define pl_shuffle __builtin_shuffle
#endif

/* acc = sum over k of A(i, k) B(k, j): A(i, k) = a[i * a_row + k * a_col] (a packed panel of A has
 * the strides 1 and PL_MR); row k of B is at b + k * b_row, or at b + rows[k] if rows is given.
 * height: the rows of the tile, at most PL_MR. */
static inline __attribute__((always_inline)) void pl_micro_rows(const size_t height,
                                                                size_t k_count,
                                                                const float *a,
                                                                const size_t a_row,
                                                                const size_t a_col,
                                                                const float *b,
                                                                const size_t b_row,
                                                                const uint32_t *rows,
                                                                pl_vec acc[PL_MR][PL_NV])
{
    pl_vec sum[PL_MR][PL_NV] = {{{0}}};

#pragma GCC unroll 4
    for (size_t k = 0; k < k_count; k++) {
        const float *row = rows ? b + rows[k] : b + k * b_row;
        pl_vec y[PL_NV];

#pragma GCC unroll 4
        for (size_t v = 0; v < PL_NV; v++)
            y[v] = pl_load(row + v * PL_LANES);
#pragma GCC unroll 12
        for (size_t i = 0; i < height; i++) {
            float x = a[i * a_row + k * a_col];

#pragma GCC unroll 4
            for (size_t v = 0; v < PL_NV; v++)
                sum[i][v] += x * y[v];
        }
    }
#pragma GCC unroll 12
    for (size_t i = 0; i < height; i++)
#pragma GCC unroll 4
        for (size_t v = 0; v < PL_NV; v++)
            acc[i][v] = sum[i][v];
}

static inline __attribute__((always_inline)) void pl_micro(size_t k_count,
                                                           const float *a,
                                                           const size_t a_row,
                                                           const size_t a_col,
                                                           const float *b,
                                                           const size_t b_row,
                                                           const uint32_t *rows,
                                                           pl_vec acc[PL_MR][PL_NV])
{
    pl_micro_rows(PL_MR, k_count, a, a_row, a_col, b, b_row, rows, acc);
}

#endif
