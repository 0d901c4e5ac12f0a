/* SPDX-License-Identifier: MIT */
/* Exact. A thread per element, which it writes: bound by memory. Not measured on a card yet. */
#include "kernels/cuda/divider.cuh"

#include <math.h>

namespace pl_cuda
{

#define THREADS 256

namespace
{

template <class T>
__global__ void __launch_bounds__(THREADS)
    one_hot_kernel(size_t count, size_t classes, divider by, const int32_t *labels, T *y)
{
    size_t at = (size_t)blockIdx.x * THREADS + threadIdx.x, c;
    int64_t label;

    if (at >= count)
        return;
    label = labels[by(at, &c)];
    store(y, at,
          label < 0 || label >= (int64_t)classes ? real<T>(NAN) : real<T>(label == (int64_t)c));
}

} // namespace

template <class T> void one_hot(const struct pl_one_hot_args *a)
{
    size_t count = a->rows * a->classes;

    if (count)
        PL_LAUNCH((one_hot_kernel<T>), ceil_div(count, THREADS), THREADS, 0, count, a->classes,
                  divider(a->classes), a->labels, (T *)a->y);
}

PL_CUDA_DEFINE(one_hot, one_hot);

} // namespace pl_cuda
