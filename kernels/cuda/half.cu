/* SPDX-License-Identifier: MIT */
/* Exact. 6 bytes an element from or to f32, 1 operation: bound by memory. 8 elements a thread. */
#include "kernels/cuda/launch.cuh"

namespace pl_cuda
{

#define THREADS 256
#define PER 8

template <class TO, class FROM> struct convert {
    static __device__ TO one(FROM x)
    {
        return narrow_one<TO>((real<TO>)widen_one(x));
    }
};

/* From f64 by way of float, as ref does. */
template <class TO, class FROM>
static __global__ void __launch_bounds__(THREADS)
    convert_kernel(size_t n, const FROM *from, TO *to, bool packed)
{
    size_t at = ((size_t)blockIdx.x * THREADS + threadIdx.x) * PER;

    if (packed && at + PER <= n) {
        for (size_t i = 0; i < PER; i += pack<FROM>::size) {
            pack<FROM> in = load_pack(from, at + i);
            TO out[pack<FROM>::size];

            for (size_t k = 0; k < pack<FROM>::size; k++)
                out[k] = convert<TO, FROM>::one(in.of[k]);
            for (size_t k = 0; k < pack<FROM>::size; k++)
                to[at + i + k] = out[k];
        }
        return;
    }
    for (size_t i = at; i < n && i < at + PER; i++)
        to[i] = convert<TO, FROM>::one(from[i]);
}

template <class TO, class FROM> static void run(size_t n, const void *from, void *to)
{
    if (n)
        PL_LAUNCH((convert_kernel<TO, FROM>), ceil_div(n, THREADS * PER), THREADS, 0, n,
                  (const FROM *)from, (TO *)to, packable(from) && packable(to));
}

template <class T> void widen(const struct pl_half_args *a)
{
    if (a->type == PL_HALF_F16)
        run<T, f16>(a->n, a->half, a->wide);
    else
        run<T, bf16>(a->n, a->half, a->wide);
}

template <class T> void narrow(const struct pl_half_args *a)
{
    if (a->type == PL_HALF_F16)
        run<f16, T>(a->n, a->wide, a->half);
    else
        run<bf16, T>(a->n, a->wide, a->half);
}

PL_CUDA_DEFINE(widen, half);
PL_CUDA_DEFINE(narrow, half);

} // namespace pl_cuda
