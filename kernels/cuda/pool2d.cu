/* SPDX-License-Identifier: MIT */
/* Forward a thread has V windows; backward it has V elements of x and all windows that contain
 * them, in order: neighbours of the last dimension (channels that are last), if V divides it. So no
 * two threads write the same element; a thread per window would need atomics in backward. If
 * windows do not overlap, each element is read once and written once; otherwise neighbours read the
 * same ones from the cache; 1 byte per window for the index of the maximum; one comparison or
 * addition per element of each window. Windows of up to 256 elements.
 *
 * Bound by memory, if a thread does not wait for one element after the other: on an H100 (bf16, 128
 * x 64 x 112 x 112, channels last, windows of 3 x 3) maxima reached 1.3 of 3.0 TB/s, and 0.55
 * backward, where most of the time went to the indices of 4 elements. So such windows, at every
 * second place, have kernels of their own: forward reads all of a window at once, backward has a
 * thread for 2 x 2 places, which 2 x 2 windows contain, 9 of whose elements are there. Not measured
 * since. */
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

/* The maxima of windows of 3 x 3. */
template <class T, int V>
__global__ void __launch_bounds__(THREADS)
    forward3_kernel(shape s, const T *x, T *y, uint8_t *which)
{
    size_t k = (size_t)blockIdx.x * THREADS + threadIdx.x, i, j, c, plane;
    bunch<uint8_t, V> taken = {};
    group<real<T>, V> result = {};
    bunch<T, V> in[9] = {};
    bool inside[9], any = false;

    if (k >= s.windows)
        return;
    plane = s.by_windows_h(s.by_windows_w(s.by_inner(k, &c), &j), &i);
    PL_UNROLL
    for (int tap = 0; tap < 9; tap++) {
        size_t at_i = i * s.h.stride + tap / 3 - s.h.pad, at_j = j * s.w.stride + tap % 3 - s.w.pad;

        inside[tap] = at_i < s.h.size && at_j < s.w.size; /* below 0 it wraps around */
        if (inside[tap])
            in[tap] =
                take_raw<V>(x, ((plane * s.h.size + at_i) * s.w.size + at_j) * s.inner + c * V);
    }
    PL_UNROLL
    for (int tap = 0; tap < 9; tap++) {
        group<real<T>, V> value = widen_all(in[tap]);

        PL_UNROLL
        for (int n = 0; n < V; n++)
            if (inside[tap] && (!any || wins(value.of[n], result.of[n]))) {
                result.of[n] = value.of[n];
                taken.of[n] = (uint8_t)tap;
            }
        any |= inside[tap];
    }
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

/* Groups of 2 x 2 places of x: rows 2 i - pad and the next, of which windows i - 1 and i have
 * elements, and columns alike. */
struct quads {
    size_t count;
    divider by_inner, by_rows, by_columns;
};

static quads quads_of(const struct pl_pool2d_args *a, size_t v)
{
    size_t rows = (a->height + a->pad_h + 1) / 2, columns = (a->width + a->pad_w + 1) / 2;

    return {a->planes * rows * columns * (a->inner / v), divider(a->inner / v), divider(rows),
            divider(columns)};
}

/* Of the maxima of windows of 3 x 3 at every second place. */
template <class T, int V>
__global__ void __launch_bounds__(THREADS)
    backward3_kernel(shape s, quads q, const T *dy, const uint8_t *which, bool add, T *dx)
{
    size_t k = (size_t)blockIdx.x * THREADS + threadIdx.x, i, j, c, plane;
    bunch<uint8_t, V> taken[4];
    bunch<T, V> d[4] = {}, old[4] = {};
    size_t at[4];
    bool inside[4];

    if (k >= q.count)
        return;
    plane = q.by_rows(q.by_columns(q.by_inner(k, &c), &j), &i);
    PL_UNROLL
    for (int w = 0; w < 4; w++) { /* both kinds wrap around below 0 */
        size_t wi = i - 1 + w / 2, wj = j - 1 + w % 2;
        size_t row = 2 * i + w / 2 - s.h.pad, column = 2 * j + w % 2 - s.w.pad;

        PL_UNROLL
        for (int n = 0; n < V; n++)
            taken[w].of[n] = 255;
        if (wi < s.h.windows && wj < s.w.windows) {
            size_t from = ((plane * s.h.windows + wi) * s.w.windows + wj) * s.inner + c * V;

            d[w] = take_raw<V>(dy, from);
            taken[w] = take_raw<V>(which, from);
        }
        inside[w] = row < s.h.size && column < s.w.size;
        at[w] = ((plane * s.h.size + row) * s.w.size + column) * s.inner + c * V;
        if (add && inside[w])
            old[w] = take_raw<V>(dx, at[w]);
    }
    PL_UNROLL
    for (int place = 0; place < 4; place++) {
        group<real<T>, V> sum = widen_all(old[place]);

        PL_UNROLL
        for (int w = 0; w < 4;
             w++) { /* the place is element (u, v) of the window, if that has it */
            const int u = place / 2 + 2 - 2 * (w / 2), v = place % 2 + 2 - 2 * (w % 2);
            group<real<T>, V> in = widen_all(d[w]);

            PL_UNROLL
            for (int n = 0; n < V; n++)
                if (u < 3 && v < 3 && taken[w].of[n] == 3 * u + v)
                    sum.of[n] += in.of[n];
        }
        if (inside[place])
            give<V>(dx, at[place], sum);
    }
}

static bool by_three(const struct pl_pool2d_args *a)
{
    return a->kernel_h == 3 && a->kernel_w == 3;
}

static bool in_groups(const struct pl_pool2d_args *a, size_t v)
{
    return a->inner % v == 0 && packable(a->x) && packable(a->y) && packable(a->dy) &&
           packable(a->dx) && packable(a->which);
}

template <class T, bool MAX, int V> void forward_by(const struct pl_pool2d_args *a)
{
    shape s = shape_of(a, V);

    if (s.windows && MAX && by_three(a))
        PL_LAUNCH((forward3_kernel<T, V>), ceil_div(s.windows, THREADS), THREADS, 0, s,
                  (const T *)a->x, (T *)a->y, a->which);
    else if (s.windows)
        PL_LAUNCH((forward_kernel<T, MAX, V>), ceil_div(s.windows, THREADS), THREADS, 0, s,
                  (const T *)a->x, (T *)a->y, a->which);
}

template <class T, bool MAX, int V> void backward_by(const struct pl_pool2d_args *a)
{
    shape s = shape_of(a, V);
    quads q = quads_of(a, V);

    if (s.places && MAX && by_three(a) && a->stride_h == 2 && a->stride_w == 2)
        PL_LAUNCH((backward3_kernel<T, V>), ceil_div(q.count, THREADS), THREADS, 0, s, q,
                  (const T *)a->dy, (const uint8_t *)a->which, a->dx_add, (T *)a->dx);
    else if (s.places)
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
