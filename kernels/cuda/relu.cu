/* SPDX-License-Identifier: MIT */
/* Exact. Forward reads 1 element, backward 2 (3 with `add`); both write 1, 1 comparison: bound by
 * memory. A thread handles 16 bytes of each array (each.cuh) or one element; no other version was
 * tried; not measured on a card yet. Any number of elements. */
#include "kernels/cuda/each.cuh"

namespace pl_cuda
{

namespace
{

template <class T> struct positive {
    __device__ real<T> operator()(size_t, const real<T> x[1]) const
    {
        return x[0] <= 0 ? 0 : x[0];
    }
};

template <class T> struct passed {
    __device__ real<T> operator()(size_t, const real<T> x[2]) const
    {
        return x[0] <= 0 ? 0 : x[1];
    }
};

} // namespace

template <class T> void relu_forward(const struct pl_relu_args *a)
{
    each<T, 1>(a->n, {{(const T *)a->x}, (T *)a->y}, false, positive<T>{});
}

template <class T> void relu_backward(const struct pl_relu_args *a)
{
    each<T, 2>(a->n, {{(const T *)a->y, (const T *)a->dy}, (T *)a->dx}, a->dx_add, passed<T>{});
}

PL_CUDA_DEFINE(relu_forward, relu);
PL_CUDA_DEFINE(relu_backward, relu);

} // namespace pl_cuda
