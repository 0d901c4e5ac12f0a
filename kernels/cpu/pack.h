/* SPDX-License-Identifier: MIT */
/* Packing of a matrix with the other storage order: rows to columns. */
#ifndef PL_KERNELS_CPU_PACK_H
#define PL_KERNELS_CPU_PACK_H

#include "kernels/cpu/micro.h"

/* Swaps the off-diagonal blocks of s x s of each pair of rows s apart. */
#define PL_LOW(l, s) ((l) & (s) ? PL_LANES + (l) - (s) : (l))
#define PL_HIGH(l, s) ((l) & (s) ? PL_LANES + (l) : (l) + (s))
#define PL_MASK4(f, l, s) f(l, s), f((l) + 1, s), f((l) + 2, s), f((l) + 3, s)
#if PL_LANES == 4
#define PL_MASK(f, s) ((pl_mask){PL_MASK4(f, 0, s)})
#elif PL_LANES == 8
#define PL_MASK(f, s) ((pl_mask){PL_MASK4(f, 0, s), PL_MASK4(f, 4, s)})
#else
#define PL_MASK(f, s)                                                                              \
    ((pl_mask){PL_MASK4(f, 0, s), PL_MASK4(f, 4, s), PL_MASK4(f, 8, s), PL_MASK4(f, 12, s)})
#endif
#define PL_SWAP_BLOCKS(r, s)                                                                       \
    _Pragma("GCC unroll 16") for (size_t pl_i = 0; pl_i < PL_LANES; pl_i++)                        \
    {                                                                                              \
        if (!(pl_i & (s))) {                                                                       \
            pl_vec pl_a = (r)[pl_i], pl_b = (r)[pl_i + (s)];                                       \
                                                                                                   \
            (r)[pl_i] = pl_shuffle(pl_a, pl_b, PL_MASK(PL_LOW, s));                                \
            (r)[pl_i + (s)] = pl_shuffle(pl_a, pl_b, PL_MASK(PL_HIGH, s));                         \
        }                                                                                          \
    }

#define PL_PACK_AHEAD 64 /* prefetch distance in floats of a row */

static inline __attribute__((always_inline)) void pl_transpose(pl_vec r[PL_LANES])
{
    PL_SWAP_BLOCKS(r, 1)
    PL_SWAP_BLOCKS(r, 2)
#if PL_LANES > 4
    PL_SWAP_BLOCKS(r, 4)
#endif
#if PL_LANES > 8
    PL_SWAP_BLOCKS(r, 8)
#endif
}

/* to[k * to_row + i] = from[i * stride + k] for i < n <= PL_LANES, k < k_count, and 0 for the other
 * i < PL_LANES. Columns are written in order, so that the next one overwrites what was written past
 * to_row. The last column writes PL_LANES floats, too. */
static inline void
pl_pack_rows(const float *from, size_t stride, size_t n, size_t k_count, float *to, size_t to_row)
{
    size_t k = 0;

    for (; k + PL_LANES <= k_count; k += PL_LANES) {
        pl_vec r[PL_LANES] = {{0}};

#pragma GCC unroll 16
        for (size_t i = 0; i < PL_LANES;
             i++) /* more streams than the hardware prefetcher follows */
            __builtin_prefetch(from + i * stride + k + PL_PACK_AHEAD);
        if (n == PL_LANES)
#pragma GCC unroll 16
            for (size_t i = 0; i < PL_LANES; i++)
                r[i] = pl_load(from + i * stride + k);
        else
#pragma GCC unroll 16
            for (size_t i = 0; i < PL_LANES; i++)
                if (i < n)
                    r[i] = pl_load(from + i * stride + k);
        pl_transpose(r);
#pragma GCC unroll 16
        for (size_t i = 0; i < PL_LANES; i++)
            pl_store(to + (k + i) * to_row, r[i]);
    }
    for (; k < k_count; k++)
        for (size_t i = 0; i < PL_LANES; i++)
            to[k * to_row + i] = i < n ? from[i * stride + k] : 0;
}

#endif
