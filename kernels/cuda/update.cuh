/* SPDX-License-Identifier: MIT */
/* Shared by the updates, see struct pl_update; like kernels/ref/update.h. A thread moves 16 bytes
 * of each array at once if all are 16-byte aligned (the 16-bit copy by the same number of
 * elements), else one element. */
#ifndef PL_KERNELS_CUDA_UPDATE_CUH
#define PL_KERNELS_CUDA_UPDATE_CUH

#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/unroll.cuh"

namespace pl_cuda
{

#define PL_UPDATE_THREADS 256

/* at::lerp: exact at both ends. */
template <class R> __device__ __forceinline__ R lerp_to(R from, R to, R weight)
{
    if (weight < (R)0.5)
        return from + weight * (to - from);
    return to - (to - from) * (1 - weight);
}

/* N state arrays of the update, in addition to the parameters. */
template <class T, int N> struct update_of {
    size_t n;
    real<T> factor, clip;
    const double *factor_at;
    const T *grad;
    T *param;
    enum pl_half half;
    bool rounded;
    uint16_t *copy;
    T *state[N ? N : 1];

    __device__ __forceinline__ real<T> gradient(T raw, real<T> by) const
    {
        real<T> g = widen_one(raw) * by;

        if (g > clip)
            return clip;
        return g < -clip ? -clip : g;
    }

    /* The stored parameter; *copy_to gets its 16 bits. */
    __device__ __forceinline__ real<T> kept(real<T> value, uint16_t *copy_to) const
    {
        if (half == PL_HALF_NONE)
            return value;
        *copy_to = pl_half_of_f32(half, (float)value);
        return rounded ? (real<T>)pl_f32_of_half(half, *copy_to) : value;
    }
};

/* 16 bits each, of as many elements as a pack has. */
template <class T> struct alignas(pack<T>::size * sizeof(uint16_t)) halves {
    uint16_t of[pack<T>::size];
};

template <class T, int N, bool PACKED, class F>
static __global__ void __launch_bounds__(PL_UPDATE_THREADS) update_kernel(update_of<T, N> u, F f)
{
    const size_t per = pack<T>::size;
    size_t thread = (size_t)blockIdx.x * PL_UPDATE_THREADS + threadIdx.x;
    size_t at = PACKED ? thread * per : thread, end = PACKED ? u.n : at + 1;
    real<T> factor = u.factor_at ? (real<T>)*u.factor_at : u.factor, x[N ? N : 1];

    if (PACKED && at + per <= u.n) {
        pack<T> grad = load_pack(u.grad, at), param = load_pack(u.param, at), state[N ? N : 1];
        halves<T> copy;

        for (int j = 0; j < N; j++)
            state[j] = load_pack(u.state[j], at);
        PL_UNROLL
        for (size_t i = 0; i < per; i++) {
            for (int j = 0; j < N; j++)
                x[j] = widen_one(state[j].of[i]);
            store(
                param.of, i,
                u.kept(f(widen_one(param.of[i]), u.gradient(grad.of[i], factor), x), &copy.of[i]));
            for (int j = 0; j < N; j++)
                store(state[j].of, i, x[j]);
        }
        store_pack(u.param, at, param);
        for (int j = 0; j < N; j++)
            store_pack(u.state[j], at, state[j]);
        if (u.half != PL_HALF_NONE)
            *reinterpret_cast<halves<T> *>(u.copy + at) = copy;
        return;
    }
    for (size_t i = at; i < end && i < u.n; i++) {
        for (int j = 0; j < N; j++)
            x[j] = load(u.state[j], i);
        store(u.param, i,
              u.kept(f(load(u.param, i), u.gradient(u.grad[i], factor), x),
                     u.copy ? &u.copy[i] : NULL));
        for (int j = 0; j < N; j++)
            store(u.state[j], i, x[j]);
    }
}

/* F: __device__ real<T> operator()(real<T> param, real<T> gradient, real<T> state[N]) const,
 * returns the new parameter and changes the state. */
template <class T, int N, class F>
static void update_all(const struct pl_update &a, void *const *state, const F &f)
{
    update_of<T, N> u = {
        a.n,    (real<T>)a.factor, (real<T>)a.clip, a.factor_at, (const T *)a.grad, (T *)a.param,
        a.half, a.rounded,         a.copy,          {}};
    bool packed =
        packable(a.grad) && packable(a.param) && (uintptr_t)a.copy % sizeof(halves<T>) == 0;

    for (int j = 0; j < N; j++) {
        u.state[j] = (T *)state[j];
        packed = packed && packable(state[j]);
    }
    if (a.n)
        PL_LAUNCH((packed ? update_kernel<T, N, true, F> : update_kernel<T, N, false, F>),
                  ceil_div(a.n, PL_UPDATE_THREADS * (packed ? pack<T>::size : 1)),
                  PL_UPDATE_THREADS, 0, u, f);
}

} // namespace pl_cuda

#endif
