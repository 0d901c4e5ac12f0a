/* SPDX-License-Identifier: MIT */
/* The fallback without cuDNN: implicit products (gemm.cuh, with operands looked up in the images
 * instead of written out first; Chetlur et al., arXiv 1410.0759): 2 operations per tap of each
 * window forward, for dx and for dw; with a stride most of dx's are by 0. Bytes: as gemm.cuh, each
 * operand once per 64 rows or columns of the result, taps from the cache; db reads dy once. Bound
 * by the f32 units. Winograd and tensor cores are left to cuDNN; not measured on a card yet. Any
 * shape up to 2^31 tiles of 64 x 64. Padding counts as zeros, so an infinite or NaN weight gives
 * NaNs at the padding. */
#include "kernels/cuda/divider.cuh"
#include "kernels/cuda/gemm.cuh"
#include "kernels/cuda/sums.cuh"

namespace pl_cuda
{

#define MEND_THREADS 256
#define MEND_BLOCKS 1056 /* 8 per multiprocessor of an H100 */

namespace
{

/* Windows are numbered (image, i, j), taps (channel, u, v), or (u, v, channel) if channels are
 * last, as in the weights; positions of x (image, i, j). */
struct shape {
    size_t in, out, height, width, windows_h, windows_w, kernel_h, kernel_w;
    size_t stride_h, stride_w, pad_h, pad_w;
    bool last;
    divider by_in, by_windows_h, by_windows_w, by_windows, by_kernel_h, by_kernel_w, by_kernel;
    divider by_height, by_width, by_plane, by_stride_h, by_stride_w;

    shape(const struct pl_conv2d_args *a, size_t oh, size_t ow)
        : in(a->in), out(a->out), height(a->height), width(a->width), windows_h(oh), windows_w(ow),
          kernel_h(a->kernel_h), kernel_w(a->kernel_w), stride_h(a->stride_h),
          stride_w(a->stride_w), pad_h(a->pad_h), pad_w(a->pad_w), last(a->last), by_in(a->in),
          by_windows_h(oh), by_windows_w(ow), by_windows(oh * ow), by_kernel_h(a->kernel_h),
          by_kernel_w(a->kernel_w), by_kernel(a->kernel_h * a->kernel_w), by_height(a->height),
          by_width(a->width), by_plane(a->height * a->width), by_stride_h(a->stride_h),
          by_stride_w(a->stride_w)
    {
    }

    /* The index of y's element of this window and output channel. */
    __device__ __forceinline__ size_t y_at(size_t window, size_t o) const
    {
        size_t at, image;

        if (last)
            return window * out + o;
        image = by_windows(window, &at);
        return (image * out + o) * windows_h * windows_w + at;
    }

    /* The channel, row and column of a tap; returns the channel. */
    __device__ __forceinline__ size_t tap(size_t k, size_t *u, size_t *v) const
    {
        size_t c, rest;

        if (!last)
            return by_kernel_h(by_kernel_w(k, v), u);
        rest = by_in(k, &c);
        *u = by_kernel_w(rest, v);
        return c;
    }

    __device__ __forceinline__ size_t x_at(size_t image, size_t c, size_t i, size_t j) const
    {
        return last ? ((image * height + i) * width + j) * in + c
                    : ((image * in + c) * height + i) * width + j;
    }
};

shape shape_of(const struct pl_conv2d_args *a)
{
    return shape(a, pl_conv_size(a->height, a->kernel_h, a->stride_h, a->pad_h),
                 pl_conv_size(a->width, a->kernel_w, a->stride_w, a->pad_w));
}

/* x under a tap of a window. TAPS: lines are taps and k is the window; otherwise the reverse. */
template <class T, bool TAPS> struct patches {
    shape s;
    const T *x;

    __device__ __forceinline__ bool lines_near() const
    {
        return TAPS == s.last;
    }

    __device__ __forceinline__ real<T> operator()(size_t, size_t line, size_t k) const
    {
        size_t oi, oj, u, v;
        size_t image = s.by_windows_h(s.by_windows_w(TAPS ? k : line, &oj), &oi);
        size_t c = s.tap(TAPS ? line : k, &u, &v);
        size_t i = oi * s.stride_h + u - s.pad_h, j = oj * s.stride_w + v - s.pad_w;

        if (i >= s.height || j >= s.width) /* below 0 it wraps around */
            return 0;
        return load(x, s.x_at(image, c, i, j));
    }
};

/* dy masked by relu, computed from y; y is NULL without relu. */
template <class T> struct slope {
    const T *dy, *y;

    __device__ __forceinline__ real<T> operator()(size_t at) const
    {
        return y && load(y, at) <= 0 ? 0 : load(dy, at);
    }
};

/* Lines are output channels, k is the window. */
template <class T> struct slopes {
    shape s;
    slope<T> dz;

    __device__ __forceinline__ bool lines_near() const
    {
        return s.last;
    }

    __device__ __forceinline__ real<T> operator()(size_t, size_t o, size_t window) const
    {
        return dz(s.y_at(window, o));
    }
};

/* The slope of the window that has a position of x under a tap. Lines are positions, k is (output
 * channel, u, v). */
template <class T> struct slopes_over {
    shape s;
    slope<T> dz;

    __device__ __forceinline__ bool lines_near() const
    {
        return true;
    }

    __device__ __forceinline__ real<T> operator()(size_t, size_t place, size_t k) const
    {
        size_t i, j, u, v, between_h, between_w;
        size_t image = s.by_height(s.by_width(place, &j), &i);
        size_t o = s.by_kernel_h(s.by_kernel_w(k, &v), &u), oi, oj;

        if (i + s.pad_h < u || j + s.pad_w < v)
            return 0;
        oi = s.by_stride_h(i + s.pad_h - u, &between_h);
        oj = s.by_stride_w(j + s.pad_w - v, &between_w);
        if (between_h || between_w || oi >= s.windows_h || oj >= s.windows_w)
            return 0;
        return dz(s.y_at((image * s.windows_h + oi) * s.windows_w + oj, o));
    }
};

/* The weights for dx: lines are input channels, k as there. */
template <class T> struct weights_over {
    shape s;
    const T *w;

    __device__ __forceinline__ bool lines_near() const
    {
        return false;
    }

    __device__ __forceinline__ real<T> operator()(size_t, size_t c, size_t k) const
    {
        size_t tap, o = s.by_kernel(k, &tap), kernel = s.kernel_h * s.kernel_w;

        return load(w, s.last ? (o * kernel + tap) * s.in + c : (o * s.in + c) * kernel + tap);
    }
};

template <class T> struct y_to {
    shape s;
    const T *b;
    bool relu;
    T *y;

    __device__ __forceinline__ void operator()(size_t, size_t o, size_t window, real<T> sum) const
    {
        if (b)
            sum += load(b, o);
        store(y, s.y_at(window, o), relu && sum <= 0 ? 0 : sum);
    }
};

template <class T> struct dx_to {
    shape s;
    T *dx;
    bool add;

    __device__ __forceinline__ void operator()(size_t, size_t c, size_t place, real<T> sum) const
    {
        size_t at, image = s.by_plane(place, &at);

        put(dx, s.last ? place * s.in + c : (image * s.in + c) * s.height * s.width + at, sum, add);
    }
};

template <class T> struct db_term {
    shape s;
    slope<T> dz;

    /* A sum's number is first, or last if channels are last: neighbours are neighbours in y. */
    __device__ double operator()(size_t o, size_t window, size_t i) const
    {
        return dz(s.y_at(window, s.last ? i : o));
    }
};

template <class T> struct db_to {
    T *db;
    bool add;

    __device__ void operator()(size_t o, double sum) const
    {
        store(db, o, (real<T>)(add ? load(db, o) + sum : sum));
    }
};

/* A thread per element of y, of which it does those whose window has an x that is not finite. Reads
 * one number and does nothing where all are finite, so that its own speed does not matter. */
template <class T>
__global__ void __launch_bounds__(MEND_THREADS)
    conv2d_mend_kernel(size_t count, shape s, struct pl_conv2d_args a)
{
    const T *x = (const T *)a.x, *w = (const T *)a.w, *b = (const T *)a.b;

    if (*a.bad == 0)
        return;
    for (size_t k = (size_t)blockIdx.x * MEND_THREADS + threadIdx.x; k < count;
         k += (size_t)gridDim.x * MEND_THREADS) {
        size_t window = k / s.out, o = k % s.out, at = s.y_at(window, o), place;
        size_t image = s.by_windows(window, &place), taps = s.in * s.kernel_h * s.kernel_w, j;
        size_t i = s.by_windows_w(place, &j);
        real<T> sum = b ? load(b, o) : 0;
        bool finite = true;

        for (size_t tap = 0; tap < taps; tap++) {
            size_t u, v, c = s.tap(tap, &u, &v), row, column;

            row = i * s.stride_h + u - s.pad_h; /* below 0 it wraps around, as a column */
            column = j * s.stride_w + v - s.pad_w;
            if (row < s.height && column < s.width) {
                real<T> value =
                    load(x, s.last ? ((image * s.height + row) * s.width + column) * s.in + c
                                   : ((image * s.in + c) * s.height + row) * s.width + column);

                finite &= isfinite(value);
                sum += value * load(w, o * taps + tap);
            }
        }
        if (!finite)
            store((T *)a.y, at, a.relu && sum <= 0 ? (real<T>)0 : sum);
    }
}

} // namespace

template <class T> void conv2d_mend(const struct pl_conv2d_args *a)
{
    shape s = shape_of(a);
    size_t count = a->batch * s.windows_h * s.windows_w * a->out;
    size_t blocks = ceil_div(count, MEND_THREADS);

    if (count)
        PL_LAUNCH((conv2d_mend_kernel<T>), blocks < MEND_BLOCKS ? blocks : MEND_BLOCKS,
                  MEND_THREADS, 0, count, s, *a);
}

template <class T> void conv2d_forward(const struct pl_conv2d_args *a)
{
    shape s = shape_of(a);
    size_t taps = a->in * a->kernel_h * a->kernel_w;

    gemm<T>({1, a->out, a->batch * s.windows_h * s.windows_w, taps},
            strided<T>{(const T *)a->w, taps, 1, 0}, patches<T, false>{s, (const T *)a->x},
            y_to<T>{s, (const T *)a->b, a->relu, (T *)a->y});
}

template <class T> void conv2d_backward(const struct pl_conv2d_args *a)
{
    shape s = shape_of(a);
    slope<T> dz = {(const T *)a->dy, a->relu ? (const T *)a->y : NULL};
    size_t windows = a->batch * s.windows_h * s.windows_w, kernel = a->kernel_h * a->kernel_w;

    if (a->dx)
        gemm<T>({1, a->in, a->batch * a->height * a->width, a->out * kernel},
                weights_over<T>{s, (const T *)a->w}, slopes_over<T>{s, dz},
                dx_to<T>{s, (T *)a->dx, a->dx_add});
    if (a->dw)
        gemm<T>({1, a->out, a->in * kernel, windows}, slopes<T>{s, dz},
                patches<T, true>{s, (const T *)a->x},
                gemm_to<T>{(T *)a->dw, a->in * kernel, 0, 1, a->dw_add});
    if (a->db)
        sums(a->last ? 1 : a->out, windows, a->last ? a->out : 1, db_term<T>{s, dz},
             db_to<T>{(T *)a->db, a->db_add});
}

PL_CUDA_DEFINE(conv2d_forward, conv2d);
PL_CUDA_DEFINE(conv2d_backward, conv2d);
PL_CUDA_DEFINE(conv2d_mend, conv2d);

} // namespace pl_cuda
