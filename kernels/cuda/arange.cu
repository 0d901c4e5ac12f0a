/* SPDX-License-Identifier: MIT */
/* Exact. Reads nothing and writes 4 bytes per element, one per thread, with one product: bound by
 * memory, or by the launch, as it is called for a few rows. Nothing else was tried; not measured on
 * a card yet. Up to 2^31 elements. */
#include "kernels/cuda/launch.cuh"

namespace pl_cuda
{

#define THREADS 256

static __global__ void __launch_bounds__(THREADS) arange_kernel(pl_arange_args a)
{
    size_t i = (size_t)blockIdx.x * THREADS + threadIdx.x;

    if (i < a.n)
        a.y[i] = (int32_t)(a.first + (int64_t)i * a.step);
}

template <class T> void arange(const struct pl_arange_args *a)
{
    if (a->n)
        PL_LAUNCH(arange_kernel, ceil_div(a->n, THREADS), THREADS, 0, *a);
}

PL_CUDA_DEFINE(arange, arange);

} // namespace pl_cuda
