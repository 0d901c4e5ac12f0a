/* SPDX-License-Identifier: MIT */
/* Forward reads the logits once, with a running maximum and sum per thread (Milakov and Gimelshein,
 * arXiv 1805.02867) for 16 logits at a time: 17/16 exponentials and 3 operations per logit; 16
 * bytes are loaded at once from a row's first boundary on. A row's threads combine in one fixed
 * tree, its loss goes to scratch in f64, and one block sums the losses. With max_sum backward reads
 * a logit and writes a gradient once, 1 exponential and 3 operations; without, logits are read
 * twice. With `ahead` forward does both: it reads a logit and writes its gradient once. Keeping all
 * probabilities would write and read as much again as the logits; three passes, the version before,
 * read rows past 8192 classes twice. Any shape. Bound by memory; not measured on a card yet. */
#include "kernels/cuda/rows.cuh"

namespace pl_cuda
{

#define THREADS 1024
#define AT_ONCE 16 /* logits per thread at a time */
#define HELD 8     /* packs per thread, where a row is read once only */
#define SCALE_BLOCKS 1024

namespace
{

/* The maximum of some numbers, and the sum of exponentials of their differences from it: terms in
 * real<T>, 16 at a time, the sum in f64. As in ref a NaN makes the sum NaN; an infinity does so at
 * the end. */
template <class R> struct running {
    R max;
    double sum;

    __device__ __forceinline__ running() : max((R)-INFINITY), sum(0) {}

    /* The reference for numbers below `to`: an infinity is not subtracted from itself before the
     * end. */
    static __device__ __forceinline__ R base(R to)
    {
        return to == (R)-INFINITY ? 0 : to;
    }

    template <int N> __device__ __forceinline__ void add(const R x[N])
    {
        R top = max, terms = 0;

        PL_UNROLL
        for (int i = 0; i < N; i++)
            top = max_of::both(top, x[i]);
        if (top != max) {
            sum *= exp(max - base(top));
            max = top;
        }
        PL_UNROLL
        for (int i = 0; i < N; i++)
            terms += exp(x[i] - base(max));
        sum += terms;
    }

    /* Combines the team's; all its threads get the same. */
    template <int TEAM> __device__ __forceinline__ void join()
    {
        R top = row_team<TEAM>::max(max);

        sum *= exp(max - base(top));
        sum = row_team<TEAM>::sum(sum);
        max = top;
    }
};

/* A row's largest logit and sum of exponentials. */
template <int TEAM, class T>
__device__ __forceinline__ running<real<T>> look_at(const T *logits, size_t n)
{
    const unsigned packs = AT_ONCE / pack<T>::size;
    row_cut cut(logits, n);
    running<real<T>> all;
    real<T> x[AT_ONCE];

    for (size_t i = row_team<TEAM>::at(); i < cut.packs; i += packs * TEAM) {
        pack<T> of[packs];

        PL_UNROLL
        for (unsigned k = 0; k < packs; k++)
            if (i + k * TEAM < cut.packs)
                of[k] = load_pack(logits, cut.head + (i + k * TEAM) * pack<T>::size);
        PL_UNROLL
        for (unsigned k = 0; k < AT_ONCE; k++)
            x[k] = i + k / pack<T>::size * TEAM < cut.packs
                       ? widen_one(of[k / pack<T>::size].of[k % pack<T>::size])
                       : (real<T>)-INFINITY;
        all.template add<AT_ONCE>(x);
    }
    cut.template each_loose<TEAM, T>(n, [&](size_t i) {
        x[0] = load(logits, i);
        all.template add<1>(x);
    });
    all.template join<TEAM>();
    return all;
}

template <class T> struct row_args {
    size_t rows, classes;
    bool add, wide;
    const T *logits;
    const void *dloss;
    const int32_t *labels;
    T *probs, *dlogits;
    real<T> *max_sum;
    double *loss;   /* per row */
    size_t mean_of; /* rows */
};

template <class T> static row_args<T> args_of(const struct pl_cross_entropy_args *a)
{
    return {a->rows,
            a->classes,
            a->dx_add,
            a->wide,
            (const T *)a->logits,
            a->dloss,
            a->labels,
            (T *)a->probs,
            (T *)a->dlogits,
            (real<T> *)a->max_sum,
            NULL,
            a->of ? a->of : a->rows};
}

template <class T, int TEAM>
__global__ void __launch_bounds__(row_team<TEAM>::block) cross_entropy_kernel(row_args<T> a)
{
    size_t r = row_team<TEAM>::row(), n = a.classes;
    const T *logits = a.logits + r * n;

    if (r >= a.rows)
        return;
    running<real<T>> of_row = look_at<TEAM>(logits, n);
    if (a.probs) {
        real<T> scale = (real<T>)(1 / of_row.sum);

        row_map<TEAM>(n, logits, a.probs + r * n, false,
                      [&](size_t, real<T> x) { return exp(x - of_row.max) * scale; });
    }
    if (row_team<TEAM>::at() == 0) {
        int32_t label = a.labels[r];
        bool in = label >= 0 && (size_t)label < n;

        a.loss[r] = in ? log(of_row.sum) - ((double)load(logits, label) - of_row.max) : (double)NAN;
        if (a.max_sum) {
            a.max_sum[2 * r] = of_row.max;
            a.max_sum[2 * r + 1] = (real<T>)of_row.sum;
        }
    }
}

template <class T, int TEAM>
__global__ void __launch_bounds__(row_team<TEAM>::block)
    cross_entropy_backward_kernel(row_args<T> a)
{
    size_t r = row_team<TEAM>::row(), n = a.classes, label;
    const T *logits = a.logits + r * n;
    real<T> slope, max, scale;

    if (r >= a.rows)
        return;
    slope = load_one<T>(a.dloss, a.wide) / (real<T>)a.rows;
    label = a.labels[r] >= 0 ? (size_t)a.labels[r] : n;
    if (a.probs) {
        row_map<TEAM>(n, a.probs + r * n, a.dlogits + r * n, a.add, [&](size_t i, real<T> p) {
            return slope * (p - (i == label ? (real<T>)1 : (real<T>)0));
        });
        return;
    }
    if (a.max_sum) {
        max = a.max_sum[2 * r];
        scale = 1 / a.max_sum[2 * r + 1];
    } else {
        running<real<T>> of_row = look_at<TEAM>(logits, n);

        max = of_row.max;
        scale = (real<T>)(1 / of_row.sum);
    }
    row_map<TEAM>(n, logits, a.dlogits + r * n, a.add, [&](size_t i, real<T> x) {
        return slope * (exp(x - max) * scale - (i == label ? (real<T>)1 : (real<T>)0));
    });
}

/* Loss and gradient in one pass: a row stays in registers between its sum and its gradient, but for
 * the surplus over HELD packs per thread, which is read again. A thread writes what it has read
 * itself, and that with the label's logit the loss. */
template <class T, int TEAM>
__global__ void __launch_bounds__(row_team<TEAM>::block) cross_entropy_ahead_kernel(row_args<T> a)
{
    const unsigned size = pack<T>::size;
    size_t r = row_team<TEAM>::row(), n = a.classes, label;
    unsigned at = row_team<TEAM>::at();
    const T *logits = a.logits + r * n;
    T *to = a.dlogits + r * n;
    running<real<T>> of_row;
    real<T> scale, slope, x[pack<T>::size];
    pack<T> held[HELD];

    if (r >= a.rows)
        return;
    row_cut cut(logits, to, n);
    label = a.labels[r] >= 0 ? (size_t)a.labels[r] : n;
    PL_UNROLL
    for (unsigned k = 0; k < HELD; k++)
        if (at + k * TEAM < cut.packs)
            held[k] = load_pack(logits, cut.head + (at + k * TEAM) * size);
    PL_UNROLL
    for (unsigned k = 0; k < HELD; k++)
        if (at + k * TEAM < cut.packs) {
            PL_UNROLL
            for (unsigned j = 0; j < size; j++)
                x[j] = widen_one(held[k].of[j]);
            of_row.template add<(int)pack<T>::size>(x);
        }
    for (size_t p = at + (size_t)HELD * TEAM; p < cut.packs; p += TEAM) {
        pack<T> in = load_pack(logits, cut.head + p * size);

        PL_UNROLL
        for (unsigned j = 0; j < size; j++)
            x[j] = widen_one(in.of[j]);
        of_row.template add<(int)pack<T>::size>(x);
    }
    cut.template each_loose<TEAM, T>(n, [&](size_t i) {
        x[0] = load(logits, i);
        of_row.template add<1>(x);
    });
    of_row.template join<TEAM>();
    scale = 1 / (real<T>)of_row.sum;
    slope = 1 / (real<T>)a.mean_of;
    auto gradient = [&](size_t i, real<T> logit) {
        if (i == label)
            a.loss[r] = log(of_row.sum) - ((double)logit - of_row.max);
        return slope * (exp(logit - of_row.max) * scale - (i == label ? (real<T>)1 : (real<T>)0));
    };
    if (at == 0 && label >= n)
        a.loss[r] = (double)NAN;
    PL_UNROLL
    for (unsigned k = 0; k < HELD; k++)
        if (at + k * TEAM < cut.packs) {
            size_t i = cut.head + (at + k * TEAM) * size;

            PL_UNROLL
            for (unsigned j = 0; j < size; j++)
                held[k].of[j] = narrow_one<T>(gradient(i + j, widen_one(held[k].of[j])));
            store_pack(to, i, held[k]);
        }
    for (size_t p = at + (size_t)HELD * TEAM; p < cut.packs; p += TEAM) {
        size_t i = cut.head + p * size;
        pack<T> in = load_pack(logits, i);

        PL_UNROLL
        for (unsigned j = 0; j < size; j++)
            in.of[j] = narrow_one<T>(gradient(i + j, widen_one(in.of[j])));
        store_pack(to, i, in);
    }
    cut.template each_loose<TEAM, T>(n,
                                     [&](size_t i) { store(to, i, gradient(i, load(logits, i))); });
}

/* Few blocks: most losses have a gradient of 1, and nothing is to be done. */
template <class T>
__global__ void __launch_bounds__(THREADS)
    cross_entropy_scale_kernel(size_t n, const void *dloss, bool wide, T *dlogits)
{
    real<T> scale = load_one<T>(dloss, wide);

    if (scale == 1)
        return;
    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < n;
         i += (size_t)gridDim.x * blockDim.x)
        store(dlogits, i, load(dlogits, i) * scale);
}

template <class T>
__global__ void __launch_bounds__(THREADS)
    cross_entropy_mean_kernel(size_t rows, const double *of_row, void *loss, bool wide)
{
    double sum = 0;

    for (size_t r = threadIdx.x; r < rows; r += THREADS)
        sum += of_row[r];
    sum = block_sum(sum);
    if (threadIdx.x == 0)
        store_one<T>(loss, (real<T>)(sum / (double)rows), wide);
}

} // namespace

/* No row is kept in registers; small blocks let one read while another one sums. */
#define ROWS_LAUNCH(kernel, T, args)                                                               \
    do {                                                                                           \
        if (a->rows == 0 || a->classes == 0)                                                       \
            break;                                                                                 \
        if (a->classes <= 32 * AT_ONCE)                                                            \
            PL_LAUNCH((kernel<T, 32>), ceil_div(a->rows, PL_ROW_WARPS), 32 * PL_ROW_WARPS, 0,      \
                      args);                                                                       \
        else                                                                                       \
            PL_LAUNCH((kernel<T, 256>), a->rows, 256, 0, args);                                    \
    } while (0)

template <class T> void cross_entropy_forward(const struct pl_cross_entropy_args *a)
{
    row_args<T> args = args_of<T>(a);

    args.loss = a->of ? a->row_loss + a->first : (double *)scratch((a->rows + 1) * sizeof(double));
    if (!args.loss)
        return;
    if (a->ahead) {
        size_t packs = a->classes / pack<T>::size;

        if (packs <= 32 * HELD)
            PL_LAUNCH((cross_entropy_ahead_kernel<T, 32>), ceil_div(a->rows, PL_ROW_WARPS),
                      32 * PL_ROW_WARPS, 0, args);
        else if (packs <= 256 * HELD)
            PL_LAUNCH((cross_entropy_ahead_kernel<T, 256>), a->rows, 256, 0, args);
        else
            PL_LAUNCH((cross_entropy_ahead_kernel<T, 1024>), a->rows, 1024, 0, args);
    } else {
        ROWS_LAUNCH(cross_entropy_kernel, T, args);
    }
    if (!a->of || a->first + a->rows == a->of)
        PL_LAUNCH((cross_entropy_mean_kernel<T>), 1, THREADS, 0, a->classes ? args.mean_of : 0,
                  (const double *)(a->of ? a->row_loss : args.loss), a->loss, a->wide);
}

template <class T> void cross_entropy_backward(const struct pl_cross_entropy_args *a)
{
    size_t n = a->rows * a->classes, blocks = ceil_div(n, THREADS);

    if (a->ahead)
        PL_LAUNCH((cross_entropy_scale_kernel<T>), blocks < SCALE_BLOCKS ? blocks : SCALE_BLOCKS,
                  THREADS, 0, n, a->dloss, a->wide, (T *)a->dlogits);
    else
        ROWS_LAUNCH(cross_entropy_backward_kernel, T, args_of<T>(a));
}

PL_CUDA_DEFINE(cross_entropy_forward, cross_entropy);
PL_CUDA_DEFINE(cross_entropy_backward, cross_entropy);

} // namespace pl_cuda
