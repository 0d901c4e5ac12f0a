/* SPDX-License-Identifier: MIT */
/* Conventions for kernels, so that nvcc compiles them for GPUs and any C++ compiler for the
 * emulator (tests/cuda/shim.cuh, which replaces NVIDIA's half of this file).
 *
 * PL_LAUNCH(kernel, grid, block, shared_bytes, arguments...) starts a kernel on the calling
 * thread's stream; put templates with commas in parentheses. The grid is a number of blocks, or
 * grid_of(along x, along y). It must not be empty; one that no GPU has is an error of the stream.
 * PL_SHARED(type, name, [8][33]) declares an array in the block's shared memory,
 * PL_SHARED_DYNAMIC(type, name) a pointer to the dynamic part. Every thread of a block must reach
 * every __syncthreads(), and every lane of a warp every shuffle, whose mask is always all 32 lanes:
 * no early return before one. No atomics on floating-point numbers: sums have a fixed order. */
#ifndef PL_KERNELS_CUDA_LAUNCH_CUH
#define PL_KERNELS_CUDA_LAUNCH_CUH

#include "kernels/cuda/cuda.h"
#include "kernels/cuda/grid.cuh"
#include "kernels/kernels.h"

#include <stddef.h>
#include <stdint.h>

#ifndef PL_CUDA_EMULATED
#include "kernels/cuda/stream.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#define PL_SHARED(type, name, dimensions) __shared__ type name dimensions
#define PL_SHARED_DYNAMIC(type, name)                                                              \
    extern __shared__ __align__(128) unsigned char pl_dynamic_shared[];                            \
    type *const name = reinterpret_cast<type *>(pl_dynamic_shared)

namespace pl_cuda
{

template <class... P> struct launch_of {
    void (*kernel)(P...);
    grid_of grid;
    dim3 block;
    size_t shared_bytes;

    void operator()(P... args) const
    {
        struct pl_cuda_stream *s = pl_cuda_stream_current();
        cudaError_t r = cudaSuccess;

        if (!grid.fits())
            return pl_cuda_stream_refuse(s, PL_GRID_TOO_LARGE);
        if (shared_bytes > 48 * 1024)
            r = cudaFuncSetAttribute((const void *)kernel,
                                     cudaFuncAttributeMaxDynamicSharedMemorySize,
                                     (int)shared_bytes);
        if (r == cudaSuccess) {
            kernel<<<dim3((unsigned)grid.x, (unsigned)grid.y), block, shared_bytes, s->stream>>>(
                args...);
            r = cudaGetLastError();
        }
        pl_cuda_stream_note(s, r);
    }
};

/* The op cannot be done: `why`, a static text, is the stream's error. */
static inline void refuse(const char *why)
{
    pl_cuda_stream_refuse(pl_cuda_stream_current(), why);
}

/* Device memory for one op between its kernels, valid until the stream's next op. NULL if out of
 * memory; the stream then has the error. */
static inline void *scratch(size_t bytes)
{
    return pl_cuda_stream_scratch(pl_cuda_stream_current(), bytes);
}

} // namespace pl_cuda
#endif

#define PL_LAUNCH(kernel, grid, block, shared_bytes, ...)                                          \
    pl_cuda::launch(kernel, grid, block, shared_bytes)(__VA_ARGS__)

namespace pl_cuda
{

template <class... P>
launch_of<P...> launch(void (*kernel)(P...), grid_of grid, dim3 block, size_t shared_bytes)
{
    return launch_of<P...>{kernel, grid, block, shared_bytes};
}

/* Number of blocks that handle `per` of n each. A grid's x holds up to 2^31 - 1. */
static inline size_t ceil_div(size_t n, size_t per)
{
    return (n + per - 1) / per;
}

/* Each file declares its functions here; the table (table.cu) needs all. */
#define PL_CUDA_DECLARE(function, args)                                                            \
    template <class T> void function(const struct pl_##args##_args *a);
PL_KERNEL_LIST(PL_CUDA_DECLARE)
#undef PL_CUDA_DECLARE

#define PL_CUDA_DEFINE(function, args)                                                             \
    template void function<float>(const struct pl_##args##_args *);                                \
    template void function<double>(const struct pl_##args##_args *);                               \
    template void function<bf16>(const struct pl_##args##_args *);                                 \
    template void function<f16>(const struct pl_##args##_args *)

} // namespace pl_cuda

#include "kernels/cuda/types.cuh"

#endif
