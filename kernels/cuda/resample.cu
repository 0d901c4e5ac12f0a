/* SPDX-License-Identifier: MIT */
/* A thread per element that is written. Backward looks for the first element of y that has its own
 * by bisection, since ranges only move forward, and adds those that have it, in order and without
 * atomics. Bound by memory; not measured on a card yet. */
#include "kernels/cuda/divider.cuh"

namespace pl_cuda
{

#define THREADS 256

namespace
{

template <class T>
__global__ void __launch_bounds__(THREADS)
    forward_kernel(size_t count, struct pl_resample_args a, divider inner, divider m)
{
    size_t at = (size_t)blockIdx.x * THREADS + threadIdx.x, c, i, o;
    struct pl_taps t;
    double sum = 0;

    if (at >= count)
        return;
    o = m(inner(at, &c), &i);
    t = pl_taps_of(a.mode, a.n, a.m, i);
    for (size_t k = 0; k < t.count; k++)
        sum += (k == 0 ? t.weight : t.others) *
               (double)load((const T *)a.x, (o * a.n + t.first + k) * a.inner + c);
    store((T *)a.y, at, (real<T>)sum);
}

template <class T>
__global__ void __launch_bounds__(THREADS)
    backward_kernel(size_t count, struct pl_resample_args a, divider inner, divider n)
{
    size_t at = (size_t)blockIdx.x * THREADS + threadIdx.x, c, k, o, low = 0, high = a.m;
    double sum = 0;

    if (at >= count)
        return;
    o = n(inner(at, &c), &k);
    while (low < high) { /* the first i whose range does not end before k */
        size_t middle = (low + high) / 2;
        struct pl_taps t = pl_taps_of(a.mode, a.n, a.m, middle);

        if (t.first + t.count <= k)
            low = middle + 1;
        else
            high = middle;
    }
    for (size_t i = low; i < a.m; i++) {
        struct pl_taps t = pl_taps_of(a.mode, a.n, a.m, i);
        double weight = k == t.first ? t.weight : t.others;

        if (t.first > k)
            break;
        if (weight != 0)
            sum += weight * (double)load((const T *)a.dy, (o * a.m + i) * a.inner + c);
    }
    put((T *)a.dx, at, (real<T>)sum, a.dx_add);
}

} // namespace

template <class T> void resample_forward(const struct pl_resample_args *a)
{
    size_t count = a->outer * a->m * a->inner;

    if (count)
        PL_LAUNCH((forward_kernel<T>), ceil_div(count, THREADS), THREADS, 0, count, *a,
                  divider(a->inner), divider(a->m));
}

template <class T> void resample_backward(const struct pl_resample_args *a)
{
    size_t count = a->outer * a->n * a->inner;

    if (count)
        PL_LAUNCH((backward_kernel<T>), ceil_div(count, THREADS), THREADS, 0, count, *a,
                  divider(a->inner), divider(a->n));
}

PL_CUDA_DEFINE(resample_forward, resample);
PL_CUDA_DEFINE(resample_backward, resample);

} // namespace pl_cuda
