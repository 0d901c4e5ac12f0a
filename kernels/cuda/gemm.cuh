/* SPDX-License-Identifier: MIT */
/* C (+)= scale op(A) op(B) + bias, the fallback where cuBLASLt is not used, in real<T> with sums in
 * index order. A block has 64 x 64 of C and goes through k in steps of 16, for which it keeps both
 * operands in shared memory; a thread has 4 x 4 of C in registers: 2 m n k operations, of which 32
 * per 8 numbers read from shared memory (blocking as in Volkov and Demmel 2008, "Benchmarking GPUs
 * to tune dense linear algebra"). No tensor cores. Any shape up to 2^31 - 1 tiles of C. */
#ifndef PL_KERNELS_CUDA_GEMM_CUH
#define PL_KERNELS_CUDA_GEMM_CUH

#include "kernels/cuda/activation.cuh"
#include "kernels/cuda/unroll.cuh"

namespace pl_cuda
{

#define PL_GEMM_TILE 64
#define PL_GEMM_DEPTH 16
#define PL_GEMM_THREADS 256

/* op(A)(i, k) = a[i * a_row + k * a_col], op(B)(k, j) = b[k * b_row + j * b_col]; matrix t begins
 * t * *_batch further. */
template <class T> struct gemm_args {
    size_t batch, m, n, k;
    const T *a, *b;
    size_t a_row, a_col, a_batch, b_row, b_col, b_batch;
    T *c;
    size_t c_row, c_batch;
    real<T> scale;
    bool add;
    const T *bias; /* [n], or NULL */
    int act;       /* enum pl_activation */
    T *pre;        /* as c: what goes into the activation; or NULL */
};

static __host__ __device__ __forceinline__ size_t gemm_tiles(size_t n)
{
    return (n + PL_GEMM_TILE - 1) / PL_GEMM_TILE;
}

/* A tile of an operand, lines of 64 for each of 16 steps of k; what lies outside is 0. Neighbouring
 * threads read along the dense dimension. */
template <class T>
static __device__ __forceinline__ void gemm_tile(real<T> (*to)[PL_GEMM_TILE + 1],
                                                 const T *p,
                                                 size_t first,
                                                 size_t lines,
                                                 size_t line,
                                                 size_t k,
                                                 size_t depth,
                                                 size_t step)
{
    for (unsigned e = threadIdx.x; e < PL_GEMM_TILE * PL_GEMM_DEPTH; e += PL_GEMM_THREADS) {
        unsigned l = line == 1 ? e % PL_GEMM_TILE : e / PL_GEMM_DEPTH;
        unsigned s = line == 1 ? e / PL_GEMM_TILE : e % PL_GEMM_DEPTH;
        bool in = first + l < lines && k + s < depth;

        to[s][l] = in ? load(p, (first + l) * line + (k + s) * step) : 0;
    }
}

template <class T>
static __device__ __forceinline__ void
gemm_out(const gemm_args<T> &g, size_t at, size_t j, real<T> x)
{
    x = g.scale * x;
    if (g.bias)
        x += load(g.bias, j);
    if (g.pre)
        store(g.pre, at, x);
    put(g.c, at, activate_by(g.act, x), g.add);
}

template <class T>
static __global__ void __launch_bounds__(PL_GEMM_THREADS) gemm_kernel(gemm_args<T> g)
{
    PL_SHARED(real<T>, a, [PL_GEMM_DEPTH][PL_GEMM_TILE + 1]);
    PL_SHARED(real<T>, b, [PL_GEMM_DEPTH][PL_GEMM_TILE + 1]);
    size_t down = gemm_tiles(g.m), across = gemm_tiles(g.n), t = blockIdx.x / (down * across);
    size_t i0 = blockIdx.x % down * PL_GEMM_TILE, j0 = blockIdx.x / down % across * PL_GEMM_TILE;
    unsigned ti = threadIdx.x / 16, tj = threadIdx.x % 16;
    real<T> sum[4][4] = {};

    for (size_t k = 0; k < g.k; k += PL_GEMM_DEPTH) {
        gemm_tile(a, g.a + t * g.a_batch, i0, g.m, g.a_row, k, g.k, g.a_col);
        gemm_tile(b, g.b + t * g.b_batch, j0, g.n, g.b_col, k, g.k, g.b_row);
        __syncthreads();
        PL_UNROLL
        for (int s = 0; s < PL_GEMM_DEPTH; s++) {
            PL_UNROLL
            for (int e = 0; e < 16; e++)
                sum[e / 4][e % 4] += a[s][ti + 16 * (e / 4)] * b[s][tj + 16 * (e % 4)];
        }
        __syncthreads();
    }
    PL_UNROLL
    for (int e = 0; e < 16; e++) {
        size_t i = i0 + ti + 16 * (e / 4), j = j0 + tj + 16 * (e % 4);

        if (i < g.m && j < g.n)
            gemm_out(g, t * g.c_batch + i * g.c_row + j, j, sum[e / 4][e % 4]);
    }
}

template <class T> static void gemm(const gemm_args<T> &g)
{
    if (g.m && g.n && g.batch)
        PL_LAUNCH((gemm_kernel<T>), gemm_tiles(g.m) * gemm_tiles(g.n) * g.batch, PL_GEMM_THREADS, 0,
                  g);
}

} // namespace pl_cuda

#endif
