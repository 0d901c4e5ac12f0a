/* SPDX-License-Identifier: MIT */
/* Sums and maxima over the lanes of a warp and the threads of a block, each by one fixed tree, so
 * that the bits are the same each time. All lanes or threads must call, and all get the result. The
 * block's size is a multiple of 32, up to 1024, in x only. */
#ifndef PL_KERNELS_CUDA_WARP_CUH
#define PL_KERNELS_CUDA_WARP_CUH

#include "kernels/cuda/launch.cuh"

namespace pl_cuda
{

struct sum_of {
    template <class R> static __device__ __forceinline__ R both(R a, R b)
    {
        return a + b;
    }
};

/* A NaN wins. */
struct max_of {
    template <class R> static __device__ __forceinline__ R both(R a, R b)
    {
        return a > b || a != a ? a : b;
    }
};

template <class OP, class R> static __device__ __forceinline__ R warp_all(R x)
{
    for (int with = 16; with > 0; with /= 2)
        x = OP::both(x, __shfl_xor_sync(0xffffffff, x, with));
    return x;
}

/* `none` is the neutral element: 0 for sums, -INFINITY for maxima. */
template <class OP, class R> static __device__ __forceinline__ R block_all(R x, R none)
{
    PL_SHARED(R, of_warp, [32]);
    unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32;

    x = warp_all<OP>(x);
    __syncthreads(); /* others may still read the last call's result */
    if (lane == 0)
        of_warp[warp] = x;
    __syncthreads();
    return warp_all<OP>(lane < blockDim.x / 32 ? of_warp[lane] : none);
}

template <class R> static __device__ __forceinline__ R warp_sum(R x)
{
    return warp_all<sum_of>(x);
}

template <class R> static __device__ __forceinline__ R warp_max(R x)
{
    return warp_all<max_of>(x);
}

template <class R> static __device__ __forceinline__ R block_sum(R x)
{
    return block_all<sum_of>(x, (R)0);
}

template <class R> static __device__ __forceinline__ R block_max(R x)
{
    return block_all<max_of>(x, (R)-INFINITY);
}

} // namespace pl_cuda

#endif
