/* SPDX-License-Identifier: MIT */
/* Forward reads a and b once, sums in f64 (sums.cuh); backward reads them once per gradient and
 * writes it; 3 operations per element. Any shape. Bound by memory; nothing else was tried, not
 * measured on a card yet. */
#include "kernels/cuda/each.cuh"
#include "kernels/cuda/sums.cuh"

namespace pl_cuda
{

namespace
{

template <class T> struct square {
    const T *a, *b;

    __device__ double operator()(size_t, size_t k, size_t) const
    {
        double d = (double)load(a, k) - load(b, k);

        return d * d;
    }
};

template <class T> struct mean_to {
    T *loss;
    size_t n;

    __device__ void operator()(size_t, double sum) const
    {
        store(loss, 0, (real<T>)(sum / (double)n));
    }
};

/* dloss is read in device memory. */
template <class T> struct slope {
    const T *dloss;
    real<T> scale;

    __device__ real<T> operator()(size_t, const real<T> x[2]) const
    {
        return scale * load(dloss, 0) * (x[0] - x[1]);
    }
};

} // namespace

template <class T> void mse_forward(const struct pl_mse_args *a)
{
    sums(1, a->n, 1, square<T>{(const T *)a->a, (const T *)a->b}, mean_to<T>{(T *)a->loss, a->n});
}

template <class T> void mse_backward(const struct pl_mse_args *a)
{
    const T *x = (const T *)a->a, *z = (const T *)a->b, *dloss = (const T *)a->dloss;
    real<T> scale = (real<T>)(2 / (double)a->n);

    if (a->da)
        each<T, 2>(a->n, {{x, z}, (T *)a->da}, a->da_add, slope<T>{dloss, scale});
    if (a->db)
        each<T, 2>(a->n, {{z, x}, (T *)a->db}, a->db_add, slope<T>{dloss, scale});
}

PL_CUDA_DEFINE(mse_forward, mse);
PL_CUDA_DEFINE(mse_backward, mse);

} // namespace pl_cuda
