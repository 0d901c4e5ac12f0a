/* SPDX-License-Identifier: MIT */
/* Forward reads each element once, 1 addition in f64 (order: see sums.cuh). Backward writes each
 * element, one per thread, from a dy that is mostly in the cache, and with `add` reads it; 1
 * operation. Bound by memory; no atomics, which would give other bits each time; not measured on a
 * card yet. Any shape. */
#include "kernels/cuda/divider.cuh"
#include "kernels/cuda/sums.cuh"

namespace pl_cuda
{

#define THREADS 256

namespace
{

template <class T> struct element {
    const T *x;
    size_t n, inner;

    __device__ double operator()(size_t o, size_t k, size_t i) const
    {
        return load(x, (o * n + k) * inner + i);
    }
};

template <class T> struct scaled_to {
    T *y;
    double scale;

    __device__ void operator()(size_t i, double sum) const
    {
        store(y, i, (real<T>)(scale * sum));
    }
};

template <class T>
__global__ void __launch_bounds__(THREADS) reduce_backward_kernel(
    size_t count, divider n, divider inner, size_t row, real<T> scale, bool add, const T *dy, T *dx)
{
    size_t i = (size_t)blockIdx.x * THREADS + threadIdx.x, at, k, o;

    if (i >= count)
        return;
    o = n(inner(i, &at), &k);
    put(dx, i, scale * load(dy, o * row + at), add);
}

} // namespace

template <class T> void reduce_forward(const struct pl_reduce_args *a)
{
    sums(a->outer, a->n, a->inner, element<T>{(const T *)a->x, a->n, a->inner},
         scaled_to<T>{(T *)a->y, a->scale});
}

template <class T> void reduce_backward(const struct pl_reduce_args *a)
{
    size_t count = a->outer * a->n * a->inner;

    if (count)
        PL_LAUNCH((reduce_backward_kernel<T>), ceil_div(count, THREADS), THREADS, 0, count,
                  divider(a->n), divider(a->inner), a->inner, (real<T>)a->scale, a->dx_add,
                  (const T *)a->dy, (T *)a->dx);
}

PL_CUDA_DEFINE(reduce_forward, reduce);
PL_CUDA_DEFINE(reduce_backward, reduce);

} // namespace pl_cuda
