/* SPDX-License-Identifier: MIT */
/* Exact: ref's operations in ref's order; division and square root are rounded correctly. Reads 4
 * elements and writes 3, some 15 operations: bound by memory. */
#include "kernels/cuda/update.cuh"

#include <math.h>

namespace pl_cuda
{

#define THREADS 256

namespace
{

template <class R> struct adam_factors {
    R weight1, weight2, step, keep, decay, beta2, correct2, eps;
    bool decoupled;
};

/* at::lerp: exact at both ends. */
template <class R> __device__ __forceinline__ R lerp_to(R from, R to, R weight)
{
    if (weight < (R)0.5)
        return from + weight * (to - from);
    return to - (to - from) * (1 - weight);
}

template <class T>
__global__ void __launch_bounds__(THREADS)
    adam_kernel(update_of<T> u, adam_factors<real<T>> f, T *m, T *v)
{
    size_t k = (size_t)blockIdx.x * THREADS + threadIdx.x;
    real<T> g, p, first, second;

    if (k >= u.n)
        return;
    g = u.gradient(k);
    p = load(u.param, k);
    if (f.decoupled)
        p = p * f.keep;
    else
        g = g + f.decay * p;
    first = lerp_to(load(m, k), g, f.weight1);
    second = load(v, k) * f.beta2 + f.weight2 * g * g;
    store(m, k, first);
    store(v, k, second);
    p = p + f.step * first / (sqrt(second) / f.correct2 + f.eps);
    u.set(k, p);
}

} // namespace

template <class T> void adam(const struct pl_adam_args *a)
{
    double correct1 = 1 - pow(a->beta1, (double)a->step);
    adam_factors<real<T>> f = {};

    f.weight1 = (real<T>)(1 - a->beta1);
    f.weight2 = (real<T>)(1 - a->beta2);
    f.step = (real<T>)-(a->lr / correct1);
    f.keep = (real<T>)(1 - a->lr * a->weight_decay);
    f.decay = (real<T>)a->weight_decay;
    f.beta2 = (real<T>)a->beta2;
    f.correct2 = (real<T>)sqrt(1 - pow(a->beta2, (double)a->step));
    f.eps = (real<T>)a->eps;
    f.decoupled = a->decoupled;
    if (a->update.n)
        PL_LAUNCH((adam_kernel<T>), ceil_div(a->update.n, THREADS), THREADS, 0,
                  update_from<T>(a->update), f, (T *)a->m, (T *)a->v);
}

PL_CUDA_DEFINE(adam, adam);

} // namespace pl_cuda
