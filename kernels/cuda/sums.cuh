/* SPDX-License-Identifier: MIT */
/* Sums over the middle of [outer, n, inner], in f64 and in one fixed order, for any source of terms
 * and any use of the sums. Bound by reading the terms.
 *
 * Few long sums are cut into pieces, whose partial sums a second kernel adds in order; their number
 * depends on the shape only. If inner is 1 a block sums a piece, with neighbours reading
 * neighbours; else a block has 32 columns and 8 lines of threads, and each line takes every eighth
 * term. */
#ifndef PL_KERNELS_CUDA_SUMS_CUH
#define PL_KERNELS_CUDA_SUMS_CUH

#include "kernels/cuda/warp.cuh"

namespace pl_cuda
{

#define PL_SUMS_THREADS 256
#define PL_SUMS_LINES 8
#define PL_SUMS_BLOCKS 1024 /* enough to fill any GPU */

struct sums_shape {
    size_t outer, n, inner, pieces;
};

static __device__ __forceinline__ size_t piece_begin(const sums_shape &s, size_t piece)
{
    size_t chunk = (s.n + s.pieces - 1) / s.pieces, at = piece * chunk;

    return at < s.n ? at : s.n;
}

/* N sums at a time, over the same terms. */
template <int N> struct sums_of {
    double at[N];
};

template <int N, class F, class OUT>
static __global__ void __launch_bounds__(PL_SUMS_THREADS)
    sums_rows(sums_shape s, F term, OUT out, sums_of<N> *partial)
{
    size_t o = blockIdx.x / s.pieces, piece = blockIdx.x % s.pieces;
    size_t end = piece_begin(s, piece + 1);
    sums_of<N> sum = {};

    for (size_t k = piece_begin(s, piece) + threadIdx.x; k < end; k += PL_SUMS_THREADS)
        term(o, k, 0, sum.at);
    for (int i = 0; i < N; i++)
        sum.at[i] = block_sum(sum.at[i]);
    if (threadIdx.x == 0) {
        if (partial)
            partial[blockIdx.x] = sum;
        else
            out(o, sum.at);
    }
}

template <int N, class F, class OUT>
static __global__ void __launch_bounds__(32 * PL_SUMS_LINES)
    sums_columns(sums_shape s, F term, OUT out, sums_of<N> *partial)
{
    PL_SHARED(double, of_line, [N][PL_SUMS_LINES][32]);
    size_t tiles = (s.inner + 31) / 32, tile = blockIdx.x % tiles, rest = blockIdx.x / tiles;
    size_t piece = rest % s.pieces, o = rest / s.pieces, column = tile * 32 + threadIdx.x;
    size_t end = piece_begin(s, piece + 1);
    sums_of<N> sum = {};

    if (column < s.inner)
        for (size_t k = piece_begin(s, piece) + threadIdx.y; k < end; k += PL_SUMS_LINES)
            term(o, k, column, sum.at);
    for (int i = 0; i < N; i++)
        of_line[i][threadIdx.y][threadIdx.x] = sum.at[i];
    __syncthreads();
    if (threadIdx.y || column >= s.inner)
        return;
    for (int k = 1; k < PL_SUMS_LINES; k++)
        for (int i = 0; i < N; i++)
            sum.at[i] += of_line[i][k][threadIdx.x];
    if (partial)
        partial[(o * s.pieces + piece) * s.inner + column] = sum;
    else
        out(o * s.inner + column, sum.at);
}

template <int N, class OUT>
static __global__ void __launch_bounds__(PL_SUMS_THREADS)
    sums_pieces(sums_shape s, OUT out, const sums_of<N> *partial)
{
    size_t i = (size_t)blockIdx.x * PL_SUMS_THREADS + threadIdx.x;
    const sums_of<N> *at;
    sums_of<N> sum = {};

    if (i >= s.outer * s.inner)
        return;
    at = partial + i / s.inner * s.pieces * s.inner + i % s.inner;
    for (size_t k = 0; k < s.pieces; k++)
        for (int j = 0; j < N; j++)
            sum.at[j] += at[k * s.inner].at[j];
    out(i, sum.at);
}

/* F: __device__ void operator()(size_t o, size_t k, size_t i, double sum[N]) const, adds the terms;
 * OUT: __device__ void operator()(size_t oi, const double sum[N]) const, takes the sums at
 * o * inner + i. Uses the stream's scratch. */
template <int N, class F, class OUT>
static void sums_together(size_t outer, size_t n, size_t inner, const F &term, const OUT &out)
{
    sums_shape s = {outer, n, inner, 1};
    size_t tiles = outer * (inner == 1 ? 1 : ceil_div(inner, 32));
    size_t least = inner == 1 ? 4096 : 128; /* minimum of terms per piece */
    sums_of<N> *partial = NULL;

    if (outer == 0 || inner == 0)
        return;
    if (tiles < PL_SUMS_BLOCKS && n > least) {
        size_t most = ceil_div(n, least), wanted = ceil_div(PL_SUMS_BLOCKS, tiles);

        s.pieces = wanted < most ? wanted : most;
    }
    if (s.pieces > 1) {
        partial = (sums_of<N> *)scratch(outer * s.pieces * inner * sizeof(*partial));
        if (!partial)
            return;
    }
    if (inner == 1)
        PL_LAUNCH((sums_rows<N, F, OUT>), outer * s.pieces, PL_SUMS_THREADS, 0, s, term, out,
                  partial);
    else
        PL_LAUNCH((sums_columns<N, F, OUT>), tiles * s.pieces, dim3(32, PL_SUMS_LINES), 0, s, term,
                  out, partial);
    if (partial)
        PL_LAUNCH((sums_pieces<N, OUT>), ceil_div(outer * inner, PL_SUMS_THREADS), PL_SUMS_THREADS,
                  0, s, out, (const sums_of<N> *)partial);
}

template <class F> struct sums_term {
    F term;

    __device__ void operator()(size_t o, size_t k, size_t i, double sum[1]) const
    {
        sum[0] += term(o, k, i);
    }
};

template <class OUT> struct sums_out {
    OUT out;

    __device__ void operator()(size_t i, const double sum[1]) const
    {
        out(i, sum[0]);
    }
};

/* One sum: F: __device__ double operator()(size_t o, size_t k, size_t i) const, the term;
 * OUT: __device__ void operator()(size_t oi, double sum) const. */
template <class F, class OUT>
static void sums(size_t outer, size_t n, size_t inner, const F &term, const OUT &out)
{
    sums_together<1>(outer, n, inner, sums_term<F>{term}, sums_out<OUT>{out});
}

} // namespace pl_cuda

#endif
