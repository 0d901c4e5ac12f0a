/* SPDX-License-Identifier: MIT */
/* Ops on rows of [rows, n]: a team of threads has a row. The team is a warp if n is up to 1024 (its
 * lanes need no barrier and have many reads in flight, as in llm.c's kernels for layernorm), else a
 * block of 256, or of 1024 if n is above 2048. So a thread can hold all its elements of most rows
 * (row_team::held), and a row is read from memory once, however often a kernel goes over it. The
 * surplus of a longer row is read again each time, mostly from the cache. Lanes read neighbours,
 * where rows are aligned 16 bytes each (PER elements), not measured on a card yet; softmax by one
 * element took three times as long as a copy. A kernel is a template <class T, int TEAM>, launched
 * by PL_ROWS_LAUNCH, or <class T, int TEAM, int PER>, launched by PL_ROWS_LAUNCH_PACKED. */
#ifndef PL_KERNELS_CUDA_ROWS_CUH
#define PL_KERNELS_CUDA_ROWS_CUH

#include "kernels/cuda/unroll.cuh"
#include "kernels/cuda/warp.cuh"

namespace pl_cuda
{

#define PL_ROW_WARPS 4 /* per block, if a team is a warp */
#define PL_ROW_PACKS 4 /* per thread, in flight at once */

template <int TEAM> struct row_team {
    static const int block = TEAM == 32 ? 32 * PL_ROW_WARPS : TEAM;
    static const unsigned held = TEAM == 32 ? 32 : 8; /* elements per thread */

    /* The calling thread's row; it may be past the end, for whole warps, but not for whole blocks.
     */
    static __device__ __forceinline__ size_t row()
    {
        return TEAM == 32 ? (size_t)blockIdx.x * PL_ROW_WARPS + threadIdx.x / 32 : blockIdx.x;
    }

    /* The thread's index in its team. */
    static __device__ __forceinline__ unsigned at()
    {
        return threadIdx.x % TEAM;
    }

    template <class OP, class R> static __device__ __forceinline__ R all(R x, R none)
    {
        if (TEAM == 32)
            return warp_all<OP>(x);
        return block_all<OP>(x, none);
    }

    template <class R> static __device__ __forceinline__ R sum(R x)
    {
        return all<sum_of>(x, (R)0);
    }

    template <class R> static __device__ __forceinline__ R max(R x)
    {
        return all<max_of>(x, (R)-INFINITY);
    }
};

/* Calls f(i, k) for the thread's elements i of a row; k counts them up to row_team::held, and
 * equals that for all others. Inlined, so that k is a constant of each call. PER: neighbours that a
 * thread has: 1, or a pack's, where n is a multiple of that. */
template <int TEAM, int PER = 1, class F>
static __device__ __forceinline__ void row_each(size_t n, const F &f)
{
    const unsigned held = row_team<TEAM>::held;
    unsigned at = row_team<TEAM>::at();

    PL_UNROLL
    for (unsigned k = 0; k < held; k++) {
        size_t i = (at + k / PER * TEAM) * PER + k % PER;

        if (i < n)
            f(i, k);
    }
    for (size_t i = at + (size_t)held * TEAM; i < n; i += TEAM)
        f(i, held);
}

/* A row's elements: each thread has its first ones in registers. PER as above; with a pack p is
 * 16-byte aligned. */
template <class T, int TEAM, int PER = 1> struct row_of {
    const T *p;
    real<T> held[row_team<TEAM>::held];

    __device__ __forceinline__ row_of(const T *x, size_t n) : p(x)
    {
        unsigned at = row_team<TEAM>::at();

        PL_UNROLL
        for (unsigned k = 0; k < row_team<TEAM>::held; k += PER) {
            unsigned i = (at + k / PER * TEAM) * PER;
            pack<T> some = {};

            if (i < n && PER > 1)
                some = load_pack(p, i);
            else if (i < n)
                some.of[0] = p[i];
            PL_UNROLL
            for (unsigned j = 0; j < PER; j++)
                held[k + j] = widen_one(some.of[j]);
        }
    }

    /* Element i, with i and k from row_each(). */
    __device__ __forceinline__ real<T> operator()(size_t i, unsigned k) const
    {
        return k < row_team<TEAM>::held ? held[k] : load(p, i);
    }
};

/* y[i] (+)= f(i, k) for the elements of row_each(). */
template <int TEAM, int PER, class T, class F>
static __device__ __forceinline__ void row_put(size_t n, T *y, bool add, const F &f)
{
    const unsigned held = row_team<TEAM>::held;
    unsigned at = row_team<TEAM>::at();

    PL_UNROLL
    for (unsigned k = 0; k < held; k += PER) {
        unsigned i = (at + k / PER * TEAM) * PER;
        pack<T> out = {};

        if (i >= n)
            continue;
        if (PER == 1) {
            put(y, i, f((size_t)i, k), add);
            continue;
        }
        if (add)
            out = load_pack(y, i);
        PL_UNROLL
        for (unsigned j = 0; j < PER; j++)
            put(out.of, j, f((size_t)i + j, k + j), add);
        store_pack(y, i, out);
    }
    for (size_t i = at + (size_t)held * TEAM; i < n; i += TEAM)
        put(y, i, f(i, held), add);
}

/* Access to a row at any address by 16 bytes: elements before the first boundary, packs, and the
 * rest. */
struct row_cut {
    size_t head, packs;

    template <class T> __device__ __forceinline__ row_cut(const T *x, size_t n) : head(0), packs(0)
    {
        size_t past = (uintptr_t)x % 16;

        head = past ? (16 - past) / sizeof(T) : 0;
        head = head < n ? head : n;
        packs = (n - head) / pack<T>::size;
    }

    /* For two rows of equal length: no packs if their boundaries differ. */
    template <class T>
    __device__ __forceinline__ row_cut(const T *x, const T *y, size_t n) : row_cut(x, n)
    {
        if ((uintptr_t)x % 16 != (uintptr_t)y % 16)
            head = packs = 0;
    }

    /* Calls f(i) for the thread's elements outside packs. */
    template <int TEAM, class T, class F>
    __device__ __forceinline__ void each_loose(size_t n, const F &f) const
    {
        unsigned at = row_team<TEAM>::at();

        if (at < head)
            f((size_t)at);
        for (size_t i = head + packs * pack<T>::size + at; i < n; i += TEAM)
            f(i);
    }
};

/* y[i] (+)= f(i, x[i]) for a row's n elements. */
template <int TEAM, class T, class F>
static __device__ __forceinline__ void row_map(size_t n, const T *x, T *y, bool add, const F &f)
{
    row_cut cut(x, y, n);

    for (size_t p = row_team<TEAM>::at(); p < cut.packs; p += PL_ROW_PACKS * TEAM) {
        pack<T> in[PL_ROW_PACKS], out;

        PL_UNROLL
        for (unsigned j = 0; j < PL_ROW_PACKS; j++)
            if (p + j * TEAM < cut.packs)
                in[j] = load_pack(x, cut.head + (p + j * TEAM) * pack<T>::size);
        PL_UNROLL
        for (unsigned j = 0; j < PL_ROW_PACKS; j++) {
            size_t at = cut.head + (p + j * TEAM) * pack<T>::size;

            if (p + j * TEAM >= cut.packs)
                continue;
            if (add)
                out = load_pack(y, at);
            PL_UNROLL
            for (size_t k = 0; k < pack<T>::size; k++)
                put(out.of, k, f(at + k, widen_one(in[j].of[k])), add);
            store_pack(y, at, out);
        }
    }
    cut.each_loose<TEAM, T>(n, [&](size_t i) { put(y, i, f(i, load(x, i)), add); });
}

#define PL_ROWS_LAUNCH_OF(by_warp, by_256, by_1024, rows, n, ...)                                  \
    do {                                                                                           \
        if ((rows) == 0 || (n) == 0)                                                               \
            break;                                                                                 \
        if ((n) <= 1024)                                                                           \
            PL_LAUNCH(by_warp, ceil_div(rows, PL_ROW_WARPS), 32 * PL_ROW_WARPS, 0, __VA_ARGS__);   \
        else if ((n) <= 2048)                                                                      \
            PL_LAUNCH(by_256, rows, 256, 0, __VA_ARGS__);                                          \
        else                                                                                       \
            PL_LAUNCH(by_1024, rows, 1024, 0, __VA_ARGS__);                                        \
    } while (0)

#define PL_ROWS_LAUNCH(kernel, T, rows, n, ...)                                                    \
    PL_ROWS_LAUNCH_OF((kernel<T, 32>), (kernel<T, 256>), (kernel<T, 1024>), rows, n, __VA_ARGS__)

/* packed: every row of every array is 16-byte aligned, and n a multiple of a pack. */
#define PL_ROWS_LAUNCH_PACKED(kernel, T, packed, rows, n, ...)                                     \
    do {                                                                                           \
        if (packed)                                                                                \
            PL_ROWS_LAUNCH_OF((kernel<T, 32, pack<T>::size>), (kernel<T, 256, pack<T>::size>),     \
                              (kernel<T, 1024, pack<T>::size>), rows, n, __VA_ARGS__);             \
        else                                                                                       \
            PL_ROWS_LAUNCH_OF((kernel<T, 32, 1>), (kernel<T, 256, 1>), (kernel<T, 1024, 1>), rows, \
                              n, __VA_ARGS__);                                                     \
    } while (0)

} // namespace pl_cuda

#endif
