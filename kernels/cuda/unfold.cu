/* SPDX-License-Identifier: MIT */
/* Exact. A thread per element that is written. unfold reads one element for each. fold goes through
 * the kernel's taps, finds for each the window that has it there, and adds in the order of windows,
 * without atomics: kernel_h kernel_w reads, which neighbours share in the cache. Bound by memory;
 * not measured on a card yet. */
#include "kernels/cuda/divider.cuh"

namespace pl_cuda
{

#define THREADS 256

namespace
{

struct windows {
    struct pl_unfold_args a;
    size_t oh, ow, each;
    divider kernel_w, kernel_h, channels, by_ow, by_oh, batch, width, height, all;

    explicit windows(const struct pl_unfold_args &given)
        : a(given), oh(pl_window_count(a.height, a.kernel_h, a.stride_h, a.pad_h, a.dilation_h)),
          ow(pl_window_count(a.width, a.kernel_w, a.stride_w, a.pad_w, a.dilation_w)),
          each(a.channels / a.groups), kernel_w(a.kernel_w), kernel_h(a.kernel_h), channels(each),
          by_ow(ow), by_oh(oh), batch(a.batch), width(a.width), height(a.height), all(a.channels)
    {
    }
};

template <class T> __global__ void __launch_bounds__(THREADS) unfold_kernel(size_t count, windows w)
{
    const struct pl_unfold_args &a = w.a;
    size_t at = (size_t)blockIdx.x * THREADS + threadIdx.x, u, v, c, i, j, n, g, row, col;

    if (at >= count)
        return;
    g = w.batch(w.by_oh(w.by_ow(w.channels(w.kernel_h(w.kernel_w(at, &v), &u), &c), &j), &i), &n);
    row = i * a.stride_h + u * a.dilation_h - a.pad_h;
    col = j * a.stride_w + v * a.dilation_w - a.pad_w;
    put((T *)a.dst, at,
        row < a.height && col < a.width
            ? load((const T *)a.src,
                   ((n * a.channels + g * w.each + c) * a.height + row) * a.width + col)
            : real<T>(0),
        a.add);
}

/* The window along one axis that has position `at` (padding included) at tap u; false if none. */
static __device__ bool
window_of(size_t at, size_t u, size_t stride, size_t dilation, size_t windows, size_t *ret)
{
    if (at < u * dilation || (at - u * dilation) % stride != 0)
        return false;
    *ret = (at - u * dilation) / stride;
    return *ret < windows;
}

template <class T> __global__ void __launch_bounds__(THREADS) fold_kernel(size_t count, windows w)
{
    const struct pl_unfold_args &a = w.a;
    size_t at = (size_t)blockIdx.x * THREADS + threadIdx.x, row, col, c, n, g, i, j;
    real<T> sum;

    if (at >= count)
        return;
    n = w.all(w.height(w.width(at, &col), &row), &c);
    g = c / w.each;
    sum = a.add ? load((const T *)a.dst, at) : real<T>(0);
    for (size_t u = a.kernel_h; u-- > 0;) { /* later taps are of earlier windows */
        if (!window_of(row + a.pad_h, u, a.stride_h, a.dilation_h, w.oh, &i))
            continue;
        for (size_t v = a.kernel_w; v-- > 0;)
            if (window_of(col + a.pad_w, v, a.stride_w, a.dilation_w, w.ow, &j))
                sum += load((const T *)a.src,
                            (((((g * a.batch + n) * w.oh + i) * w.ow + j) * w.each + c % w.each) *
                                 a.kernel_h +
                             u) * a.kernel_w +
                                v);
    }
    store((T *)a.dst, at, sum);
}

} // namespace

template <class T> void unfold(const struct pl_unfold_args *a)
{
    windows w(*a);
    size_t count = a->batch * a->channels * w.oh * w.ow * a->kernel_h * a->kernel_w;

    if (count)
        PL_LAUNCH((unfold_kernel<T>), ceil_div(count, THREADS), THREADS, 0, count, w);
}

template <class T> void fold(const struct pl_unfold_args *a)
{
    size_t count = a->batch * a->channels * a->height * a->width;

    if (count)
        PL_LAUNCH((fold_kernel<T>), ceil_div(count, THREADS), THREADS, 0, count, windows(*a));
}

PL_CUDA_DEFINE(unfold, unfold);
PL_CUDA_DEFINE(fold, unfold);

} // namespace pl_cuda
