/* SPDX-License-Identifier: MIT */
/* Forward reads 1 element, backward 2 (3 with `add`), both write 1; from 1 operation (relu) to
 * about 10 and an exponential (gelu by tanh, backward 18) or 40 (gelu by erfc): bound by memory in
 * f32 and 16 bits. One kernel per activation; a thread handles 16 bytes of each array (each.cuh).
 * One kernel with a switch would need the registers of the largest for all. Forms: activation.cuh;
 * gelu reaches 3.0 of 3.0 TB/s on an H100. Any number of elements. */
#include "kernels/cuda/activation.cuh"
#include "kernels/cuda/each.cuh"

namespace pl_cuda
{

namespace
{

template <class T, int ACT> struct activation {
    __device__ real<T> operator()(size_t, const real<T> x[1]) const
    {
        return activate<ACT>(x[0]);
    }
};

template <class T, int ACT> struct slope {
    __device__ real<T> operator()(size_t, const real<T> x[2]) const
    {
        return x[1] * activate_slope<ACT>(x[0]);
    }
};

template <class T> struct unary_of {
    template <int ACT> static void forward(const struct pl_unary_args *a)
    {
        each<T, 1>(a->n, {{(const T *)a->x}, (T *)a->y}, false, activation<T, ACT>{});
    }

    template <int ACT> static void backward(const struct pl_unary_args *a)
    {
        each<T, 2>(a->n, {{(const T *)a->x, (const T *)a->dy}, (T *)a->dx}, a->dx_add,
                   slope<T, ACT>{});
    }
};

} // namespace

template <class T> void unary_forward(const struct pl_unary_args *a)
{
    PL_BY_ACTIVATION(a->act, unary_of<T>::template forward, (a))
}

template <class T>
void unary_backward(const struct pl_unary_args *a){
    PL_BY_ACTIVATION(a->act, unary_of<T>::template backward, (a))}

PL_CUDA_DEFINE(unary_forward, unary);
PL_CUDA_DEFINE(unary_backward, unary);

} // namespace pl_cuda
