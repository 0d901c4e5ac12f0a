/* SPDX-License-Identifier: MIT */
/* Forward a thread has V windows; backward it has V elements of x and all windows that contain
 * them, in order: neighbours of the last dimension (channels that are last), if V divides it. So no
 * two threads write the same element; a thread per window would need atomics in backward. If
 * windows do not overlap, each element is read once and written once; otherwise neighbours read the
 * same ones from the cache; 1 byte per window for the index of the maximum; one comparison or
 * addition per element of each window. Windows of up to 256 elements.
 *
 * Windows of 3 x 3 have kernels of their own for maxima. Forward reads all of a window at once,
 * without branches, in the padding too. Backward, at every second place, a thread has 2 x 2 places,
 * which 2 x 2 windows contain, 9 of whose elements are there. V is then 16 bytes, if it divides the
 * last dimension, and indices are computed once per thread: comparisons and indices take as long as
 * memory does. On an H100 (bf16, 128 x 64 x 112 x 112, channels last, 3.0 TB/s) such kernels with V
 * = 4, branches, and indices per element took 270 us forward and 161 backward, where 282 MB take
 * 95; per element the code now has 0.4 of the instructions forward, 0.5 backward. By themselves
 * they were not measured since. */
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
    size_t x_row, y_row;           /* elements */
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
            a->width * a->inner,
            ow * a->inner,
            divider(a->inner / v),
            divider(oh),
            divider(ow),
            divider(a->height),
            divider(a->width)};
}

/* A NaN wins, else the first of equals. */
template <class R> __device__ __forceinline__ bool wins(R x, R over)
{
    return over == over && !(x <= over);
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

/* The 3 places of a window along one axis, of which at least one is inside: those of the padding
 * are replaced by the nearest one inside. `first` is that of the window, and may be below 0. */
struct three {
    int first, at[3];

    __device__ __forceinline__ three(const axis &x, size_t window)
        : first((int)(window * x.stride) - (int)x.pad)
    {
        int least = first < 0 ? -first : 0, most = (int)x.size - 1 - first;

        PL_UNROLL
        for (int u = 0; u < 3; u++) {
            int n = u < least ? least : u;

            at[u] = n < most ? n : most;
        }
    }

    /* ret[u]: the elements between the first place and place u, which are `step` apart. */
    __device__ __forceinline__ void steps(size_t step, size_t ret[3]) const
    {
        ret[0] = 0;
        ret[1] = at[1] > at[0] ? step : 0;
        ret[2] = ret[1] + (at[2] > at[1] ? step : 0);
    }
};

/* The maxima of windows of 3 x 3. In the padding it reads an element of the window once more: that
 * changes neither the maximum nor, with the index of that element, which one is the first. Without
 * the number of blocks, to which registers suffice, nvcc keeps to so few of them that the elements
 * are read in turns. */
template <class T, int V>
__global__ void __launch_bounds__(THREADS, 3)
    forward3_kernel(shape s, const T *x, T *y, uint8_t *which)
{
    size_t k = (size_t)blockIdx.x * THREADS + threadIdx.x, i, j, c, plane, from, down[3], right[3];
    bunch<uint8_t, V> taken = {};
    group<real<T>, V> result = {};
    bunch<T, V> in[9];

    if (k >= s.windows)
        return;
    plane = s.by_windows_h(s.by_windows_w(s.by_inner(k, &c), &j), &i);
    const three rows(s.h, i), columns(s.w, j);
    from = (plane * s.h.size + (size_t)(rows.first + rows.at[0])) * s.x_row +
           (size_t)(columns.first + columns.at[0]) * s.inner + c * V;
    rows.steps(s.x_row, down);
    columns.steps(s.inner, right);
    PL_UNROLL
    for (int tap = 0; tap < 9; tap++)
        in[tap] = take_raw<V>(x, from + down[tap / 3] + right[tap % 3]);
    PL_UNROLL
    for (int tap = 0; tap < 9; tap++) {
        group<real<T>, V> value = widen_all(in[tap]);
        uint8_t index = (uint8_t)(3 * rows.at[tap / 3] + columns.at[tap % 3]);

        PL_UNROLL
        for (int n = 0; n < V; n++)
            if (tap == 0 || wins(value.of[n], result.of[n])) {
                result.of[n] = value.of[n];
                taken.of[n] = index;
            }
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

/* Of the maxima of windows of 3 x 3 at every second place. Instead of a window that is not there it
 * reads a neighbour, and looks for an index that no window has. */
template <class T, int V>
__global__ void __launch_bounds__(THREADS)
    backward3_kernel(shape s, quads q, const T *dy, const uint8_t *which, bool add, T *dx)
{
    size_t k = (size_t)blockIdx.x * THREADS + threadIdx.x, i, j, c, plane, from, at;
    int row, column, last_row = (int)s.h.windows - 1, last_column = (int)s.w.windows - 1;
    bunch<uint8_t, V> taken[4];
    bunch<T, V> d[4];
    bool there[4];

    if (k >= q.count)
        return;
    plane = q.by_rows(q.by_columns(q.by_inner(k, &c), &j), &i);
    row = i ? (int)i - 1 : 0;
    column = j ? (int)j - 1 : 0;
    from = (plane * s.h.windows + (size_t)row) * s.y_row + (size_t)column * s.inner + c * V;
    PL_UNROLL
    for (int w = 0; w < 4; w++) {
        size_t down = w / 2 && i && row < last_row ? s.y_row : 0;
        size_t right = w % 2 && j && column < last_column ? s.inner : 0;

        d[w] = take_raw<V>(dy, from + down + right);
        taken[w] = take_raw<V>(which, from + down + right);
        there[w] = (w / 2 ? (int)i <= last_row : i > 0) && (w % 2 ? (int)j <= last_column : j > 0);
    }
    row = 2 * (int)i - (int)s.h.pad;
    column = 2 * (int)j - (int)s.w.pad;
    at = (plane * s.h.size + (size_t)row) * s.x_row + (size_t)column * s.inner +
         c * V; /* may wrap */
    PL_UNROLL
    for (int place = 0; place < 4; place++) {
        size_t to = at + (place / 2 ? s.x_row : 0) + (place % 2 ? s.inner : 0);
        group<real<T>, V> sum = {};

        if ((unsigned)(row + place / 2) >= s.h.size || (unsigned)(column + place % 2) >= s.w.size)
            continue;
        if (add)
            sum = take<V>(dx, to);
        PL_UNROLL
        for (int w = 0; w < 4; w++) {
            /* The place is element (u, v) of the window, if that has it. */
            const int u = place / 2 + 2 - 2 * (w / 2), v = place % 2 + 2 - 2 * (w % 2);
            const int tap = there[w] ? 3 * u + v : 255;
            group<real<T>, V> in = widen_all(d[w]);

            PL_UNROLL
            for (int n = 0; n < V; n++)
                if (u < 3 && v < 3 && taken[w].of[n] == tap)
                    sum.of[n] += in.of[n];
        }
        give<V>(dx, to, sum);
    }
}

/* Indices of rows and columns fit into an int. */
static bool by_three(const struct pl_pool2d_args *a)
{
    return a->kernel_h == 3 && a->kernel_w == 3 && a->height >> 30 == 0 && a->width >> 30 == 0;
}

/* There is a window, too. */
static bool by_quads(const struct pl_pool2d_args *a)
{
    return by_three(a) && a->stride_h == 2 && a->stride_w == 2 && a->height + 2 * a->pad_h >= 3 &&
           a->width + 2 * a->pad_w >= 3;
}

static bool in_groups(const struct pl_pool2d_args *a, size_t v)
{
    return a->inner % v == 0 && packable(a->x) && packable(a->y) && packable(a->dy) &&
           packable(a->dx) && packable(a->which);
}

template <class T, int V> void forward3_by(const struct pl_pool2d_args *a)
{
    shape s = shape_of(a, V);

    if (s.windows)
        PL_LAUNCH((forward3_kernel<T, V>), ceil_div(s.windows, THREADS), THREADS, 0, s,
                  (const T *)a->x, (T *)a->y, a->which);
}

template <class T, int V> void backward3_by(const struct pl_pool2d_args *a)
{
    shape s = shape_of(a, V);
    quads q = quads_of(a, V);

    if (s.places)
        PL_LAUNCH((backward3_kernel<T, V>), ceil_div(q.count, THREADS), THREADS, 0, s, q,
                  (const T *)a->dy, (const uint8_t *)a->which, a->dx_add, (T *)a->dx);
}

template <class T, bool MAX, int V> void forward_by(const struct pl_pool2d_args *a)
{
    shape s = shape_of(a, V);

    if (s.windows && MAX && by_three(a))
        forward3_by<T, V>(a);
    else if (s.windows)
        PL_LAUNCH((forward_kernel<T, MAX, V>), ceil_div(s.windows, THREADS), THREADS, 0, s,
                  (const T *)a->x, (T *)a->y, a->which);
}

template <class T, bool MAX, int V> void backward_by(const struct pl_pool2d_args *a)
{
    shape s = shape_of(a, V);

    if (s.places && MAX && by_quads(a))
        backward3_by<T, V>(a);
    else if (s.places)
        PL_LAUNCH((backward_kernel<T, MAX, V>), ceil_div(s.places, THREADS), THREADS, 0, s,
                  (const T *)a->dy, (const uint8_t *)a->which, a->dx_add, (T *)a->dx);
}

template <class T, bool MAX> void forward(const struct pl_pool2d_args *a)
{
    const int v = sizeof(real<T>) == 8 ? 2 : 4, most = 16 / sizeof(T);

    if (most > v && MAX && by_three(a) && in_groups(a, most))
        forward3_by<T, most>(a);
    else if (in_groups(a, v))
        forward_by<T, MAX, v>(a);
    else
        forward_by<T, MAX, 1>(a);
}

template <class T, bool MAX> void backward(const struct pl_pool2d_args *a)
{
    const int v = sizeof(real<T>) == 8 ? 2 : 4, most = 16 / sizeof(T);

    if (most > v && MAX && by_quads(a) && in_groups(a, most))
        backward3_by<T, most>(a);
    else if (in_groups(a, v))
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
