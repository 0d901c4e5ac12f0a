/* SPDX-License-Identifier: MIT */
/* Exact: ref's operations in ref's order; division and square root are correctly rounded. Reads 3
 * elements and writes 2, plus 2 bytes if parameters have a 16-bit copy; 12 operations: bound by
 * memory. A thread handles 16 bytes of each array (update.cuh). Any number of elements; not
 * measured on a card yet. */
#include "kernels/cuda/update.cuh"

#include <math.h>

namespace pl_cuda
{

namespace
{

template <class R> struct adagrad_step {
    R step, eps, decay;

    __device__ __forceinline__ R operator()(R p, R g, R state[1]) const
    {
        g = g + decay * p;
        state[0] = state[0] + g * g;
        return p + step * g / (sqrt(state[0]) + eps);
    }
};

} // namespace

template <class T> void adagrad(const struct pl_adagrad_args *a)
{
    update_all<T, 1>(
        a->update, &a->sum,
        adagrad_step<real<T>>{(real<T>)-a->lr, (real<T>)a->eps, (real<T>)a->weight_decay});
}

PL_CUDA_DEFINE(adagrad, adagrad);

} // namespace pl_cuda
