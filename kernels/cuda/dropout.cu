/* SPDX-License-Identifier: MIT */
/* Exact. Reads 1 element (2 with `add`) and writes 1, 1 multiplication. A call of Philox (10
 * rounds, 20 wide multiplications; Salmon et al., SC11) gives the numbers of 4 elements, which one
 * thread handles: close to bound by memory in f32, by integers in 16 bits. Nothing is kept for
 * backward, which computes the same numbers again: otherwise a mask would be written and read. The
 * four elements are moved at once if the arrays are aligned; 2.7 of 3.0 TB/s on an H100 in f32,
 * 2.1 in bf16. Any number of elements. */
#include "kernels/cuda/launch.cuh"

#include "kernels/philox.h"

namespace pl_cuda
{

#define THREADS 256

/* A counter's elements, moved at once. */
template <class T> struct alignas(sizeof(T) < 4 ? 4 * sizeof(T) : 16) four {
    T of[4];
};

template <class T>
static __global__ void __launch_bounds__(THREADS) dropout_kernel(size_t n,
                                                                 uint64_t key,
                                                                 uint64_t low,
                                                                 uint64_t high,
                                                                 const uint64_t *draw,
                                                                 uint32_t limit,
                                                                 real<T> scale,
                                                                 bool add,
                                                                 bool together,
                                                                 unsigned skip,
                                                                 const T *src,
                                                                 T *dst)
{
    size_t group = (size_t)blockIdx.x * THREADS + threadIdx.x;
    uint32_t number[4];

    if (group * 4 >= n + skip)
        return;
    if (draw)
        high = *draw;
    pl_philox(key, low + group, high, number);
    if (together && group * 4 + 4 <= n) {
        four<T> in = reinterpret_cast<const four<T> *>(src)[group], out;

        if (add)
            out = reinterpret_cast<four<T> *>(dst)[group];
        for (size_t k = 0; k < 4; k++)
            put(out.of, k, number[k] < limit ? 0 : widen_one(in.of[k]) * scale, add);
        reinterpret_cast<four<T> *>(dst)[group] = out;
        return;
    }
    for (size_t k = 0; k < 4; k++) {
        size_t i = group * 4 + k - skip; /* below 0: beyond n */

        if (i < n)
            put(dst, i, number[k] < limit ? 0 : load(src, i) * scale, add);
    }
}

template <class T> void dropout(const struct pl_dropout_args *a)
{
    bool together = ((uintptr_t)a->src | (uintptr_t)a->dst) % alignof(four<T>) == 0 && !a->skip;

    if (a->n)
        PL_LAUNCH((dropout_kernel<T>), ceil_div(a->n + a->skip, THREADS * 4), THREADS, 0, a->n,
                  a->key, a->counter[0], a->counter[1], a->draw, pl_dropout_limit(a->p),
                  (real<T>)(1 / (1 - a->p)), a->add, together, a->skip, (const T *)a->src,
                  (T *)a->dst);
}

PL_CUDA_DEFINE(dropout, dropout);

} // namespace pl_cuda
