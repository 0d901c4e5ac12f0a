/* SPDX-License-Identifier: MIT */
/* Exact. Forward: a thread per element of y, an index and an element read, one written. Backward: a
 * thread per element of dx goes through the m indices of its column and adds what they chose, in
 * their order and without atomics: n m comparisons per column. With few indices (losses, top k)
 * writing dx should take longer than that; no card has measured it. Embedding is the op for the
 * rows of a large table. */
#include "kernels/cuda/divider.cuh"

#include <math.h>

namespace pl_cuda
{

#define THREADS 256

namespace
{

struct places {
    struct pl_gather_args a;
    divider inner, middle; /* middle: m forward, n backward */
};

template <class T>
__global__ void __launch_bounds__(THREADS) gather_forward_kernel(size_t count, places p)
{
    const struct pl_gather_args &a = p.a;
    size_t at = (size_t)blockIdx.x * THREADS + threadIdx.x, i, j, o;
    int32_t from;

    if (at >= count)
        return;
    o = p.middle(p.inner(at, &i), &j);
    from = a.index[pl_gather_at(&a, o, j, i)];
    if (a.skips && from == a.skip)
        store((T *)a.y, at, real<T>(0));
    else if (from < 0 || (size_t)from >= a.n)
        store((T *)a.y, at, real<T>(NAN));
    else
        store((T *)a.y, at, load((const T *)a.x, (o * a.n + (size_t)from) * a.inner + i));
}

template <class T>
__global__ void __launch_bounds__(THREADS) gather_backward_kernel(size_t count, places p)
{
    const struct pl_gather_args &a = p.a;
    size_t at = (size_t)blockIdx.x * THREADS + threadIdx.x, i, k, o;
    real<T> sum;

    if (at >= count)
        return;
    o = p.middle(p.inner(at, &i), &k);
    sum = a.dx_add ? load((const T *)a.dx, at) : real<T>(0);
    if (!a.skips || (int64_t)k != a.skip)
        for (size_t j = 0; j < a.m; j++)
            if (a.index[pl_gather_at(&a, o, j, i)] == (int64_t)k)
                sum += load((const T *)a.dy, (o * a.m + j) * a.inner + i);
    store((T *)a.dx, at, sum);
}

} // namespace

template <class T> void gather_forward(const struct pl_gather_args *a)
{
    size_t count = a->outer * a->m * a->inner;

    if (count)
        PL_LAUNCH((gather_forward_kernel<T>), ceil_div(count, THREADS), THREADS, 0, count,
                  places{*a, divider(a->inner), divider(a->m)});
}

template <class T> void gather_backward(const struct pl_gather_args *a)
{
    size_t count = a->outer * a->n * a->inner;

    if (count)
        PL_LAUNCH((gather_backward_kernel<T>), ceil_div(count, THREADS), THREADS, 0, count,
                  places{*a, divider(a->inner), divider(a->n)});
}

PL_CUDA_DEFINE(gather_forward, gather);
PL_CUDA_DEFINE(gather_backward, gather);

} // namespace pl_cuda
