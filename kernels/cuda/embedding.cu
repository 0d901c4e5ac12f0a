/* SPDX-License-Identifier: MIT */
/* Forward copies a row of the table for each id; bound by memory. Backward adds in the order of the
 * rows, as ref does, without atomics and without sorting: a warp has one row of the table and up to
 * 256 of its columns in registers, goes through all ids, 32 at a time, and reads the rows of dy
 * that are its own. So dy is read once and dtable written once, and the ids vocab * dim / 256
 * times, from the cache. An id that very many rows have makes one warp add all of them. Any shape.
 */
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/unroll.cuh"

#include <math.h>

namespace pl_cuda
{

#define THREADS 256
#define WARPS (THREADS / 32)
#define IDS 1024  /* in shared memory at once */
#define COLUMNS 8 /* of a lane */
#define FORWARD 4 /* elements of a thread */

namespace
{

template <class T>
__global__ void __launch_bounds__(THREADS) embedding_forward_kernel(
    size_t count, size_t dim, size_t vocab, const int32_t *ids, const T *table, T *y)
{
    size_t from = (size_t)blockIdx.x * THREADS * FORWARD + threadIdx.x;

    PL_UNROLL
    for (unsigned k = 0; k < FORWARD; k++) {
        size_t i = from + k * THREADS;

        if (i < count) {
            int32_t id = ids[i / dim];

            if (id >= 0 && (size_t)id < vocab)
                y[i] = table[(size_t)id * dim + i % dim];
            else
                store(y, i, (real<T>)NAN);
        }
    }
}

template <class T> struct backward {
    size_t rows, vocab, dim;
    bool add;
    const int32_t *ids;
    const T *dy;
    T *dtable;
};

template <class T>
__global__ void __launch_bounds__(THREADS) embedding_backward_kernel(backward<T> b)
{
    PL_SHARED(int32_t, ids, [IDS]);
    unsigned lane = threadIdx.x % 32;
    size_t own = (size_t)blockIdx.x * WARPS + threadIdx.x / 32;
    size_t column = (size_t)blockIdx.y * COLUMNS * 32 + lane;
    T *to = b.dtable + own * b.dim;
    real<T> sum[COLUMNS];
    bool any = !b.add;

    PL_UNROLL
    for (unsigned c = 0; c < COLUMNS; c++) {
        size_t at = column + c * 32;

        sum[c] = b.add && own < b.vocab && at < b.dim ? load(to, at) : 0;
    }
    for (size_t r0 = 0; r0 < b.rows; r0 += IDS) {
        size_t left = b.rows - r0;

        __syncthreads();
        for (unsigned i = threadIdx.x; i < IDS; i += THREADS)
            ids[i] = i < left ? b.ids[r0 + i] : -1;
        __syncthreads();
        for (unsigned i = 0; i < IDS && i < left; i += 32) {
            unsigned mine =
                __ballot_sync(0xffffffff, ids[i + lane] >= 0 && (size_t)ids[i + lane] == own);

            for (unsigned k = 0; k < 32 && mine >> k; k++) {
                const T *from = b.dy + (r0 + i + k) * b.dim;

                if (!(mine >> k & 1))
                    continue;
                any = true;
                PL_UNROLL
                for (unsigned c = 0; c < COLUMNS; c++)
                    if (column + c * 32 < b.dim && own < b.vocab)
                        sum[c] += load(from, column + c * 32);
            }
        }
    }
    PL_UNROLL
    for (unsigned c = 0; c < COLUMNS; c++)
        if (any && column + c * 32 < b.dim && own < b.vocab)
            store(to, column + c * 32, sum[c]);
}

} // namespace

template <class T> void embedding_forward(const struct pl_embedding_args *a)
{
    size_t count = a->rows * a->dim;

    if (count)
        PL_LAUNCH((embedding_forward_kernel<T>), ceil_div(count, THREADS * FORWARD), THREADS, 0,
                  count, a->dim, a->vocab, a->ids, (const T *)a->table, (T *)a->y);
}

template <class T> void embedding_backward(const struct pl_embedding_args *a)
{
    dim3 grid(ceil_div(a->vocab, WARPS), ceil_div(a->dim, COLUMNS * 32));
    backward<T> b = {a->rows, a->vocab,         a->dim,        a->dtable_add,
                     a->ids,  (const T *)a->dy, (T *)a->dtable};

    if (a->vocab && a->dim)
        PL_LAUNCH((embedding_backward_kernel<T>), grid, THREADS, 0, b);
}

PL_CUDA_DEFINE(embedding_forward, embedding);
PL_CUDA_DEFINE(embedding_backward, embedding);

} // namespace pl_cuda
