/* SPDX-License-Identifier: MIT */
/* The activations (enum pl_activation) and their slopes, in f32 or f64. gelu's tanh form is x
 * sigmoid(2 z), since 1 + tanh(z) = 2 sigmoid(2 z). */
#ifndef PL_KERNELS_CUDA_ACTIVATION_CUH
#define PL_KERNELS_CUDA_ACTIVATION_CUH

#include "kernels/cuda/launch.cuh"

#include <math.h>

namespace pl_cuda
{

template <class R> static __device__ __forceinline__ R sigmoid(R x)
{
    return 1 / (1 + exp(-x));
}

/* ACT is a constant at each call, so that loops have no switch. */
template <int ACT, class R> static __device__ __forceinline__ R activate(R x)
{
    switch (ACT) {
    case PL_ACT_RELU:
        return x <= 0 ? 0 : x;
    case PL_ACT_GELU:
        return x * (R)0.5 * erfc(-x * (R)0.70710678118654752440);
    case PL_ACT_GELU_TANH:
        return x * sigmoid((R)1.59576912160573071176 * (x + (R)0.044715 * x * x * x));
    case PL_ACT_SILU:
        return x * sigmoid(x);
    case PL_ACT_TANH:
        return tanh(x);
    case PL_ACT_SIGMOID:
        return sigmoid(x);
    default:
        return x;
    }
}

template <int ACT, class R> static __device__ __forceinline__ R activate_slope(R x)
{
    R s;

    switch (ACT) {
    case PL_ACT_RELU:
        return x <= 0 ? 0 : 1;
    case PL_ACT_GELU:
        return (R)0.5 * erfc(-x * (R)0.70710678118654752440) +
               x * exp(-x * x / 2) * (R)0.39894228040143267794;
    case PL_ACT_GELU_TANH:
        x = x < -10 ? (R)-10 : x > 10 ? (R)10 : x; /* beyond, x * x may be infinite, times 0 */
        s = sigmoid((R)1.59576912160573071176 * (x + (R)0.044715 * x * x * x));
        return s + x * s * (1 - s) * (R)1.59576912160573071176 * (1 + (R)0.134145 * x * x);
    case PL_ACT_SILU:
        s = sigmoid(x);
        return s + x * s * (1 - s);
    case PL_ACT_TANH:
        s = tanh(x);
        return 1 - s * s;
    case PL_ACT_SIGMOID:
        s = sigmoid(x);
        return s * (1 - s);
    default:
        return 1;
    }
}

/* Runs body<ACT>(arguments...) with the activation as a constant. */
#define PL_BY_ACTIVATION(act, body, ...)                                                           \
    switch (act) {                                                                                 \
    case PL_ACT_NONE:                                                                              \
        body<PL_ACT_NONE> __VA_ARGS__;                                                             \
        break;                                                                                     \
    case PL_ACT_RELU:                                                                              \
        body<PL_ACT_RELU> __VA_ARGS__;                                                             \
        break;                                                                                     \
    case PL_ACT_GELU:                                                                              \
        body<PL_ACT_GELU> __VA_ARGS__;                                                             \
        break;                                                                                     \
    case PL_ACT_GELU_TANH:                                                                         \
        body<PL_ACT_GELU_TANH> __VA_ARGS__;                                                        \
        break;                                                                                     \
    case PL_ACT_SILU:                                                                              \
        body<PL_ACT_SILU> __VA_ARGS__;                                                             \
        break;                                                                                     \
    case PL_ACT_TANH:                                                                              \
        body<PL_ACT_TANH> __VA_ARGS__;                                                             \
        break;                                                                                     \
    case PL_ACT_SIGMOID:                                                                           \
        body<PL_ACT_SIGMOID> __VA_ARGS__;                                                          \
        break;                                                                                     \
    }

/* The same for kernels that are not worth one instance per activation. */
template <class R> static __device__ __forceinline__ R activate_by(int act, R x)
{
    switch (act) {
    case PL_ACT_RELU:
        return activate<PL_ACT_RELU>(x);
    case PL_ACT_GELU:
        return activate<PL_ACT_GELU>(x);
    case PL_ACT_GELU_TANH:
        return activate<PL_ACT_GELU_TANH>(x);
    case PL_ACT_SILU:
        return activate<PL_ACT_SILU>(x);
    case PL_ACT_TANH:
        return activate<PL_ACT_TANH>(x);
    case PL_ACT_SIGMOID:
        return activate<PL_ACT_SIGMOID>(x);
    default:
        return x;
    }
}

template <class R> static __device__ __forceinline__ R activate_slope_by(int act, R x)
{
    switch (act) {
    case PL_ACT_RELU:
        return activate_slope<PL_ACT_RELU>(x);
    case PL_ACT_GELU:
        return activate_slope<PL_ACT_GELU>(x);
    case PL_ACT_GELU_TANH:
        return activate_slope<PL_ACT_GELU_TANH>(x);
    case PL_ACT_SILU:
        return activate_slope<PL_ACT_SILU>(x);
    case PL_ACT_TANH:
        return activate_slope<PL_ACT_TANH>(x);
    case PL_ACT_SIGMOID:
        return activate_slope<PL_ACT_SIGMOID>(x);
    default:
        return 1;
    }
}

} // namespace pl_cuda

#endif
