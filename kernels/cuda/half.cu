/* SPDX-License-Identifier: MIT */
/* Exact. 6 bytes an element from or to f32 (10 of f64, by way of f32; 2 or 4 more where it adds),
 * 1 conversion: bound by memory. A thread has 8 elements, read 16 bytes at a time where both arrays
 * lie on 16, else one by one; an element a thread would leave half of each transaction of the
 * 16-bit side; not measured on a card yet. Any number of elements. */
#include "kernels/cuda/launch.cuh"

namespace pl_cuda
{

#define THREADS 256
#define PER 8

template <class TO, class FROM>
static __global__ void __launch_bounds__(THREADS)
    convert_kernel(size_t n, const FROM *from, TO *to, bool add, bool packed)
{
    size_t at = ((size_t)blockIdx.x * THREADS + threadIdx.x) * PER;

    /* From f64 by way of float, as ref does. */
    if (packed && at + PER <= n) {
        for (size_t i = 0; i < PER; i += pack<FROM>::size) {
            pack<FROM> in = load_pack(from, at + i);
            TO out[pack<FROM>::size];

            for (size_t k = 0; k < pack<FROM>::size && add; k++)
                out[k] = to[at + i + k];
            for (size_t k = 0; k < pack<FROM>::size; k++)
                put(out, k, (real<TO>)widen_one(in.of[k]), add);
            for (size_t k = 0; k < pack<FROM>::size; k++)
                to[at + i + k] = out[k];
        }
        return;
    }
    for (size_t i = at; i < n && i < at + PER; i++)
        put(to, i, (real<TO>)widen_one(from[i]), add);
}

template <class TO, class FROM> static void run(size_t n, const void *from, void *to, bool add)
{
    if (n)
        PL_LAUNCH((convert_kernel<TO, FROM>), ceil_div(n, THREADS * PER), THREADS, 0, n,
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
