/* SPDX-License-Identifier: MIT */
/* Exact: ref's operations in ref's order; division and square root are correctly rounded. Reads 3
 * to 5 elements and writes 2 to 4, plus 2 bytes if parameters have a 16-bit copy; at most 20
 * operations: bound by memory. A thread handles 16 bytes of each array (update.cuh). Any number of
 * elements; not measured on a card yet. */
#include "kernels/cuda/update.cuh"

#include <math.h>

namespace pl_cuda
{

namespace
{

/* state: the mean of squares, then the gradients' mean and the velocity, as far as they are used.
 */
template <class R, bool MEAN, bool VELOCITY> struct rmsprop_step {
    R alpha, weight, step, eps, momentum, decay;

    __device__ __forceinline__ R operator()(R p, R g, R *state) const
    {
        R square, d;

        g = g + decay * p;
        square = state[0] = state[0] * alpha + weight * g * g;
        if (MEAN) {
            state[1] = lerp_to(state[1], g, weight);
            square = square - state[1] * state[1];
        }
        d = sqrt(square) + eps;
        if (!VELOCITY)
            return p + step * g / d;
        state[1 + MEAN] = state[1 + MEAN] * momentum + g / d;
        return p + step * state[1 + MEAN];
    }
};

template <class T, bool MEAN, bool VELOCITY> void run(const struct pl_rmsprop_args *a)
{
    void *const state[] = {a->v, MEAN ? a->mean : a->velocity, a->velocity};
    rmsprop_step<real<T>, MEAN, VELOCITY> f = {};

    f.alpha = (real<T>)a->alpha;
    f.weight = (real<T>)(1 - a->alpha);
    f.step = (real<T>)-a->lr;
    f.eps = (real<T>)a->eps;
    f.momentum = (real<T>)a->momentum;
    f.decay = (real<T>)a->weight_decay;
    update_all<T, 1 + MEAN + VELOCITY>(a->update, state, f);
}

} // namespace

template <class T> void rmsprop(const struct pl_rmsprop_args *a)
{
    if (a->mean && a->velocity)
        run<T, true, true>(a);
    else if (a->mean)
        run<T, true, false>(a);
    else if (a->velocity)
        run<T, false, true>(a);
    else
        run<T, false, false>(a);
}

PL_CUDA_DEFINE(rmsprop, rmsprop);

} // namespace pl_cuda
