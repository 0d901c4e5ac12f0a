/* SPDX-License-Identifier: MIT */
/* Elementwise ops: out[i] (+)= f(i, in[0][i], in[1][i], ...). Bound by memory; a thread moves 16
 * bytes of each array at once if all are 16-byte aligned, as PyTorch's elementwise kernels do, else
 * one element. */
#ifndef PL_KERNELS_CUDA_EACH_CUH
#define PL_KERNELS_CUDA_EACH_CUH

#include "kernels/cuda/launch.cuh"

namespace pl_cuda
{

#define PL_EACH_THREADS 256

/* The arrays. None may overlap `out`, except one that is equal to it. */
template <class T, int N> struct each_arrays {
    const T *in[N];
    T *out;
};

template <class T, int N, bool PACKED, class F>
static __global__ void __launch_bounds__(PL_EACH_THREADS)
    each_kernel(size_t n, each_arrays<T, N> a, bool add, F f)
{
    size_t thread = (size_t)blockIdx.x * PL_EACH_THREADS + threadIdx.x;
    real<T> x[N];

    if (PACKED) {
        const size_t per = pack<T>::size;
        size_t at = thread * per;
        pack<T> in[N], out;

        if (at + per <= n) {
            for (int k = 0; k < N; k++)
                in[k] = load_pack(a.in[k], at);
            if (add)
                out = load_pack(a.out, at);
            for (size_t i = 0; i < per; i++) {
                for (int k = 0; k < N; k++)
                    x[k] = widen_one(in[k].of[i]);
                put(out.of, i, f(at + i, x), add);
            }
            store_pack(a.out, at, out);
            return;
        }
        for (size_t i = at; i < n; i++) {
            for (int k = 0; k < N; k++)
                x[k] = load(a.in[k], i);
            put(a.out, i, f(i, x), add);
        }
        return;
    }
    if (thread < n) {
        for (int k = 0; k < N; k++)
            x[k] = load(a.in[k], thread);
        put(a.out, thread, f(thread, x), add);
    }
}

/* F: __device__ real<T> operator()(size_t i, const real<T> x[N]) const. out may be one of in. */
template <class T, int N, class F>
static void each(size_t n, const each_arrays<T, N> &a, bool add, const F &f)
{
    bool packed = packable(a.out);

    for (int k = 0; k < N; k++)
        packed = packed && packable(a.in[k]);
    if (n == 0)
        return;
    PL_LAUNCH((packed ? each_kernel<T, N, true, F> : each_kernel<T, N, false, F>),
              ceil_div(n, PL_EACH_THREADS * (packed ? pack<T>::size : 1)), PL_EACH_THREADS, 0, n, a,
              add, f);
}

} // namespace pl_cuda

#endif
