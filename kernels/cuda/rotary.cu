/* SPDX-License-Identifier: MIT */
/* First the sines of each time and pair, in f64, into scratch memory; then a thread per pair, two
 * elements read and written: bound by memory. Not measured on a card yet. */
#include "kernels/cuda/divider.cuh"

#include <math.h>

namespace pl_cuda
{

#define THREADS 256

namespace
{

template <class R>
__global__ void __launch_bounds__(THREADS)
    angles_kernel(size_t count, struct pl_rotary_args a, divider pairs, R *turns)
{
    size_t at = (size_t)blockIdx.x * THREADS + threadIdx.x, i, time;
    double angle;

    if (at >= count)
        return;
    time = pairs(at, &i);
    angle = (double)(a.first + time) * pow(a.base, -2 * (double)i / (double)a.dim);
    turns[2 * at] = (R)cos(angle);
    turns[2 * at + 1] = (R)(a.back ? -sin(angle) : sin(angle));
}

template <class T>
__global__ void __launch_bounds__(THREADS) turn_kernel(size_t count,
                                                       struct pl_rotary_args a,
                                                       divider pairs,
                                                       divider rows,
                                                       divider time,
                                                       const real<T> *turns)
{
    size_t at = (size_t)blockIdx.x * THREADS + threadIdx.x, i, unused, t, r, one, two;
    const T *x = (const T *)a.x;
    real<T> c, s, first, second;

    if (at >= count)
        return;
    r = pairs(at, &i);
    time(rows(r, &unused), &t);
    one = r * a.dim + (a.interleaved ? 2 * i : i);
    two = one + (a.interleaved ? 1 : a.dim / 2);
    c = turns[2 * (t * (a.dim / 2) + i)];
    s = turns[2 * (t * (a.dim / 2) + i) + 1];
    first = load(x, one) * c - load(x, two) * s;
    second = load(x, one) * s + load(x, two) * c;
    put((T *)a.y, one, first, a.add);
    put((T *)a.y, two, second, a.add);
}

} // namespace

template <class T> void rotary(const struct pl_rotary_args *a)
{
    size_t half = a->dim / 2, angles = a->time * half, count = a->outer * a->rows * angles;
    real<T> *turns;

    if (!count)
        return;
    turns = (real<T> *)scratch(2 * angles * sizeof(real<T>));
    if (!turns)
        return; /* the stream has the error */
    PL_LAUNCH((angles_kernel<real<T>>), ceil_div(angles, THREADS), THREADS, 0, angles, *a,
              divider(half), turns);
    PL_LAUNCH((turn_kernel<T>), ceil_div(count, THREADS), THREADS, 0, count, *a, divider(half),
              divider(a->rows), divider(a->time), turns);
}

PL_CUDA_DEFINE(rotary, rotary);

} // namespace pl_cuda
