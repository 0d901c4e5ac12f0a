/* SPDX-License-Identifier: MIT */
/* Ioffe and Szegedy, arXiv 1502.03167. Each half reads x once (backward dy and, with relu, y too)
 * and writes y, or dx, once. The sums have two terms per element in f64 (sums.cuh), 3 operations
 * forward, 4 backward; the rest is 4 operations per element forward and 6 backward in real<T>
 * (each.cuh), channels by divider.cuh: bound by memory, or by f64 on devices with few f64 units.
 * Sums of x and x^2 instead of a running mean and variance (Welford), since sums of several ranks
 * are added; not measured on a card yet. Any shape; with inner = 1 sums go by columns, else by
 * channel. */
#include "kernels/cuda/divider.cuh"
#include "kernels/cuda/each.cuh"
#include "kernels/cuda/sums.cuh"

namespace pl_cuda
{

#define THREADS 128

namespace
{

/* Sums per channel: over rows of k = (image, position), or over columns if an image has one
 * position. */
struct places {
    size_t channels, inner;
    divider by_inner;

    explicit places(const struct pl_batchnorm_args *a)
        : channels(a->channels), inner(a->inner), by_inner(a->inner)
    {
    }

    __device__ __forceinline__ size_t operator()(size_t channel, size_t k) const
    {
        size_t at, image = by_inner(k, &at);

        return (image * channels + channel) * inner + at;
    }
};

template <class F, class OUT>
void by_channel(const struct pl_batchnorm_args *a, const F &term, const OUT &out)
{
    if (a->inner == 1)
        sums_together<2>(1, a->batch, a->channels, term, out);
    else
        sums_together<2>(a->channels, a->batch * a->inner, 1, term, out);
}

template <class T> struct moments {
    const T *x;
    places at;

    __device__ void operator()(size_t o, size_t k, size_t i, double sum[2]) const
    {
        double v = load(x, at(o + i, k));

        sum[0] += v;
        sum[1] += v * v;
    }
};

struct moments_to {
    double *sums;
    size_t values, channels;

    __device__ void operator()(size_t c, const double sum[2]) const
    {
        if (c == 0)
            sums[0] = (double)values;
        sums[1 + c] = sum[0];
        sums[1 + channels + c] = sum[1];
    }
};

template <class R> struct statistics {
    size_t channels;
    double eps, momentum;
    bool training;
    const double *sums;
    R *running_mean, *running_var, *mean, *inv_std;
};

template <class R> __global__ void __launch_bounds__(THREADS) statistics_kernel(statistics<R> s)
{
    size_t c = (size_t)blockIdx.x * THREADS + threadIdx.x;
    double n, m, var;

    if (c >= s.channels)
        return;
    if (!s.training) {
        s.mean[c] = s.running_mean[c];
        s.inv_std[c] = (R)(1 / sqrt((double)s.running_var[c] + s.eps));
        return;
    }
    n = s.sums[0];
    m = s.sums[1 + c] / n;
    var = fmax(s.sums[1 + s.channels + c] / n - m * m, 0.0);
    s.mean[c] = (R)m;
    s.inv_std[c] = (R)(1 / sqrt(var + s.eps));
    if (s.running_mean) {
        s.running_mean[c] = (R)((1 - s.momentum) * s.running_mean[c] + s.momentum * m);
        s.running_var[c] =
            (R)((1 - s.momentum) * s.running_var[c] + s.momentum * var * n / fmax(n - 1, 1.0));
    }
}

struct channel_of {
    divider by_inner, by_channels;

    explicit channel_of(const struct pl_batchnorm_args *a)
        : by_inner(a->inner), by_channels(a->channels)
    {
    }

    __device__ __forceinline__ size_t operator()(size_t i) const
    {
        size_t place, channel;

        by_channels(by_inner(i, &place), &channel);
        return channel;
    }
};

template <class T> struct normalized {
    channel_of channel;
    const real<T> *mean, *inv_std;
    const T *w, *b;
    bool relu;

    __device__ real<T> operator()(size_t i, const real<T> x[1]) const
    {
        size_t c = channel(i);
        real<T> y = (x[0] - mean[c]) * inv_std[c];

        y = y * (w ? load(w, c) : 1) + (b ? load(b, c) : 0);
        return relu && y <= 0 ? 0 : y;
    }
};

/* Relu's mask is computed from y, which is NULL without relu. */
template <class T> struct back_moments {
    const T *x, *y, *dy;
    const real<T> *mean;
    places at;

    __device__ void operator()(size_t o, size_t k, size_t i, double sum[2]) const
    {
        size_t e = at(o + i, k);
        double dz = y && load(y, e) <= 0 ? 0 : load(dy, e);

        sum[0] += dz;
        sum[1] += dz * ((double)load(x, e) - mean[o + i]);
    }
};

template <class T> struct back_moments_to {
    moments_to sums;
    const real<T> *inv_std;
    T *dw, *db;
    bool dw_add, db_add;

    __device__ void operator()(size_t c, const double sum[2]) const
    {
        sums(c, sum);
        if (dw)
            store(dw, c, (real<T>)((dw_add ? load(dw, c) : 0) + sum[1] * inv_std[c]));
        if (db)
            store(db, c, (real<T>)((db_add ? load(db, c) : 0) + sum[0]));
    }
};

/* dx = scale (dz - of_dz - (x - mean) inv_std of_x), per channel. */
template <class R> struct factors {
    R mean, inv_std, scale, of_dz, of_x;
};

template <class T>
__global__ void __launch_bounds__(THREADS) factors_kernel(size_t channels,
                                                          const double *back_sums,
                                                          const real<T> *mean,
                                                          const real<T> *inv_std,
                                                          const T *w,
                                                          factors<real<T>> *ret)
{
    size_t c = (size_t)blockIdx.x * THREADS + threadIdx.x;
    factors<real<T>> f = {};

    if (c >= channels)
        return;
    f.mean = mean[c];
    f.inv_std = inv_std[c];
    f.scale = (w ? load(w, c) : 1) * f.inv_std;
    if (back_sums) {
        f.of_dz = (real<T>)(back_sums[1 + c] / back_sums[0]);
        f.of_x = (real<T>)(back_sums[1 + channels + c] / back_sums[0] * f.inv_std);
    }
    ret[c] = f;
}

/* in: x, dy and, with relu, y. */
template <class T, bool RELU> struct sloped {
    channel_of channel;
    const factors<real<T>> *of;

    __device__ real<T> operator()(size_t i, const real<T> *in) const
    {
        factors<real<T>> f = of[channel(i)];
        real<T> dz = RELU && in[2] <= 0 ? 0 : in[1];

        return f.scale * (dz - f.of_dz - (in[0] - f.mean) * f.inv_std * f.of_x);
    }
};

} // namespace

template <class T> void batchnorm_sums(const struct pl_batchnorm_args *a)
{
    by_channel(a, moments<T>{(const T *)a->x, places(a)},
               moments_to{a->sums, a->batch * a->inner, a->channels});
}

template <class T> void batchnorm_forward(const struct pl_batchnorm_args *a)
{
    typedef real<T> R;
    statistics<R> s = {a->channels,         a->eps,       a->momentum,
                       a->training,         a->sums,      (R *)a->running_mean,
                       (R *)a->running_var, (R *)a->mean, (R *)a->inv_std};

    if (a->channels)
        PL_LAUNCH((statistics_kernel<R>), ceil_div(a->channels, THREADS), THREADS, 0, s);
    each<T, 1>(
        a->batch * a->channels * a->inner, {{(const T *)a->x}, (T *)a->y}, false,
        normalized<T>{channel_of(a), s.mean, s.inv_std, (const T *)a->w, (const T *)a->b, a->relu});
}

template <class T> void batchnorm_back_sums(const struct pl_batchnorm_args *a)
{
    const T *y = a->relu ? (const T *)a->y : NULL;

    by_channel(
        a,
        back_moments<T>{(const T *)a->x, y, (const T *)a->dy, (const real<T> *)a->mean, places(a)},
        back_moments_to<T>{{a->back_sums, a->batch * a->inner, a->channels},
                           (const real<T> *)a->inv_std,
                           (T *)a->dw,
                           (T *)a->db,
                           a->dw_add,
                           a->db_add});
}

template <class T> void batchnorm_backward(const struct pl_batchnorm_args *a)
{
    typedef factors<real<T>> F;
    const T *x = (const T *)a->x, *y = (const T *)a->y, *dy = (const T *)a->dy;
    size_t n = a->batch * a->channels * a->inner;
    F *f;

    if (!a->dx || n == 0)
        return;
    f = (F *)scratch(a->channels * sizeof(*f));
    if (!f)
        return;
    PL_LAUNCH((factors_kernel<T>), ceil_div(a->channels, THREADS), THREADS, 0, a->channels,
              (const double *)(a->training ? a->back_sums : NULL), (const real<T> *)a->mean,
              (const real<T> *)a->inv_std, (const T *)a->w, f);
    if (a->relu)
        each<T, 3>(n, {{x, dy, y}, (T *)a->dx}, a->dx_add, sloped<T, true>{channel_of(a), f});
    else
        each<T, 2>(n, {{x, dy}, (T *)a->dx}, a->dx_add, sloped<T, false>{channel_of(a), f});
}

PL_CUDA_DEFINE(batchnorm_sums, batchnorm);
PL_CUDA_DEFINE(batchnorm_forward, batchnorm);
PL_CUDA_DEFINE(batchnorm_back_sums, batchnorm);
PL_CUDA_DEFINE(batchnorm_backward, batchnorm);

} // namespace pl_cuda
