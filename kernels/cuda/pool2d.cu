/* SPDX-License-Identifier: MIT */
/* Forward a thread has V windows; backward it has V elements of x and all windows that contain
 * them, in order: neighbours of the last dimension (channels that are last), if V divides it. So no
 * two threads write the same element; a thread per window would need atomics in backward. If
 * windows do not overlap, each element is read once and written once; otherwise neighbours read the
 * same ones from the cache; 1 byte per window for the index of the maximum; one comparison or
 * addition per element of each window. Bound by memory; not measured on a card since. Before, a
 * thread had one element, and backward 4 divisions of 64 bits for it. Windows of up to 256
 * elements. */
#include "kernels/cuda/divider.cuh"
#include "kernels/cuda/group.cuh"

namespace pl_cuda
{

#define THREADS 256

namespace
{

/* The windows along one axis. */
struct axis {
    size_t size, windows, kernel, stride, pad;
    divider by_stride;

    /* The first window that contains element i, and the first one after them that does not. */
    __device__ __forceinline__ size_t first(size_t i) const
    {
        size_t rest;

        return i + pad < kernel ? 0 : by_stride(i + pad - kernel, &rest) + 1;
    }

    __device__ __forceinline__ size_t end(size_t i) const
    {
        size_t rest, last = by_stride(i + pad, &rest);

        return last < windows ? last + 1 : windows;
    }
};

struct shape {
    axis h, w;
    size_t windows, places, inner; /* of all planes; windows and places in groups of V */
    divider by_inner, by_windows_h, by_windows_w, by_height, by_width;
};

shape shape_of(const struct pl_pool2d_args *a, size_t v)
{
    size_t oh = pl_conv_size(a->height, a->kernel_h, a->stride_h, a->pad_h);
    size_t ow = pl_conv_size(a->width, a->kernel_w, a->stride_w, a->pad_w);

    return {{a->height, oh, a->kernel_h, a->stride_h, a->pad_h, divider(a->stride_h)},
            {a->width, ow, a->kernel_w, a->stride_w, a->pad_w, divider(a->stride_w)},
            a->planes * oh * ow * (a->inner / v),
            a->planes * a->height * a->width * (a->inner / v),
            a->inner,
            divider(a->inner / v),
            divider(oh),
            divider(ow),
            divider(a->height),
            divider(a->width)};
}

/* A NaN wins, else the first of equals. */
template <class R> __device__ __forceinline__ bool wins(R x, R over)
{
    return x > over || (x != x && over == over);
}

template <class T, bool MAX, int V>
__global__ void __launch_bounds__(THREADS) forward_kernel(shape s, const T *x, T *y, uint8_t *which)
{
    size_t k = (size_t)blockIdx.x * THREADS + threadIdx.x, i, j, c, plane;
    bunch<uint8_t, V> taken = {};
    group<real<T>, V> result = {};
    bool any = false;

    if (k >= s.windows)
        return;
    plane = s.by_windows_h(s.by_windows_w(s.by_inner(k, &c), &j), &i);
    for (size_t u = 0; u < s.h.kernel; u++)
        for (size_t v = 0; v < s.w.kernel; v++) {
            size_t at_i = i * s.h.stride + u - s.h.pad, at_j = j * s.w.stride + v - s.w.pad;
            group<real<T>, V> value;

            if (at_i >= s.h.size || at_j >= s.w.size) /* below 0 it wraps around */
                continue;
            value = take<V>(x, ((plane * s.h.size + at_i) * s.w.size + at_j) * s.inner + c * V);
            PL_UNROLL
            for (int n = 0; n < V; n++) {
                if (!MAX) {
                    result.of[n] += value.of[n];
                } else if (!any || wins(value.of[n], result.of[n])) {
                    result.of[n] = value.of[n];
                    taken.of[n] = (uint8_t)(u * s.w.kernel + v);
                }
            }
            any = true;
        }
    PL_UNROLL
    for (int n = 0; n < V; n++)
        result.of[n] = MAX ? result.of[n] : result.of[n] / (real<T>)(s.h.kernel * s.w.kernel);
    if (MAX)
        *reinterpret_cast<bunch<uint8_t, V> *>(which + k * V) = taken;
    give<V>(y, k * V, result);
}

template <class T, bool MAX, int V>
__global__ void __launch_bounds__(THREADS)
    backward_kernel(shape s, const T *dy, const uint8_t *which, bool add, T *dx)
{
    size_t at = (size_t)blockIdx.x * THREADS + threadIdx.x, i, j, c, plane, end_i, end_j;
    real<T> taps = (real<T>)(s.h.kernel * s.w.kernel);
    group<real<T>, V> sum = {};

    if (at >= s.places)
        return;
    plane = s.by_height(s.by_width(s.by_inner(at, &c), &j), &i);
    end_i = s.h.end(i);
    end_j = s.w.end(j);
    if (add)
        sum = take<V>(dx, at * V);
    for (size_t wi = s.h.first(i); wi < end_i; wi++)
        for (size_t wj = s.w.first(j); wj < end_j; wj++) {
            size_t k = ((plane * s.h.windows + wi) * s.w.windows + wj) * s.inner + c * V;
            size_t u = i + s.h.pad - wi * s.h.stride, v = j + s.w.pad - wj * s.w.stride;
            unsigned tap = (unsigned)(u * s.w.kernel + v);
            group<real<T>, V> d = take<V>(dy, k);
            bunch<uint8_t, V> taken = {};

            if (MAX)
                taken = take_raw<V>(which, k);
            PL_UNROLL
            for (int n = 0; n < V; n++) {
                if (!MAX)
                    sum.of[n] += d.of[n] / taps;
                else if (taken.of[n] == tap)
                    sum.of[n] += d.of[n];
            }
        }
    give<V>(dx, at * V, sum);
}

static bool in_groups(const struct pl_pool2d_args *a, size_t v)
{
    return a->inner % v == 0 && packable(a->x) && packable(a->y) && packable(a->dy) &&
           packable(a->dx) && packable(a->which);
}

template <class T, bool MAX, int V> void forward_by(const struct pl_pool2d_args *a)
{
    shape s = shape_of(a, V);

    if (s.windows)
        PL_LAUNCH((forward_kernel<T, MAX, V>), ceil_div(s.windows, THREADS), THREADS, 0, s,
                  (const T *)a->x, (T *)a->y, a->which);
}

template <class T, bool MAX, int V> void backward_by(const struct pl_pool2d_args *a)
{
    shape s = shape_of(a, V);

    if (s.places)
        PL_LAUNCH((backward_kernel<T, MAX, V>), ceil_div(s.places, THREADS), THREADS, 0, s,
                  (const T *)a->dy, (const uint8_t *)a->which, a->dx_add, (T *)a->dx);
}

template <class T, bool MAX> void forward(const struct pl_pool2d_args *a)
{
    const int v = sizeof(real<T>) == 8 ? 2 : 4;

    if (in_groups(a, v))
        forward_by<T, MAX, v>(a);
    else
        forward_by<T, MAX, 1>(a);
}

template <class T, bool MAX> void backward(const struct pl_pool2d_args *a)
{
    const int v = sizeof(real<T>) == 8 ? 2 : 4;

    if (in_groups(a, v))
        backward_by<T, MAX, v>(a);
    else
        backward_by<T, MAX, 1>(a);
}

} // namespace

template <class T> void max_pool2d_forward(const struct pl_pool2d_args *a)
{
    forward<T, true>(a);
}

template <class T> void max_pool2d_backward(const struct pl_pool2d_args *a)
{
    backward<T, true>(a);
}

template <class T> void avg_pool2d_forward(const struct pl_pool2d_args *a)
{
    forward<T, false>(a);
}

template <class T> void avg_pool2d_backward(const struct pl_pool2d_args *a)
{
    backward<T, false>(a);
}

PL_CUDA_DEFINE(max_pool2d_forward, pool2d);
PL_CUDA_DEFINE(max_pool2d_backward, pool2d);
PL_CUDA_DEFINE(avg_pool2d_forward, pool2d);
PL_CUDA_DEFINE(avg_pool2d_backward, pool2d);

} // namespace pl_cuda
