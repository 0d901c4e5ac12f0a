/* SPDX-License-Identifier: MIT */
/* Sums over k of A(i, k) B(k, j), the fallback without NVIDIA's libraries, in real<T>, for any
 * source of operands and any use of the sums. A block computes 64 x 64 sums in steps of 16 of k,
 * with both operands in shared memory; a thread has 4 x 4 in registers: 2 m n k operations, of
 * which 32 per 8 numbers read from shared memory (blocking as in Volkov and Demmel 2008,
 * "Benchmarking GPUs to tune dense linear algebra"). No tensor cores.
 *
 * Sums are in order of k. If there are few long sums, k is cut into pieces, whose sums are added in
 * order; their number depends on the shape only. Up to 2^31 - 1 blocks. */
#ifndef PL_KERNELS_CUDA_GEMM_CUH
#define PL_KERNELS_CUDA_GEMM_CUH

#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/unroll.cuh"

namespace pl_cuda
{

#define PL_GEMM_TILE 64
#define PL_GEMM_DEPTH 16
#define PL_GEMM_THREADS 256
/* Numbers from a line of a tile in shared memory to the next. A warp writes two columns of 16 f32,
 * or half a warp one of f64: each number of them to another bank. */
#define PL_GEMM_PITCH(R) (PL_GEMM_TILE + (sizeof(R) == 4 ? 2 : 1))
#define PL_GEMM_BLOCKS 256 /* enough to fill any GPU */
#define PL_GEMM_LEAST 1024 /* minimum of k per piece; a multiple of PL_GEMM_DEPTH */

struct gemm_shape {
    size_t batch, m, n, k;
};

/* The division of the work among blocks. */
struct gemm_blocks {
    size_t down, across, pieces, depth; /* depth: k per piece */
};

/* An operand in memory: A(i, k) = p[i * line + k * step], B(k, j) = p[j * line + k * step]; matrix
 * t begins at t * batch. */
template <class T> struct strided {
    const T *p;
    size_t line, step, batch;

    /* True if neighbouring lines are adjacent in memory, false if neighbouring steps are. */
    __device__ __forceinline__ bool lines_near() const
    {
        return line == 1;
    }

    __device__ __forceinline__ real<T> operator()(size_t t, size_t l, size_t k) const
    {
        return load(p, t * batch + l * line + k * step);
    }
};

/* Loads a tile of an operand, with 0 outside. Neighbouring threads read neighbours. */
template <class R, class OPERAND>
static __device__ __forceinline__ void gemm_tile(R (*to)[PL_GEMM_PITCH(R)],
                                                 const OPERAND &operand,
                                                 size_t t,
                                                 size_t first,
                                                 size_t lines,
                                                 size_t k,
                                                 size_t end)
{
    bool near = operand.lines_near();

    for (unsigned e = threadIdx.x; e < PL_GEMM_TILE * PL_GEMM_DEPTH; e += PL_GEMM_THREADS) {
        unsigned l = near ? e % PL_GEMM_TILE : e / PL_GEMM_DEPTH;
        unsigned s = near ? e / PL_GEMM_TILE : e % PL_GEMM_DEPTH;
        bool in = first + l < lines && k + s < end;

        to[s][l] = in ? operand(t, first + l, k + s) : 0;
    }
}

template <class R, class A, class B, class OUT>
static __global__ void __launch_bounds__(PL_GEMM_THREADS)
    gemm_kernel(gemm_shape g, gemm_blocks blocks, A a, B b, OUT out, R *partial)
{
    PL_SHARED(R, lines_a, [PL_GEMM_DEPTH][PL_GEMM_PITCH(R)]);
    PL_SHARED(R, lines_b, [PL_GEMM_DEPTH][PL_GEMM_PITCH(R)]);
    size_t block = blockIdx.x, i0 = block % blocks.down * PL_GEMM_TILE;
    size_t j0 = block / blocks.down % blocks.across * PL_GEMM_TILE;
    size_t which = block / (blocks.down * blocks.across), t = which % g.batch;
    size_t begin = which / g.batch * blocks.depth, end = begin + blocks.depth;
    unsigned ti = threadIdx.x / 16, tj = threadIdx.x % 16;
    R sum[4][4] = {};

    end = end < g.k ? end : g.k;
    for (size_t k = begin; k < end; k += PL_GEMM_DEPTH) {
        gemm_tile(lines_a, a, t, i0, g.m, k, end);
        gemm_tile(lines_b, b, t, j0, g.n, k, end);
        __syncthreads();
        PL_UNROLL
        for (int s = 0; s < PL_GEMM_DEPTH; s++) {
            PL_UNROLL
            for (int e = 0; e < 16; e++)
                sum[e / 4][e % 4] += lines_a[s][ti + 16 * (e / 4)] * lines_b[s][tj + 16 * (e % 4)];
        }
        __syncthreads();
    }
    PL_UNROLL
    for (int e = 0; e < 16; e++) {
        size_t i = i0 + ti + 16 * (e / 4), j = j0 + tj + 16 * (e % 4);

        if (i >= g.m || j >= g.n)
            continue;
        if (partial)
            partial[(which * g.m + i) * g.n + j] = sum[e / 4][e % 4];
        else
            out(t, i, j, sum[e / 4][e % 4]);
    }
}

template <class R, class OUT>
static __global__ void __launch_bounds__(PL_GEMM_THREADS)
    gemm_pieces(gemm_shape g, size_t pieces, OUT out, const R *partial)
{
    size_t at = (size_t)blockIdx.x * PL_GEMM_THREADS + threadIdx.x, count = g.batch * g.m * g.n;
    R sum = 0;

    if (at >= count)
        return;
    for (size_t piece = 0; piece < pieces; piece++)
        sum += partial[piece * count + at];
    out(at / g.n / g.m, at / g.n % g.m, at % g.n, sum);
}

static inline gemm_blocks gemm_blocks_of(const gemm_shape &g)
{
    gemm_blocks b = {ceil_div(g.m, PL_GEMM_TILE), ceil_div(g.n, PL_GEMM_TILE), 1, g.k};
    size_t wanted = ceil_div(PL_GEMM_BLOCKS, b.down * b.across * g.batch);
    size_t most = ceil_div(g.k, PL_GEMM_LEAST);

    if (wanted > 1 && most > 1) {
        b.pieces = wanted < most ? wanted : most;
        b.depth = ceil_div(ceil_div(g.k, b.pieces), PL_GEMM_DEPTH) * PL_GEMM_DEPTH;
    }
    return b;
}

/* A, B: __device__ real<T> operator()(size_t t, size_t line, size_t k) const, and lines_near() as
 * in struct strided; OUT: __device__ void operator()(size_t t, size_t i, size_t j, real<T> sum)
 * const. Uses the stream's scratch. */
template <class T, class A, class B, class OUT>
static void gemm(const gemm_shape &g, const A &a, const B &b, const OUT &out)
{
    typedef real<T> R;
    size_t count = g.batch * g.m * g.n;
    gemm_blocks blocks;
    R *partial = NULL;

    if (count == 0)
        return;
    blocks = gemm_blocks_of(g);
    if (blocks.pieces > 1) {
        partial = (R *)scratch(blocks.pieces * count * sizeof(*partial));
        if (!partial)
            return;
    }
    PL_LAUNCH((gemm_kernel<R, A, B, OUT>), blocks.down * blocks.across * g.batch * blocks.pieces,
              PL_GEMM_THREADS, 0, g, blocks, a, b, out, partial);
    if (partial)
        PL_LAUNCH((gemm_pieces<R, OUT>), ceil_div(count, PL_GEMM_THREADS), PL_GEMM_THREADS, 0, g,
                  blocks.pieces, out, (const R *)partial);
}

/* c_t (+)= scale times the sums; rows c_row apart, matrices c_batch. */
template <class T> struct gemm_to {
    T *c;
    size_t c_row, c_batch;
    real<T> scale;
    bool add;

    __device__ __forceinline__ void operator()(size_t t, size_t i, size_t j, real<T> sum) const
    {
        put(c, t * c_batch + i * c_row + j, scale * sum, add);
    }
};

} // namespace pl_cuda

#endif
