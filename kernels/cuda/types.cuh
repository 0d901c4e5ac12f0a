/* SPDX-License-Identifier: MIT */
/* Storage types, and the types of computation: f32 for all but f64. Loads and stores of 16 bytes.
 */
#ifndef PL_KERNELS_CUDA_TYPES_CUH
#define PL_KERNELS_CUDA_TYPES_CUH

#include "kernels/cuda/launch.cuh"

namespace pl_cuda
{

struct bf16 {
    uint16_t bits;
};
struct f16 {
    uint16_t bits;
};

template <class T> struct real_of {
    typedef float type;
};
template <> struct real_of<double> {
    typedef double type;
};
/* The type in which T is computed, also of a row's statistics (mean, inv_std, lse) in T's table. */
template <class T> using real = typename real_of<T>::type;

static __device__ __forceinline__ float widen_one(float x)
{
    return x;
}

static __device__ __forceinline__ double widen_one(double x)
{
    return x;
}

static __device__ __forceinline__ float widen_one(bf16 x)
{
    return pl_f32_of_bf16(x.bits);
}

static __device__ __forceinline__ float widen_one(f16 x)
{
#ifdef __CUDA_ARCH__
    return __half2float(__ushort_as_half(x.bits));
#else
    return pl_f32_of_f16(x.bits);
#endif
}

/* Rounds to nearest, ties to even: narrow_one<T>(x). */
template <class T> static __device__ __forceinline__ T narrow_one(real<T> x)
{
    return x;
}

template <> __device__ __forceinline__ bf16 narrow_one<bf16>(float x)
{
#ifdef __CUDA_ARCH__
    return bf16{__bfloat16_as_ushort(__float2bfloat16_rn(x))};
#else
    return bf16{pl_bf16_of_f32(x)};
#endif
}

template <> __device__ __forceinline__ f16 narrow_one<f16>(float x)
{
#ifdef __CUDA_ARCH__
    return f16{__half_as_ushort(__float2half_rn(x))};
#else
    return f16{pl_f16_of_f32(x)};
#endif
}

template <class T> static __device__ __forceinline__ real<T> load(const T *p, size_t i)
{
    return widen_one(p[i]);
}

/* p may be NULL: all of it is 0. */
template <class T> static __device__ __forceinline__ real<T> load_or_zero(const T *p, size_t i)
{
    return p ? load(p, i) : 0;
}

template <class T> static __device__ __forceinline__ void store(T *p, size_t i, real<T> x)
{
    p[i] = narrow_one<T>(x);
}

/* p[i] (+)= x; `add` adds the old value, in real<T>. */
template <class T> static __device__ __forceinline__ void put(T *p, size_t i, real<T> x, bool add)
{
    store<T>(p, i, add ? load(p, i) + x : x);
}

/* A single number; with `wide` it has the type of computation. */
template <class T> static __device__ __forceinline__ real<T> load_one(const void *p, bool wide)
{
    return wide ? *(const real<T> *)p : load((const T *)p, 0);
}

template <class T> static __device__ __forceinline__ void store_one(void *p, real<T> x, bool wide)
{
    if (wide)
        *(real<T> *)p = x;
    else
        store((T *)p, 0, x);
}

/* 16 bytes of T, moved at once; p + i must be 16-byte aligned. */
template <class T> struct alignas(16) pack {
    static const size_t size = 16 / sizeof(T);
    T of[16 / sizeof(T)];
};

template <class T> static __device__ __forceinline__ pack<T> load_pack(const T *p, size_t i)
{
    return *reinterpret_cast<const pack<T> *>(p + i);
}

/* Into the GPU's memory, not a block's. nvcc would write a pack whose elements come one by one, or
 * are chosen, with up to an instruction for each. */
template <class T> static __device__ __forceinline__ void store_pack(T *p, size_t i, pack<T> x)
{
#ifdef __CUDA_ARCH__
    uint4 words;

    memcpy(&words, &x, sizeof(words));
    asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(__cvta_generic_to_global(p + i)),
                 "r"(words.x), "r"(words.y), "r"(words.z), "r"(words.w)
                 : "memory");
#else
    *reinterpret_cast<pack<T> *>(p + i) = x;
#endif
}

/* True if load_pack() may be used at multiples of the pack's size; also for NULL. */
static inline bool packable(const void *p)
{
    return (uintptr_t)p % 16 == 0;
}

} // namespace pl_cuda

#endif
