/* SPDX-License-Identifier: MIT */
/* Exact. A thread per element: bound by memory, or by the launch, as indices are few. Not measured
 * on a card yet. */
#include "kernels/cuda/divider.cuh"

namespace pl_cuda
{

#define THREADS 256

namespace
{

template <class T>
__global__ void __launch_bounds__(THREADS) whole_kernel(pl_whole_args a, divider by)
{
    size_t at = (size_t)blockIdx.x * THREADS + threadIdx.x, k;
    int32_t x, b;

    if (at >= a.n)
        return;
    by(at, &k);
    x = a.a[at];
    b = a.b[k];
    if (a.op < PL_WHOLE_LT)
        a.y[at] = pl_whole_number(a.op, x, b);
    else
        store((T *)a.real, at, real<T>(pl_whole_value(a.op, x, b)));
}

} // namespace

template <class T> void whole(const struct pl_whole_args *a)
{
    if (a->n)
        PL_LAUNCH((whole_kernel<T>), ceil_div(a->n, THREADS), THREADS, 0, *a, divider(a->m));
}

PL_CUDA_DEFINE(whole, whole);

} // namespace pl_cuda
