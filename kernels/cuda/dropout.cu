/* SPDX-License-Identifier: MIT */
/* Exact. Bound by Philox' multiplications in f32 (about 10 integer ones an element), by memory in
 * no type where it adds; nothing is kept for backward. A thread makes the four numbers of one
 * counter and does their four elements. */
#include "kernels/cuda/launch.cuh"

#include "kernels/philox.h"

namespace pl_cuda
{

#define THREADS 256

template <class T>
static __global__ void __launch_bounds__(THREADS) dropout_kernel(size_t n,
                                                                 uint64_t key,
                                                                 uint64_t low,
                                                                 uint64_t high,
                                                                 const uint64_t *draw,
                                                                 uint32_t limit,
                                                                 real<T> scale,
                                                                 bool add,
                                                                 const T *src,
                                                                 T *dst)
{
    size_t group = (size_t)blockIdx.x * THREADS + threadIdx.x;
    uint32_t number[4];

    if (group * 4 >= n)
        return;
    if (draw)
        high = *draw;
    pl_philox(key, low + group, high, number);
    for (size_t k = 0; k < 4; k++) {
        size_t i = group * 4 + k;

        if (i < n)
            put(dst, i, number[k] < limit ? 0 : load(src, i) * scale, add);
    }
}

template <class T> void dropout(const struct pl_dropout_args *a)
{
    if (a->n)
        PL_LAUNCH((dropout_kernel<T>), ceil_div(a->n, THREADS * 4), THREADS, 0, a->n, a->key,
                  a->counter[0], a->counter[1], a->draw, pl_dropout_limit(a->p),
                  (real<T>)(1 / (1 - a->p)), a->add, (const T *)a->src, (T *)a->dst);
}

PL_CUDA_DEFINE(dropout, dropout);

} // namespace pl_cuda
