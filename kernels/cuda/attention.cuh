/* SPDX-License-Identifier: MIT */
/* Shared by attention's forward and backward: products of tiles.
 *
 * A block of 256 threads works on tiles of 64 queries by 64 keys; thread (y, x) of 16 by 16 has
 * rows 4 y to 4 y + 3 and columns 4 x to 4 x + 3 of every product. Operands go through shared
 * memory, 32 of the summed dimension at a time, as [32][64] of each side. */
#ifndef PL_KERNELS_CUDA_ATTENTION_CUH
#define PL_KERNELS_CUDA_ATTENTION_CUH

#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/unroll.cuh"

#include <math.h>

namespace pl_cuda
{

#define PL_ATT_THREADS 256
#define PL_ATT_TILE 64
#define PL_ATT_SLICE 32
#define PL_ATT_PITCH 68 /* of 64 numbers in shared memory: rows stay 16-byte aligned */
#define PL_ATT_SIDE (PL_ATT_SLICE * PL_ATT_PITCH)
#define PL_ATT_SCORES (PL_ATT_TILE * PL_ATT_PITCH)

/* In dynamic shared memory, R = real<T>. */
template <class R> struct att_shared {
    R left[PL_ATT_SIDE], right[PL_ATT_SIDE];
    R scores[PL_ATT_SCORES];
};

/* One array's rows of a head. */
template <class T> struct att_rows {
    T *p;
    size_t stride, n, dim;
};

template <class T>
static __device__ __forceinline__ att_rows<T> att_head(const void *p,
                                                       const struct pl_attention_strides &at,
                                                       size_t batch,
                                                       size_t head,
                                                       size_t n,
                                                       size_t dim)
{
    return att_rows<T>{(T *)p + (p ? batch * at.batch + head * at.head : 0), at.time, n, dim};
}

/* a b, rounded by itself: backward's scores are forward's, to the bit, and one that is its row's
 * logarithm of sums has the probability 1, however large it is. */
static __device__ __forceinline__ float att_times(float a, float b)
{
#ifdef __CUDA_ARCH__
    return __fmul_rn(a, b);
#else
    return a * b;
#endif
}

static __device__ __forceinline__ double att_times(double a, double b)
{
#ifdef __CUDA_ARCH__
    return __dmul_rn(a, b);
#else
    return a * b;
#endif
}

static __device__ __forceinline__ unsigned att_y()
{
    return threadIdx.x / 16;
}

static __device__ __forceinline__ unsigned att_x()
{
    return threadIdx.x % 16;
}

/* Loads to [32 of dim][64 rows] = x from row r0 and column d0 on; zeros past the ends. */
template <class T, class R>
static __device__ __forceinline__ void
att_stage_across(R *to, const att_rows<T> &x, size_t r0, size_t d0)
{
    /* A warp reads 32 bytes of each of its rows, and writes to 32 different banks. */
    const unsigned near = 32 / sizeof(R), rows = 32 / near;

    for (unsigned i = threadIdx.x; i < PL_ATT_TILE * PL_ATT_SLICE; i += PL_ATT_THREADS) {
        unsigned lane = i % 32, part = i / 32;
        unsigned d = part % (PL_ATT_SLICE / near) * near + lane % near;
        unsigned r = part / (PL_ATT_SLICE / near) * rows + lane / near;
        bool in = r0 + r < x.n && d0 + d < x.dim;

        to[d * PL_ATT_PITCH + r] = in ? load(x.p, (r0 + r) * x.stride + d0 + d) : 0;
    }
}

/* Loads to [32 rows][64 of dim], likewise. */
template <class T, class R>
static __device__ __forceinline__ void
att_stage_along(R *to, const att_rows<T> &x, size_t r0, size_t d0)
{
    for (unsigned i = threadIdx.x; i < PL_ATT_TILE * PL_ATT_SLICE; i += PL_ATT_THREADS) {
        unsigned r = i / PL_ATT_TILE, d = i % PL_ATT_TILE;
        bool in = r0 + r < x.n && d0 + d < x.dim;

        to[r * PL_ATT_PITCH + d] = in ? load(x.p, (r0 + r) * x.stride + d0 + d) : 0;
    }
}

/* Read from shared memory 16 bytes at a time. */
template <class R> struct alignas(16) att_four {
    R of[4];
};

/* The place of scores 4 four to 4 four + 3 of a row. They are permuted within the row, so that
 * threads that write to every fourth row use different banks. */
static __device__ __forceinline__ unsigned att_score(unsigned row, unsigned four)
{
    return row * PL_ATT_PITCH + 4 * (four ^ (row / 4 % 8));
}

/* sum += left^T right, both [32][64]; SCORES: left is the half of the scores. */
template <bool SCORES, class R>
static __device__ __forceinline__ void att_multiply(const R *left, const R *right, R sum[4][4])
{
    right += 4 * att_x();
    for (unsigned k = 0; k < PL_ATT_SLICE; k++) {
        unsigned at = SCORES ? att_score(k, att_y()) : k * PL_ATT_PITCH + 4 * att_y();
        att_four<R> a = *reinterpret_cast<const att_four<R> *>(left + at);
        att_four<R> b = *reinterpret_cast<const att_four<R> *>(right + k * PL_ATT_PITCH);

        PL_UNROLL
        for (unsigned i = 0; i < 16; i++)
            sum[i / 4][i % 4] += a.of[i / 4] * b.of[i % 4];
    }
}

/* Stores a tile's scores, [queries][keys] or [keys][queries]. */
template <bool BY_KEYS, class R>
static __device__ __forceinline__ void att_keep(R *to, const R s[4][4])
{
    unsigned row = 4 * (BY_KEYS ? att_x() : att_y()), four = BY_KEYS ? att_y() : att_x();

    PL_UNROLL
    for (unsigned j = 0; j < 4; j++) {
        att_four<R> of;

        PL_UNROLL
        for (unsigned i = 0; i < 4; i++)
            of.of[i] = BY_KEYS ? s[i][j] : s[j][i];
        *reinterpret_cast<att_four<R> *>(to + att_score(row + j, four)) = of;
    }
}

/* sum = the products of rows of x from x0 on with rows of y from y0 on. */
template <class T, class R>
static __device__ __forceinline__ void att_dots(att_shared<R> *sm,
                                                const att_rows<T> &x,
                                                size_t x0,
                                                const att_rows<T> &y,
                                                size_t y0,
                                                R sum[4][4])
{
    PL_UNROLL
    for (unsigned i = 0; i < 16; i++)
        sum[i / 4][i % 4] = 0;
    for (size_t d = 0; d < x.dim; d += PL_ATT_SLICE) {
        __syncthreads();
        att_stage_across(sm->left, x, x0, d);
        att_stage_across(sm->right, y, y0, d);
        __syncthreads();
        att_multiply<false>(sm->left, sm->right, sum);
    }
}

/* sum[s] += scores^T x. The scores in shared memory are [64 rows of x from r0 on][64], by
 * att_score(); x's columns are those from d0 + 64 s on. */
template <int SLICES, class T, class R>
static __device__ __forceinline__ void
att_weigh(att_shared<R> *sm, const att_rows<T> &x, size_t r0, size_t d0, R sum[SLICES][4][4])
{
    PL_UNROLL
    for (unsigned s = 0; s < SLICES; s++) {
        for (unsigned half = 0; half < PL_ATT_TILE; half += PL_ATT_SLICE) {
            __syncthreads();
            att_stage_along(sm->right, x, r0 + half, d0 + s * PL_ATT_TILE);
            __syncthreads();
            att_multiply<true>(sm->scores + half * PL_ATT_PITCH, sm->right, sum[s]);
        }
    }
}

/* to (+)= scale[i] sum for the thread's rows from r0 on. */
template <int SLICES, class T, class R>
static __device__ __forceinline__ void att_write(
    const att_rows<T> &to, size_t r0, size_t d0, const R scale[4], R sum[SLICES][4][4], bool add)
{
    PL_UNROLL
    for (unsigned k = 0; k < SLICES * 16; k++) {
        unsigned s = k / 16, i = k / 4 % 4, j = k % 4;
        size_t r = r0 + 4 * att_y() + i, d = d0 + s * PL_ATT_TILE + 4 * att_x() + j;

        if (r < to.n && d < to.dim)
            put(to.p, r * to.stride + d, scale[i] * sum[s][i][j], add);
    }
}

/* True if this query sees this key. */
static __device__ __forceinline__ bool
att_sees(const struct pl_attention_args &a, size_t query, size_t key)
{
    return key < a.keys && (!a.causal || key <= query);
}

/* Number of blocks along dim for a kernel with SLICES of 64 in registers: the grid's y. */
static inline size_t att_parts(size_t dim, int slices)
{
    return ceil_div(dim, (size_t)slices * PL_ATT_TILE);
}

} // namespace pl_cuda

#endif
