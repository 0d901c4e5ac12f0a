/* SPDX-License-Identifier: MIT */
/* Exact. Reads 1 element (2 with `add`) and writes 1, 2 operations (3): bound by memory. A thread
 * handles 16 bytes of each array (each.cuh) or one element; no other version was tried; not
 * measured on a card yet. Any number of elements. */
#include "kernels/cuda/each.cuh"

namespace pl_cuda
{

namespace
{

template <class T> struct line {
    real<T> scale, shift;

    __device__ real<T> operator()(size_t, const real<T> x[1]) const
    {
        return scale * x[0] + shift;
    }
};

} // namespace

template <class T> void affine(const struct pl_affine_args *a)
{
    each<T, 1>(a->n, {{(const T *)a->x}, (T *)a->y}, a->add,
               line<T>{(real<T>)a->scale, (real<T>)a->shift});
}

PL_CUDA_DEFINE(affine, affine);

} // namespace pl_cuda
