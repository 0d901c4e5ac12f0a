/* SPDX-License-Identifier: MIT */
/* Exact: the sum's order is args_optim.h's. Reads each element once, and writes it unless the scale
 * is 1; 3 operations of which 2 in f64: bound by memory. A block has one of at most 1024 chunks and
 * goes through it tile by tile: all its threads move the tile, then 16 threads, one per lane, add
 * its squares in order. The lanes' sums are a chain; with fewer chunks, thus longer chains, they
 * took 8 times as long as reading (H100). A tree over all threads would give other bits than ref.
 * Any number of elements; 16 KB of shared memory, 32 in f64. */
#include "kernels/cuda/warp.cuh"

namespace pl_cuda
{

#define LANES PL_GRAD_STATS_LANES
#define THREADS 256
#define TILE 4096 /* a multiple of LANES, like the chunks */

namespace
{

template <class T>
__global__ void __launch_bounds__(THREADS) grad_stats_kernel(
    size_t n, size_t chunk, real<T> scale, T *grad, double *squares, unsigned *bad)
{
    PL_SHARED(real<T>, tile, [TILE]);
    size_t begin = blockIdx.x * chunk, end = begin + chunk < n ? begin + chunk : n;
    double sum = 0;
    unsigned any = 0;

    for (size_t at = begin; at < end; at += TILE) {
        unsigned count = end - at < TILE ? (unsigned)(end - at) : TILE;

        __syncthreads(); /* the previous tile is summed */
        for (unsigned i = threadIdx.x; i < count; i += THREADS) {
            if (scale != 1) {
                T g = narrow_one<T>(load(grad, at + i) * scale);

                grad[at + i] = g;
                tile[i] = widen_one(g);
            } else {
                tile[i] = load(grad, at + i);
            }
            any |= !isfinite(tile[i]);
        }
        __syncthreads();
        if (threadIdx.x < LANES)
            for (unsigned i = threadIdx.x; i < count; i += LANES)
                sum += (double)tile[i] * (double)tile[i];
    }
    any = block_sum(any);
    /* Lane i adds lane i + half; the upper lanes' results are not used. */
    for (int half = LANES / 2; half > 0; half /= 2)
        sum += __shfl_down_sync(0xffffffff, sum, half);
    if (threadIdx.x == 0) {
        squares[blockIdx.x] = sum;
        bad[blockIdx.x] = any;
    }
}

__global__ void __launch_bounds__(THREADS) grad_stats_whole(size_t chunks,
                                                            const double *squares,
                                                            const unsigned *bad,
                                                            struct pl_grad_stats_args a)
{
    PL_SHARED(double, of_chunk, [PL_GRAD_STATS_CHUNKS]);
    double sum = 0;
    unsigned any = 0;

    for (size_t i = threadIdx.x; i < chunks; i += THREADS) {
        of_chunk[i] = squares[i];
        any |= bad[i];
    }
    any = block_sum(any); /* and all of of_chunk is there */
    if (threadIdx.x)
        return;
    for (size_t i = 0; i < chunks; i++)
        sum += of_chunk[i];
    *a.ret_squares = sum;
    *a.ret_finite = !any;
    if (a.total) {
        *a.total += sum;
        *a.ret_factor = pl_clip_to(a.limit, sqrt(*a.total));
    }
}

} // namespace

template <class T> void grad_stats(const struct pl_grad_stats_args *a)
{
    size_t chunk = pl_grad_stats_chunk(a->n), chunks = ceil_div(a->n, chunk);
    double *squares = (double *)scratch(PL_GRAD_STATS_CHUNKS * (sizeof(double) + sizeof(unsigned)));
    unsigned *bad = (unsigned *)(squares + PL_GRAD_STATS_CHUNKS);

    if (!squares)
        return;
    if (chunks)
        PL_LAUNCH((grad_stats_kernel<T>), chunks, THREADS, 0, a->n, chunk, (real<T>)a->scale,
                  (T *)a->grad, squares, bad);
    PL_LAUNCH(grad_stats_whole, 1, THREADS, 0, chunks, squares, bad, *a);
}

PL_CUDA_DEFINE(grad_stats, grad_stats);

} // namespace pl_cuda
