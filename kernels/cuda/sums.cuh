/* SPDX-License-Identifier: MIT */
/* Sums over the middle of [outer, n, inner], in f64 and in one fixed order, for any source of terms
 * and any use of the sums. Bound by reading the terms.
 *
 * If inner is 1 the threads of a block take neighbouring terms, and a warp does a short sum by
 * itself; else a block has up to 32 columns, no more than there are, and as many lines of them as
 * fit. A thread reads the terms of several lines before it adds them. Few long sums are cut into
 * pieces, whose partial sums a second kernel adds; their number depends on the shape only. That
 * kernel's blocks are the narrower the more pieces there are, so that a thread reads few of them:
 * by 16 lines of 32 columns it took 16 us for 528 pieces of 128 numbers on an H100. */
#ifndef PL_KERNELS_CUDA_SUMS_CUH
#define PL_KERNELS_CUDA_SUMS_CUH

#include "kernels/cuda/unroll.cuh"
#include "kernels/cuda/warp.cuh"

namespace pl_cuda
{

#define PL_SUMS_THREADS 256
#define PL_SUMS_AHEAD 4
#define PL_SUMS_MULTIPROCESSORS 132 /* of an H100 */
#define PL_SUMS_PIECE_THREADS 512
#define PL_SUMS_PIECE_WIDTH 8 /* columns at least: 64 bytes */
#define PL_SUMS_SHORT 256     /* terms that a warp adds, at most */

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
    const int ahead = F::ahead;
    typename F::numbers of(term, o, i);

    for (; k + (ahead - 1) * step < end; k += ahead * step) {
        typename F::terms in[ahead];

        PL_UNROLL
        for (int j = 0; j < ahead; j++)
            in[j] = term.take_terms(o, k + j * step, i);
        PL_UNROLL
        for (int j = 0; j < ahead; j++)
            term.add_terms(o, k + j * step, i, in[j], of, sum);
    }
    for (; k < end; k += step)
        term.add_terms(o, k, i, term.take_terms(o, k, i), of, sum);
}

template <int N, class F, class OUT>
static __global__ void __launch_bounds__(PL_SUMS_THREADS, F::resident)
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

/* A warp has a sum. */
template <int N, class F, class OUT>
static __global__ void __launch_bounds__(PL_SUMS_THREADS, F::resident)
    sums_short(sums_shape s, F term, OUT out)
{
    size_t o = (size_t)blockIdx.x * (PL_SUMS_THREADS / 32) + threadIdx.x / 32;
    sums_of<N> sum = {};

    if (o < s.outer)
        add_terms<N>(term, o, threadIdx.x % 32, s.n, 32, 0, sum.at);
    for (int i = 0; i < N; i++)
        sum.at[i] = warp_sum(sum.at[i]);
    if (o < s.outer && threadIdx.x % 32 == 0)
        out(o, sum.at);
}

/* Adds the lines of a block of powers of two, N numbers of each thread, into the first line's,
 * which of_thread then has, too. of_thread has N THREADS numbers, those of a thread THREADS apart.
 * Every thread must call. */
template <int N, int THREADS>
static __device__ __forceinline__ void add_lines(double sum[N], double *of_thread)
{
    double *mine = of_thread + threadIdx.y * blockDim.x + threadIdx.x;

    PL_UNROLL
    for (int i = 0; i < N; i++)
        mine[i * THREADS] = sum[i];
    for (unsigned lines = blockDim.y / 2; lines > 0; lines /= 2) {
        __syncthreads();
        if (threadIdx.y < lines)
            PL_UNROLL
        for (int i = 0; i < N; i++)
            mine[i * THREADS] += mine[i * THREADS + lines * blockDim.x];
    }
    PL_UNROLL
    for (int i = 0; i < N; i++)
        sum[i] = mine[i * THREADS];
    __syncthreads();
}

template <int N, class F, class OUT>
static __global__ void __launch_bounds__(PL_SUMS_THREADS, F::resident)
    sums_columns(sums_shape s, F term, OUT out, sums_of<N> *partial)
{
    PL_SHARED(double, of_thread, [N * PL_SUMS_THREADS]);
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

/* Here a block's columns are the numbers of sums, N of each group that OUT takes. */
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
    out.one(o * s.inner + column / N, all.at);
}

/* A block for so many columns. */
static inline dim3 sums_block(size_t columns, unsigned threads)
{
    unsigned wide = 1;

    while (wide < 32 && wide < columns)
        wide *= 2;
    return dim3(wide, threads / wide);
}

/* One that adds so many pieces of each, N columns together. */
static inline dim3 pieces_block(size_t columns, size_t pieces, unsigned n)
{
    unsigned wide = sums_block(columns, PL_SUMS_PIECE_THREADS).x;

    while (wide > PL_SUMS_PIECE_WIDTH && wide > n &&
           PL_SUMS_PIECE_THREADS / wide * PL_SUMS_AHEAD < pieces)
        wide /= 2;
    return dim3(wide, PL_SUMS_PIECE_THREADS / wide);
}

/* The kernel of sums_together(): by rows inner must be 1, by columns it may be. Who knows it saves
 * compilers the other one. */
enum sums_by { SUMS_BY_EITHER, SUMS_BY_ROWS, SUMS_BY_COLUMNS };

/* F: `terms`, what is read for the terms number k of the sums at (o, i); `numbers`, what a thread
 * keeps for all of these, made of (f, o, i); ahead, how many terms are read before they are added;
 * resident, how many blocks a multiprocessor must have room for, which is what it gets; __device__
 * terms take_terms(size_t o, size_t k, size_t i) const, and void add_terms(size_t o,
 * size_t k, size_t i, const terms &in, const numbers &of, double sum[N]) const. OUT: __device__
 * void operator()(size_t oi, const double sum[N]) const takes the sums at o * inner + i; numbers,
 * how many of these belong together, and void one(size_t k, const double sum[numbers]) const, which
 * takes the k-th of such groups over all (o, i): different threads may take those of one (o, i).
 * Uses the stream's scratch. */
template <int N, sums_by BY, class F, class OUT>
static void sums_together(size_t outer, size_t n, size_t inner, const F &term, const OUT &out)
{
    static_assert(N <= 16 && (N & (N - 1)) == 0,
                  "whole sums fit into a block's columns and memory");
    sums_shape s = {outer, n, inner, 1};
    dim3 block = sums_block(inner, PL_SUMS_THREADS), last;
    size_t tiles = outer * ceil_div(inner, block.x);
    size_t blocks = PL_SUMS_MULTIPROCESSORS * F::resident;
    /* minimum of terms per piece */
    size_t least = (inner == 1 ? 4 : 1) * F::ahead * (PL_SUMS_THREADS / block.x);
    sums_of<N> *partial = NULL;

    if (outer == 0 || inner == 0)
        return;
    if (tiles < blocks && n > least) {
        size_t most = ceil_div(n, least), wanted = ceil_div(blocks, tiles);

        s.pieces = wanted < most ? wanted : most;
    }
    if (s.pieces > 1) {
        partial = (sums_of<N> *)scratch(outer * s.pieces * inner * sizeof(*partial));
        if (!partial)
            return;
    }
    if constexpr (N == 1)
        if (inner == 1 && n <= PL_SUMS_SHORT)
            return PL_LAUNCH((sums_short<N, F, OUT>), ceil_div(outer, PL_SUMS_THREADS / 32),
                             PL_SUMS_THREADS, 0, s, term, out);
    if constexpr (BY != SUMS_BY_COLUMNS)
        if (BY == SUMS_BY_ROWS || inner == 1)
            PL_LAUNCH((sums_rows<N, F, OUT>), outer * s.pieces, PL_SUMS_THREADS, 0, s, term, out,
                      partial);
    if constexpr (BY != SUMS_BY_ROWS)
        if (BY == SUMS_BY_COLUMNS || inner != 1)
            PL_LAUNCH((sums_columns<N, F, OUT>), tiles * s.pieces, block, 0, s, term, out, partial);
    if (!partial)
        return;
    s.inner = inner * N / OUT::numbers;
    last = pieces_block(inner * N, s.pieces, OUT::numbers);
    PL_LAUNCH((sums_pieces<OUT::numbers, OUT>), outer * ceil_div(inner * N, last.x), last, 0, s,
              out, (const double *)partial);
}

/* `numbers` of an F that keeps none. */
struct sums_nothing {
    template <class F> __device__ __forceinline__ sums_nothing(const F &, size_t, size_t) {}
};

template <class F> struct sums_term {
    enum { ahead = PL_SUMS_AHEAD, resident = 4 };
    typedef double terms;
    typedef sums_nothing numbers;
    F term;

    __device__ __forceinline__ double take_terms(size_t o, size_t k, size_t i) const
    {
        return term(o, k, i);
    }

    __device__ __forceinline__ void
    add_terms(size_t, size_t, size_t, double in, const numbers &, double sum[1]) const
    {
        sum[0] += in;
    }
};

template <class OUT> struct sums_out {
    enum { numbers = 1 };
    OUT out;

    __device__ void one(size_t i, const double sum[1]) const
    {
        out(i, sum[0]);
    }

    __device__ void operator()(size_t i, const double sum[1]) const
    {
        one(i, sum);
    }
};

/* One sum: F: __device__ double operator()(size_t o, size_t k, size_t i) const, the term;
 * OUT: __device__ void operator()(size_t oi, double sum) const. */
template <class F, class OUT>
static void sums(size_t outer, size_t n, size_t inner, const F &term, const OUT &out)
{
    sums_together<1, SUMS_BY_EITHER>(outer, n, inner, sums_term<F>{term}, sums_out<OUT>{out});
}

} // namespace pl_cuda

#endif
