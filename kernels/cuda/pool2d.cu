/* SPDX-License-Identifier: MIT */
/* Forward a thread has a window; backward it has an element of x and all windows that contain it,
 * in order. So no two threads write the same element; a thread per window would need atomics in
 * backward. If windows do not overlap, each element is read once and written once; otherwise
 * neighbours read the same ones from the cache; 1 byte per window for the index of the maximum; one
 * comparison or addition per element of each window. Bound by memory; not measured on a card yet.
 * Windows of up to 256 elements. */
#include "kernels/cuda/divider.cuh"

namespace pl_cuda
{

#define THREADS 256

namespace
{

/* The windows along one axis. */
struct axis {
    size_t size, windows, kernel, stride, pad;

    /* The first window that contains element i, and the first one after them that does not. */
    __device__ __forceinline__ size_t first(size_t i) const
    {
        return i + pad < kernel ? 0 : (i + pad - kernel) / stride + 1;
    }

    __device__ __forceinline__ size_t end(size_t i) const
    {
        size_t last = (i + pad) / stride;

        return last < windows ? last + 1 : windows;
    }
};

struct shape {
    axis h, w;
    size_t windows, places, inner; /* of all planes */
    divider by_inner, by_windows_h, by_windows_w, by_height, by_width;
};

shape shape_of(const struct pl_pool2d_args *a)
{
    size_t oh = pl_conv_size(a->height, a->kernel_h, a->stride_h, a->pad_h);
    size_t ow = pl_conv_size(a->width, a->kernel_w, a->stride_w, a->pad_w);

    return {{a->height, oh, a->kernel_h, a->stride_h, a->pad_h},
            {a->width, ow, a->kernel_w, a->stride_w, a->pad_w},
            a->planes * oh * ow * a->inner,
            a->planes * a->height * a->width * a->inner,
            a->inner,
            divider(a->inner),
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

template <class T, bool MAX>
__global__ void __launch_bounds__(THREADS) forward_kernel(shape s, const T *x, T *y, uint8_t *which)
{
    size_t k = (size_t)blockIdx.x * THREADS + threadIdx.x, i, j, c, plane;
    unsigned taken = 0;
    bool any = false;
    real<T> result = 0;

    if (k >= s.windows)
        return;
    plane = s.by_windows_h(s.by_windows_w(s.by_inner(k, &c), &j), &i);
    for (size_t u = 0; u < s.h.kernel; u++)
        for (size_t v = 0; v < s.w.kernel; v++) {
            size_t at_i = i * s.h.stride + u - s.h.pad, at_j = j * s.w.stride + v - s.w.pad;
            real<T> value;

            if (at_i >= s.h.size || at_j >= s.w.size) /* below 0 it wraps around */
                continue;
            value = load(x, ((plane * s.h.size + at_i) * s.w.size + at_j) * s.inner + c);
            if (!MAX) {
                result += value;
            } else if (!any || wins(value, result)) {
                result = value;
                taken = (unsigned)(u * s.w.kernel + v);
                any = true;
            }
        }
    if (MAX)
        which[k] = (uint8_t)taken;
    store(y, k, MAX ? result : result / (real<T>)(s.h.kernel * s.w.kernel));
}

template <class T, bool MAX>
__global__ void __launch_bounds__(THREADS)
    backward_kernel(shape s, const T *dy, const uint8_t *which, bool add, T *dx)
{
    size_t at = (size_t)blockIdx.x * THREADS + threadIdx.x, i, j, c, plane, end_i, end_j;
    real<T> taps = (real<T>)(s.h.kernel * s.w.kernel), sum;

    if (at >= s.places)
        return;
    plane = s.by_height(s.by_width(s.by_inner(at, &c), &j), &i);
    end_i = s.h.end(i);
    end_j = s.w.end(j);
    sum = add ? load(dx, at) : 0;
    for (size_t wi = s.h.first(i); wi < end_i; wi++)
        for (size_t wj = s.w.first(j); wj < end_j; wj++) {
            size_t k = ((plane * s.h.windows + wi) * s.w.windows + wj) * s.inner + c;
            size_t u = i + s.h.pad - wi * s.h.stride, v = j + s.w.pad - wj * s.w.stride;

            if (!MAX)
                sum += load(dy, k) / taps;
            else if (which[k] == u * s.w.kernel + v)
                sum += load(dy, k);
        }
    store(dx, at, sum);
}

template <class T, bool MAX> void forward(const struct pl_pool2d_args *a)
{
    shape s = shape_of(a);

    if (s.windows)
        PL_LAUNCH((forward_kernel<T, MAX>), ceil_div(s.windows, THREADS), THREADS, 0, s,
                  (const T *)a->x, (T *)a->y, a->which);
}

template <class T, bool MAX> void backward(const struct pl_pool2d_args *a)
{
    shape s = shape_of(a);

    if (s.places)
        PL_LAUNCH((backward_kernel<T, MAX>), ceil_div(s.places, THREADS), THREADS, 0, s,
                  (const T *)a->dy, (const uint8_t *)a->which, a->dx_add, (T *)a->dx);
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
