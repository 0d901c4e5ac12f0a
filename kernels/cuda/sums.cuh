/* SPDX-License-Identifier: MIT */
/* Sums over the middle of [outer, n, inner], in f64 and in one fixed order, for any source of terms
 * and any use of the sums. Bound by reading the terms.
 *
 * If inner is 1 the threads of a block take neighbouring terms; else a block has up to 32 columns,
 * no more than there are, and as many lines of them as fit. A thread reads the terms of
 * PL_SUMS_AHEAD lines before it adds them. Few long sums are cut into pieces, whose partial sums a
 * second kernel adds; their number depends on the shape only. Before, blocks had 32 columns of 8
 * lines whatever inner was, a thread waited for each term, and one thread added all pieces of a
 * sum: for 64 channels in fours, half of the threads had no work, and then 1024 pieces were added
 * one by one. */
#ifndef PL_KERNELS_CUDA_SUMS_CUH
#define PL_KERNELS_CUDA_SUMS_CUH

#include "kernels/cuda/unroll.cuh"
#include "kernels/cuda/warp.cuh"

namespace pl_cuda
{

#define PL_SUMS_THREADS 256
#define PL_SUMS_AHEAD 4
#define PL_SUMS_BLOCKS 528 /* 4 per multiprocessor of an H100 */
#define PL_SUMS_PIECE_THREADS 512

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

/* Adds terms k, k + step, ... before end. */
template <int N, class F>
static __device__ __forceinline__ void
add_terms(const F &term, size_t o, size_t k, size_t end, size_t step, size_t i, double sum[N])
{
    for (; k + (PL_SUMS_AHEAD - 1) * step < end; k += PL_SUMS_AHEAD * step) {
        typename F::terms in[PL_SUMS_AHEAD];

        PL_UNROLL
        for (int j = 0; j < PL_SUMS_AHEAD; j++)
            in[j] = term.take_terms(o, k + j * step, i);
        PL_UNROLL
        for (int j = 0; j < PL_SUMS_AHEAD; j++)
            term.add_terms(o, k + j * step, i, in[j], sum);
    }
    for (; k < end; k += step)
        term.add_terms(o, k, i, term.take_terms(o, k, i), sum);
}

template <int N, class F, class OUT>
static __global__ void __launch_bounds__(PL_SUMS_THREADS)
    sums_rows(sums_shape s, F term, OUT out, sums_of<N> *partial)
{
    size_t o = blockIdx.x / s.pieces, piece = blockIdx.x % s.pieces;
    sums_of<N> sum = {};

    add_terms<N>(term, o, piece_begin(s, piece) + threadIdx.x, piece_begin(s, piece + 1),
                 PL_SUMS_THREADS, 0, sum.at);
    for (int i = 0; i < N; i++)
        sum.at[i] = block_sum(sum.at[i]);
    if (threadIdx.x == 0) {
        if (partial)
            partial[blockIdx.x] = sum;
        else
            out(o, sum.at);
    }
}

/* Adds the lines of a block of powers of two, N numbers of each thread, into the first line's.
 * of_thread has THREADS numbers. Every thread must call. */
template <int N, int THREADS>
static __device__ __forceinline__ void add_lines(double sum[N], double *of_thread)
{
    unsigned at = threadIdx.y * blockDim.x + threadIdx.x;

    PL_UNROLL
    for (int i = 0; i < N; i++) {
        of_thread[at] = sum[i];
        for (unsigned lines = blockDim.y / 2; lines > 0; lines /= 2) {
            __syncthreads();
            if (threadIdx.y < lines)
                of_thread[at] += of_thread[at + lines * blockDim.x];
        }
        sum[i] = of_thread[at];
        __syncthreads(); /* before the next number is written */
    }
}

template <int N, class F, class OUT>
static __global__ void __launch_bounds__(PL_SUMS_THREADS)
    sums_columns(sums_shape s, F term, OUT out, sums_of<N> *partial)
{
    PL_SHARED(double, of_thread, [PL_SUMS_THREADS]);
    size_t tiles = (s.inner + blockDim.x - 1) / blockDim.x, tile = blockIdx.x % tiles;
    size_t rest = blockIdx.x / tiles, piece = rest % s.pieces, o = rest / s.pieces;
    size_t column = tile * blockDim.x + threadIdx.x;
    sums_of<N> sum = {};

    if (column < s.inner)
        add_terms<N>(term, o, piece_begin(s, piece) + threadIdx.y, piece_begin(s, piece + 1),
                     blockDim.y, column, sum.at);
    add_lines<N, PL_SUMS_THREADS>(sum.at, of_thread);
    if (threadIdx.y || column >= s.inner)
        return;
    if (partial)
        partial[(o * s.pieces + piece) * s.inner + column] = sum;
    else
        out(o * s.inner + column, sum.at);
}

/* Here a block's columns are the numbers of sums, N of each. */
template <int N, class OUT>
static __global__ void __launch_bounds__(PL_SUMS_PIECE_THREADS)
    sums_pieces(sums_shape s, OUT out, const double *partial)
{
    PL_SHARED(double, of_thread, [PL_SUMS_PIECE_THREADS]);
    size_t columns = s.inner * N, tiles = (columns + blockDim.x - 1) / blockDim.x;
    size_t o = blockIdx.x / tiles, column = blockIdx.x % tiles * blockDim.x + threadIdx.x;
    sums_of<N> all;
    double sum[1] = {};

    if (column < columns) {
        PL_UNROLL_BY(PL_SUMS_AHEAD)
        for (size_t k = threadIdx.y; k < s.pieces; k += blockDim.y)
            sum[0] += partial[(o * s.pieces + k) * columns + column];
    }
    add_lines<1, PL_SUMS_PIECE_THREADS>(sum, of_thread);
    if (threadIdx.y || column >= columns || threadIdx.x % N)
        return;
    for (int i = 0; i < N; i++)
        all.at[i] = of_thread[threadIdx.x + i];
    out(o * s.inner + column / N, all.at);
}

/* A block for so many columns. */
static inline dim3 sums_block(size_t columns, unsigned threads)
{
    unsigned wide = 1;

    while (wide < 32 && wide < columns)
        wide *= 2;
    return dim3(wide, threads / wide);
}

/* F: `terms`, what is read for the terms number k of the sums at (o, i); __device__ terms
 * take_terms(size_t o, size_t k, size_t i) const, and void add_terms(size_t o, size_t k, size_t i,
 * const terms &in, double sum[N]) const. OUT: __device__ void operator()(size_t oi, const double
 * sum[N]) const, takes the sums at o * inner + i. Uses the stream's scratch. */
template <int N, class F, class OUT>
static void sums_together(size_t outer, size_t n, size_t inner, const F &term, const OUT &out)
{
    static_assert(N <= 32 && (N & (N - 1)) == 0, "columns of a block are whole sums");
    sums_shape s = {outer, n, inner, 1};
    dim3 block = sums_block(inner, PL_SUMS_THREADS),
         last = sums_block(inner * N, PL_SUMS_PIECE_THREADS);
    size_t tiles = outer * ceil_div(inner, block.x);
    /* minimum of terms per piece */
    size_t least = (inner == 1 ? 4 : 1) * PL_SUMS_AHEAD * (PL_SUMS_THREADS / block.x);
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
        PL_LAUNCH((sums_columns<N, F, OUT>), tiles * s.pieces, block, 0, s, term, out, partial);
    if (partial)
        PL_LAUNCH((sums_pieces<N, OUT>), outer * ceil_div(inner * N, last.x), last, 0, s, out,
                  (const double *)partial);
}

template <class F> struct sums_term {
    typedef double terms;
    F term;

    __device__ __forceinline__ double take_terms(size_t o, size_t k, size_t i) const
    {
        return term(o, k, i);
    }

    __device__ __forceinline__ void
    add_terms(size_t, size_t, size_t, double in, double sum[1]) const
    {
        sum[0] += in;
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
