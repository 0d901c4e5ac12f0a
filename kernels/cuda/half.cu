/* SPDX-License-Identifier: MIT */
/* Exact. 6 bytes per element from or to f32 (10 for f64, converted through f32; 2 or 4 more with
 * `add`), 1 conversion: bound by memory. A thread has twice 4 elements, 8 bytes of one side and 16
 * of the other each time, all loaded before any is stored, so that 16 bytes or more of each side
 * are on their way; a warp's accesses are adjacent, which 8 neighbours per thread would not be on
 * the wide side. Single elements if an array is not 16-byte aligned. Not measured on a card yet.
 * Any number of elements. */
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/unroll.cuh"

namespace pl_cuda
{

#define THREADS 256
#define PER 4
#define GROUPS 2 /* of PER elements per thread */

template <class T> struct alignas(sizeof(T) < 4 ? 8 : 16) four {
    T of[PER];
};

template <class TO, class FROM>
static __global__ void __launch_bounds__(THREADS)
    convert_kernel(size_t n, const FROM *from, TO *to, bool add, bool packed)
{
    size_t first = ((size_t)blockIdx.x * GROUPS * THREADS + threadIdx.x) * PER;
    four<FROM> in[GROUPS];
    four<TO> out[GROUPS] = {};

    PL_UNROLL
    for (unsigned g = 0; g < GROUPS; g++) {
        size_t at = first + g * THREADS * PER;

        if (!packed || at + PER > n)
            continue;
        in[g] = *reinterpret_cast<const four<FROM> *>(from + at);
        if (add)
            out[g] = *reinterpret_cast<const four<TO> *>(to + at);
    }
    PL_UNROLL
    for (unsigned g = 0; g < GROUPS; g++) {
        size_t at = first + g * THREADS * PER;

        if (packed && at + PER <= n) { /* from f64 through float, as ref does */
            PL_UNROLL
            for (size_t k = 0; k < PER; k++)
                put(out[g].of, k, (real<TO>)widen_one(in[g].of[k]), add);
            *reinterpret_cast<four<TO> *>(to + at) = out[g];
            continue;
        }
        for (size_t i = at; i < n && i < at + PER; i++)
            put(to, i, (real<TO>)widen_one(from[i]), add);
    }
}

template <class TO, class FROM> static void run(size_t n, const void *from, void *to, bool add)
{
    if (n)
        PL_LAUNCH((convert_kernel<TO, FROM>), ceil_div(n, THREADS * PER * GROUPS), THREADS, 0, n,
                  (const FROM *)from, (TO *)to, add, packable(from) && packable(to));
}

template <class T> void widen(const struct pl_half_args *a)
{
    if (a->type == PL_HALF_F16)
        run<T, f16>(a->n, a->half, a->wide, a->add);
    else
        run<T, bf16>(a->n, a->half, a->wide, a->add);
}

template <class T> void narrow(const struct pl_half_args *a)
{
    if (a->type == PL_HALF_F16)
        run<f16, T>(a->n, a->wide, a->half, a->add);
    else
        run<bf16, T>(a->n, a->wide, a->half, a->add);
}

PL_CUDA_DEFINE(widen, half);
PL_CUDA_DEFINE(narrow, half);

} // namespace pl_cuda
