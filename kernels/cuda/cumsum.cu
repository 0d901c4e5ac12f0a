/* SPDX-License-Identifier: MIT */
/* Exact. A thread per column adds its n elements in f64, in ref's order: good for many columns; one
 * long column waits for memory at each step. Not measured on a card yet. */
#include "kernels/cuda/divider.cuh"

namespace pl_cuda
{

#define THREADS 128

namespace
{

template <class T>
__global__ void __launch_bounds__(THREADS) cumsum_kernel(
    size_t columns, size_t n, size_t inner, divider by, bool reverse, bool add, const T *x, T *y)
{
    size_t column = (size_t)blockIdx.x * THREADS + threadIdx.x, i, o;
    double sum = 0;

    if (column >= columns)
        return;
    o = by(column, &i);
    for (size_t step = 0; step < n; step++) {
        size_t at = (o * n + (reverse ? n - 1 - step : step)) * inner + i;

        sum += load(x, at);
        put(y, at, (real<T>)sum, add);
    }
}

} // namespace

template <class T> void cumsum(const struct pl_cumsum_args *a)
{
    size_t columns = a->outer * a->inner;

    if (columns)
        PL_LAUNCH((cumsum_kernel<T>), ceil_div(columns, THREADS), THREADS, 0, columns, a->n,
                  a->inner, divider(a->inner), a->reverse, a->add, (const T *)a->x, (T *)a->y);
}

PL_CUDA_DEFINE(cumsum, cumsum);

} // namespace pl_cuda
