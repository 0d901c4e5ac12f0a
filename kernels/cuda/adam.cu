/* SPDX-License-Identifier: MIT */
/* Exact: ref's operations in ref's order; division and square root are correctly rounded. Reads 4
 * elements and writes 3, plus 2 bytes if parameters have a 16-bit copy; 18 operations: bound by
 * memory. A thread handles 16 bytes of each array (update.cuh), a kernel one parameter. One kernel
 * for all parameters (PyTorch's multi-tensor apply) would save launches, which a replayed graph
 * hides already. Any number of elements; 3.0 of 3.0 TB/s on an H100. */
#include "kernels/cuda/update.cuh"

#include <math.h>

namespace pl_cuda
{

namespace
{

/* state: the means of gradients and of their squares. */
template <class R> struct adam_step {
    R weight1, weight2, step, keep, decay, beta2, correct2, eps;
    bool decoupled;

    __device__ __forceinline__ R operator()(R p, R g, R state[2]) const
    {
        if (decoupled)
            p = p * keep;
        else
            g = g + decay * p;
        state[0] = lerp_to(state[0], g, weight1);
        state[1] = state[1] * beta2 + weight2 * g * g;
        return p + step * state[0] / (sqrt(state[1]) / correct2 + eps);
    }
};

} // namespace

template <class T> void adam(const struct pl_adam_args *a)
{
    double correct1 = 1 - pow(a->beta1, (double)a->step);
    adam_step<real<T>> f = {};
    void *const state[] = {a->m, a->v};

    f.weight1 = (real<T>)(1 - a->beta1);
    f.weight2 = (real<T>)(1 - a->beta2);
    f.step = (real<T>)-(a->lr / correct1);
    f.keep = (real<T>)(1 - a->lr * a->weight_decay);
    f.decay = (real<T>)a->weight_decay;
    f.beta2 = (real<T>)a->beta2;
    f.correct2 = (real<T>)sqrt(1 - pow(a->beta2, (double)a->step));
    f.eps = (real<T>)a->eps;
    f.decoupled = a->decoupled;
    update_all<T, 2>(a->update, state, f);
}

PL_CUDA_DEFINE(adam, adam);

} // namespace pl_cuda
