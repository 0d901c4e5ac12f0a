/* SPDX-License-Identifier: MIT */
/* The part of CUDA's C++ that kernels use, on the emulator. The compiler includes it (-include)
 * before each kernels/cuda/ file; see kernels/cuda/launch.cuh, which has NVIDIA's side of
 * PL_LAUNCH. */
#ifndef PL_TESTS_CUDA_SHIM_CUH
#define PL_TESTS_CUDA_SHIM_CUH

#include "kernels/cuda/grid.cuh"
#include "tests/cuda/emulator.h"

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define PL_CUDA_EMULATED 1

/* The trace (trace.h): the compiler calls out at loads and stores, and at a copy or fill of a known
 * small size, which is one. Longer ones it leaves to the library's functions. */
#ifdef __SANITIZE_THREAD__
extern "C" void __tsan_read_range(void *p, size_t bytes);
extern "C" void __tsan_write_range(void *p, size_t bytes);

/* Macros: a message names the kernel's line. */
#define memcpy(to, from, bytes)                                                                    \
    ({                                                                                             \
        void *copy_to = (to);                                                                      \
        const void *copy_from = (from);                                                            \
        size_t copy_bytes = (bytes);                                                               \
        if (!__builtin_constant_p(copy_bytes) || copy_bytes > 16) {                                \
            __tsan_read_range(const_cast<void *>(copy_from), copy_bytes);                          \
            __tsan_write_range(copy_to, copy_bytes);                                               \
        }                                                                                          \
        __builtin_memcpy(copy_to, copy_from, copy_bytes);                                          \
    })
#define memset(to, value, bytes)                                                                   \
    ({                                                                                             \
        void *fill_to = (to);                                                                      \
        size_t fill_bytes = (bytes);                                                               \
        if (!__builtin_constant_p(fill_bytes) || fill_bytes > 16)                                  \
            __tsan_write_range(fill_to, fill_bytes);                                               \
        __builtin_memset(fill_to, value, fill_bytes);                                              \
    })
#endif

#define __global__
#define __device__
#define __host__
#ifdef __SANITIZE_THREAD__ /* calls would move parts of vectors, which the trace counts */
#define __forceinline__ inline __attribute__((always_inline))
#else /* a copy at each call takes the compiler twice as long */
#define __forceinline__ inline
#endif
#define __launch_bounds__(...)
#define __restrict__ __restrict

#define threadIdx pl_emu_now.thread
#define blockIdx pl_emu_now.block
#define blockDim pl_emu_now.block_dim
#define gridDim pl_emu_now.grid_dim
#define warpSize 32

struct dim3 {
    unsigned x, y, z;
    dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
};
struct alignas(16) float4 {
    float x, y, z, w;
};
struct alignas(16) uint4 {
    unsigned x, y, z, w;
};

#define __syncthreads() pl_emu_barrier(__LINE__)
#define __syncwarp() pl_emu_syncwarp(0xffffffff, __LINE__)
#define __shfl_sync(mask, value, from) pl_emu_shuffle(mask, value, (unsigned)(from) % 32, __LINE__)
#define __shfl_xor_sync(mask, value, with)                                                         \
    pl_emu_shuffle(mask, value, pl_emu_lane() ^ (unsigned)(with), __LINE__)
#define __shfl_down_sync(mask, value, by)                                                          \
    pl_emu_shuffle(mask, value, pl_emu_lane() + (by) < 32 ? pl_emu_lane() + (by) : pl_emu_lane(),  \
                   __LINE__)
#define __shfl_up_sync(mask, value, by)                                                            \
    pl_emu_shuffle(mask, value,                                                                    \
                   pl_emu_lane() >= (unsigned)(by) ? pl_emu_lane() - (by) : pl_emu_lane(),         \
                   __LINE__)
#define __ballot_sync(mask, predicate) pl_emu_ballot(mask, predicate, __LINE__)
#define __any_sync(mask, predicate) (pl_emu_ballot(mask, predicate, __LINE__) != 0)
#define __all_sync(mask, predicate) (pl_emu_ballot(mask, predicate, __LINE__) == 0xffffffff)

static inline unsigned pl_emu_lane()
{
    return (pl_emu_now.thread.x +
            pl_emu_now.block_dim.x *
                (pl_emu_now.thread.y + pl_emu_now.block_dim.y * pl_emu_now.thread.z)) %
           32;
}

template <class V> static inline V pl_emu_shuffle(unsigned mask, V value, unsigned from, int line)
{
    V ret;

    static_assert(sizeof(V) <= 8, "a shuffle moves at most 8 bytes");
    memcpy(&ret, &pl_emu_warp(mask, &value, sizeof(value), line)[from], sizeof(ret));
    return ret;
}

static inline unsigned pl_emu_ballot(unsigned mask, bool predicate, int line)
{
    uint64_t value = predicate;
    const uint64_t *values = pl_emu_warp(mask, &value, sizeof(value), line);
    unsigned ret = 0;

    for (unsigned lane = 0; lane < 32; lane++)
        ret |= (unsigned)values[lane] << lane;
    return ret;
}

/* Threads run one at a time, so every read and write is atomic. */
template <class V> static inline V atomicAdd(V *p, V value)
{
    V before;

    pl_emu_atomic(true);
    before = *p;
    *p = before + value;
    pl_emu_atomic(false);
    return before;
}

static inline float rsqrtf(float x)
{
    return 1 / sqrtf(x);
}

static inline double rsqrt(double x)
{
    return 1 / sqrt(x);
}

#define PL_SHARED(type, name, dimensions)                                                          \
    static char name##_site;                                                                       \
    typedef type name##_array dimensions;                                                          \
    name##_array &name = *(name##_array *)pl_emu_shared(&name##_site, sizeof(name##_array))
#define PL_SHARED_DYNAMIC(type, name) type *const name = (type *)pl_emu_dynamic_shared()

namespace pl_cuda
{

static inline void refuse(const char *why)
{
    pl_emu_refuse(why);
}

template <class... P> struct launch_of {
    void (*kernel)(P...);
    grid_of grid;
    dim3 block;
    size_t shared_bytes;

    void operator()(P... args) const
    {
        if (!grid.fits())
            return refuse(PL_GRID_TOO_LARGE);
        auto body = [f = kernel, args...]() { f(args...); };

#if __has_builtin(__builtin_clear_padding)
        /* Stack contents between members may look like addresses. */
        (__builtin_clear_padding(&args), ...);
        (pl_emu_argument(&args, sizeof(args)), ...);
#endif
        pl_emu_launch(
            {(unsigned)grid.x, (unsigned)grid.y, 1}, {block.x, block.y, block.z}, shared_bytes,
            [](void *ctx) { (*static_cast<decltype(body) *>(ctx))(); }, &body, sizeof(body));
    }
};

/* As kernels/cuda/stream.cu has it, of plain memory. */
static inline void *scratch(size_t bytes)
{
    return pl_emu_scratch(bytes);
}

} // namespace pl_cuda

#endif
