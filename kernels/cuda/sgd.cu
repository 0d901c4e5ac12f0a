/* SPDX-License-Identifier: MIT */
/* Exact: ref's operations in ref's order. Reads 2 elements (3 with momentum) and writes 1 (2), at
 * most 9 operations: bound by memory. */
#include "kernels/cuda/update.cuh"

namespace pl_cuda
{

#define THREADS 256

namespace
{

template <class T>
__global__ void __launch_bounds__(THREADS) sgd_kernel(
    update_of<T> u, real<T> lr, real<T> momentum, real<T> decay, bool nesterov, T *velocity)
{
    size_t k = (size_t)blockIdx.x * THREADS + threadIdx.x;
    real<T> p, g, v;

    if (k >= u.n)
        return;
    p = load(u.param, k);
    g = u.gradient(k) + decay * p;
    if (velocity) {
        v = momentum * load(velocity, k) + g;
        store(velocity, k, v);
        g = nesterov ? g + momentum * v : v;
    }
    u.set(k, p - lr * g);
}

} // namespace

template <class T> void sgd(const struct pl_sgd_args *a)
{
    if (a->update.n)
        PL_LAUNCH((sgd_kernel<T>), ceil_div(a->update.n, THREADS), THREADS, 0,
                  update_from<T>(a->update), (real<T>)a->lr, (real<T>)a->momentum,
                  (real<T>)a->weight_decay, a->nesterov, (T *)a->velocity);
}

PL_CUDA_DEFINE(sgd, sgd);

} // namespace pl_cuda
