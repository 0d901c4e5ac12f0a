/* SPDX-License-Identifier: MIT */
/* V neighbours of an array, which a thread moves at once and has in registers. Kernels whose arrays
 * have several types take the same number of each: then the accesses of a warp are adjacent, and
 * sums have the same order in all types. */
#ifndef PL_KERNELS_CUDA_GROUP_CUH
#define PL_KERNELS_CUDA_GROUP_CUH

#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/unroll.cuh"

namespace pl_cuda
{

/* V neighbours as they are stored, at most 16 bytes. */
template <class T, int V> struct alignas(V * sizeof(T)) bunch {
    T of[V];
};

/* V neighbours in the type of computation. */
template <class R, int V> struct group {
    R of[V];
};

template <int V, class T>
static __device__ __forceinline__ bunch<T, V> take_raw(const T *p, size_t i)
{
    return *reinterpret_cast<const bunch<T, V> *>(p + i);
}

template <class T, int V>
static __device__ __forceinline__ group<real<T>, V> widen_all(const bunch<T, V> &b)
{
    group<real<T>, V> g;

    PL_UNROLL
    for (int j = 0; j < V; j++)
        g.of[j] = widen_one(b.of[j]);
    return g;
}

template <int V, class T>
static __device__ __forceinline__ group<real<T>, V> take(const T *p, size_t i)
{
    return widen_all(take_raw<V>(p, i));
}

template <int V, class T>
static __device__ __forceinline__ void give(T *p, size_t i, const group<real<T>, V> &g)
{
    bunch<T, V> out;

    PL_UNROLL
    for (int j = 0; j < V; j++)
        out.of[j] = narrow_one<T>(g.of[j]);
#ifdef __CUDA_ARCH__ /* as store_pack(): else each element by itself, if they are chosen */
    if (sizeof(out) == 16) {
        uint4 words;

        memcpy(&words, &out, sizeof(words));
        asm volatile(
            "st.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(__cvta_generic_to_global(p + i)),
            "r"(words.x), "r"(words.y), "r"(words.z), "r"(words.w)
            : "memory");
        return;
    }
    if (sizeof(out) == 8) {
        uint2 words;

        memcpy(&words, &out, sizeof(words));
        asm volatile("st.global.v2.u32 [%0], {%1, %2};" ::"l"(__cvta_generic_to_global(p + i)),
                     "r"(words.x), "r"(words.y)
                     : "memory");
        return;
    }
#endif
    *reinterpret_cast<bunch<T, V> *>(p + i) = out;
}

/* `none` for an array that is not given. */
template <int V, class G>
static __device__ __forceinline__ group<real<G>, V> take_or(const G *p, size_t i, real<G> none)
{
    group<real<G>, V> g;

    if (p)
        return take<V>(p, i);
    PL_UNROLL
    for (int j = 0; j < V; j++)
        g.of[j] = none;
    return g;
}

} // namespace pl_cuda

#endif
