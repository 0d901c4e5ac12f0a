/* SPDX-License-Identifier: MIT */
/* What the updates share: see struct pl_update. As kernels/ref/update.h. */
#ifndef PL_KERNELS_CUDA_UPDATE_CUH
#define PL_KERNELS_CUDA_UPDATE_CUH

#include "kernels/cuda/launch.cuh"

namespace pl_cuda
{

template <class T> struct update_of {
    size_t n;
    real<T> factor, clip;
    const T *grad;
    T *param;
    enum pl_half half;
    bool rounded;
    uint16_t *copy;

    __device__ real<T> gradient(size_t k) const
    {
        real<T> g = load(grad, k) * factor;

        if (g > clip)
            return clip;
        return g < -clip ? -clip : g;
    }

    __device__ void set(size_t k, real<T> value) const
    {
        if (half != PL_HALF_NONE) {
            copy[k] = pl_half_of_f32(half, (float)value);
            if (rounded)
                value = (real<T>)pl_f32_of_half(half, copy[k]);
        }
        store(param, k, value);
    }
};

template <class T> static update_of<T> update_from(const struct pl_update &u)
{
    return {u.n,    (real<T>)u.factor, (real<T>)u.clip, (const T *)u.grad, (T *)u.param,
            u.half, u.rounded,         u.copy};
}

} // namespace pl_cuda

#endif
