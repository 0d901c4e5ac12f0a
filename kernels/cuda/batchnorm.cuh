/* SPDX-License-Identifier: MIT */
/* Shared by the passes of batch norm (batchnorm.cu): the places of the terms of its sums, the
 * threads that add them, a kernel over all elements, and y before relu. Nothing here owns memory or
 * fails. */
#ifndef PL_KERNELS_CUDA_BATCHNORM_CUH
#define PL_KERNELS_CUDA_BATCHNORM_CUH

#include "kernels/cuda/divider.cuh"
#include "kernels/cuda/group.cuh"
#include "kernels/cuda/sums.cuh"

namespace pl_cuda
{

#define PL_BATCHNORM_THREADS 128
#define PL_BATCHNORM_ROWS 32       /* per thread at most, with inner = 1 */
#define PL_BATCHNORM_ENOUGH 270336 /* threads, 2048 for each multiprocessor of an H100 */

namespace
{

/* The place of V terms of sum number `channel`, or with COLUMNS of V neighbouring channels. */
template <int V, bool COLUMNS> struct places {
    size_t channels, inner; /* inner: in groups of V */
    divider by_inner;

    explicit places(const struct pl_batchnorm_args *a)
        : channels(a->channels), inner(a->inner / V), by_inner(a->inner / V)
    {
    }

    __device__ __forceinline__ size_t operator()(size_t channel, size_t k, size_t column) const
    {
        size_t at, image;

        if (COLUMNS)
            return k * channels + column * V;
        image = by_inner(k, &at);
        return ((image * channels + channel) * inner + at) * V;
    }
};

/* The numbers of W channels from c on, or W times `none`. Those that are aligned are loaded 16
 * bytes at a time; W = 8 says that they are. */
template <int W, bool ALIGNED, class G>
__device__ __forceinline__ void take_numbers(const G *p, size_t c, real<G> none, real<G> *to)
{
    const int at_once = ALIGNED || W > 4 ? (W < 4 ? W : 4) : 1;

    PL_UNROLL
    for (int j = 0; j < W; j += at_once) {
        bunch<G, at_once> some = {};

        if (p)
            some = take_raw<at_once>(p, c + j);
        PL_UNROLL
        for (int k = 0; k < at_once; k++)
            to[j + k] = p ? widen_one(some.of[k]) : none;
    }
}

/* F, OUT: as in sums.cuh, with V channels or with one. */
template <int V, bool COLUMNS, class F, class OUT>
void by_channel(const struct pl_batchnorm_args *a, const F &term, const OUT &out)
{
    if constexpr (COLUMNS)
        sums_together<2 * V, SUMS_BY_COLUMNS>(1, a->batch, a->channels / V, term, out);
    else
        sums_together<2, SUMS_BY_ROWS>(a->channels, a->batch * (a->inner / V), 1, term, out);
}

struct moments_to {
    double *sums;
    size_t values, channels;

    __device__ void one(size_t c, const double sum[2]) const
    {
        if (c == 0)
            sums[0] = (double)values;
        sums[1 + c] = sum[0];
        sums[1 + channels + c] = sum[1];
    }
};

/* Each of W channels. */
template <class OUT, int W> struct channels_to {
    enum { numbers = 2 };
    OUT out;

    __device__ void one(size_t c, const double sum[2]) const
    {
        out.one(c, sum);
    }

    __device__ void operator()(size_t c, const double *sum) const
    {
        for (int j = 0; j < W; j++)
            one(c * W + j, sum + 2 * j);
    }
};

/* The elements, for the passes over all of them. */
struct elements {
    size_t count, channels, rows, lines; /* a thread's rows are so many lines apart */
    divider by_inner, by_channels, by_groups;

    /* As few rows of so many groups as leave enough threads. */
    static size_t lines_of(size_t batch, size_t groups)
    {
        size_t least = ceil_div(batch, PL_BATCHNORM_ROWS),
               wanted = groups ? ceil_div(PL_BATCHNORM_ENOUGH, groups) : 1;

        return wanted < least ? least : wanted < batch ? wanted : batch;
    }

    elements(const struct pl_batchnorm_args *a, int v)
        : count(a->batch * a->channels * a->inner), channels(a->channels), rows(a->batch),
          lines(lines_of(a->batch, a->channels / (size_t)v)), by_inner(a->inner),
          by_channels(a->channels), by_groups(a->channels / (size_t)v)
    {
    }
};

/* F: `template <int W> numbers<W>`, made of W channels from `c` on; `template <int V> terms<V>`,
 * the V elements from i on of each array that is read (`take_terms(i)`); and `do_some(i, terms,
 * numbers)`, where these have W = 1 or W = V channels. */
template <class F, int V, bool COLUMNS>
__global__ void __launch_bounds__(PL_BATCHNORM_THREADS) elements_kernel(elements e, F f)
{
    const unsigned ahead = V == 8 ? 2 : 4; /* rows that a thread reads before it writes them */
    size_t thread = (size_t)blockIdx.x * PL_BATCHNORM_THREADS + threadIdx.x, at, rest;

    if (COLUMNS) {
        size_t line = e.by_groups(thread, &at);

        if (line >= e.lines)
            return;
        typename F::template numbers<V> of(f, at * V);

        for (size_t row = line; row < e.rows; row += ahead * e.lines) {
            typename F::template terms<V> in[ahead] = {};

            PL_UNROLL
            for (unsigned k = 0; k < ahead; k++)
                if (row + k * e.lines < e.rows)
                    in[k] = f.template take_terms<V>((row + k * e.lines) * e.channels + at * V);
            PL_UNROLL
            for (unsigned k = 0; k < ahead; k++)
                if (row + k * e.lines < e.rows)
                    f.template do_some<V, V>((row + k * e.lines) * e.channels + at * V, in[k], of);
        }
        return;
    }
    if (thread * V >= e.count)
        return;
    rest = e.by_inner(thread * V, &at);
    e.by_channels(rest, &at);
    typename F::template numbers<1> of(f, at);

    f.template do_some<V, 1>(thread * V, f.template take_terms<V>(thread * V), of);
}

template <int V, bool COLUMNS, class F>
void all_elements(const struct pl_batchnorm_args *a, const F &f)
{
    elements e(a, V);
    size_t threads = COLUMNS ? a->channels / V * e.lines : ceil_div(e.count, V);

    if (e.count)
        PL_LAUNCH((elements_kernel<F, V, COLUMNS>), ceil_div(threads, PL_BATCHNORM_THREADS),
                  PL_BATCHNORM_THREADS, 0, e, f);
}

/* y before relu, and before r is added. Backward computes it by the same instructions, for the same
 * bits. */
template <class R> static __device__ __forceinline__ R normal(R x, R mean, R inv_std, R w, R b)
{
    R v = (x - mean) * inv_std;

    return v * w + b;
}

} // namespace
} // namespace pl_cuda

#endif
