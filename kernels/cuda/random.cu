/* SPDX-License-Identifier: MIT */
/* Exact but for normal numbers. A thread per counter makes four numbers; those of the normal
 * distribution take a logarithm, a root and a sine in f64 each, so that all backends agree. Not
 * measured on a card yet. Any number of elements. */
#include "kernels/cuda/launch.cuh"

#include "kernels/philox.h"

namespace pl_cuda
{

#define THREADS 256

namespace
{

template <class T> __global__ void __launch_bounds__(THREADS) random_kernel(struct pl_random_args a)
{
    size_t group = (size_t)blockIdx.x * THREADS + threadIdx.x;
    uint32_t number[4];

    if (group * 4 >= a.n + a.skip)
        return;
    pl_philox(a.key, a.counter[0] + group, a.draw ? *a.draw : a.counter[1], number);
    for (unsigned k = group ? 0 : a.skip; k < 4 && group * 4 + k < a.n + a.skip; k++) {
        double x = a.kind == PL_RANDOM_UNIFORM ? a.p + (a.q - a.p) * pl_random_uniform(number, k)
                   : a.kind == PL_RANDOM_BERNOULLI ? pl_random_bernoulli(number, k, a.p)
                                                   : a.p + a.q * pl_random_normal(number, k);

        store((T *)a.y, group * 4 + k - a.skip, (real<T>)x);
    }
}

} // namespace

template <class T> void random(const struct pl_random_args *a)
{
    if (a->n)
        PL_LAUNCH((random_kernel<T>), ceil_div(a->n + a->skip, THREADS * 4), THREADS, 0, *a);
}

PL_CUDA_DEFINE(random, random);

} // namespace pl_cuda
