/* SPDX-License-Identifier: MIT */
/* Forward reads the logits once, with a running maximum and sum per thread (Milakov and Gimelshein,
 * arXiv 1805.02867) for 16 logits at a time: 17/16 exponentials and 3 operations per logit; 16
 * bytes are loaded at once from a row's first boundary on. A row's threads combine in one fixed
 * tree, its loss goes to scratch in f64, and one block sums the losses. With max_sum backward reads
 * a logit and writes a gradient once, 1 exponential and 3 operations; without, logits are read
 * twice. With `ahead` forward does both: it reads a logit and writes its gradient once. Keeping all
 * probabilities would write and read as much again as the logits; three passes, the version before,
 * read rows past 8192 classes twice. Any shape. Bound by memory. A row of GPT-2's 50304 logits in
 * the registers of a block of 1024 left one block per multiprocessor, which did not read while it
 * calculated: 1.45 TB/s of 3.0 on an H100. */
#include "kernels/cuda/rows.cuh"

namespace pl_cuda
{

#define THREADS 1024
#define AT_ONCE 16 /* logits per thread at a time */
#define HELD 8     /* packs per thread, where a row is read once only */
#define LONG 512   /* threads per block of a row that shared memory holds */
#define AHEAD 4    /* packs per thread there, in flight at once */
/* Bytes: what a block of sm_86, sm_89 and sm_120 may have, but for the sums; of an H100's, two fit
 * a multiprocessor. */
#define SHARED_MOST (99 * 1024 - 768)
#define SCALE_BLOCKS 1024

namespace
{

/* With 16-bit logits some units in the last place of an f32 are enough, and results below the
 * smallest normal f32 are 0: the exact function takes four times as many instructions. */
template <class T> static __device__ __forceinline__ real<T> exp_of(real<T> x)
{
#ifdef __CUDA_ARCH__
    if (sizeof(T) == 2) {
        float y;

        asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"((float)x * 1.4426950408889634f));
        return y;
    }
#endif
    return exp(x);
}

/* Starts a copy of 16 bytes into shared memory, which needs no register. The thread that started it
 * may read it after wait_for_copies(). */
template <class T>
static __device__ __forceinline__ void start_copy(pack<T> *to, const T *p, size_t i)
{
#ifdef __CUDA_ARCH__
    asm volatile(
        "cp.async.cg.shared.global [%0], [%1], 16;" ::"r"((unsigned)__cvta_generic_to_shared(to)),
        "l"(p + i)
        : "memory");
#else
    *to = load_pack(p, i);
#endif
}

static __device__ __forceinline__ void wait_for_copies()
{
#ifdef __CUDA_ARCH__
    asm volatile("cp.async.wait_all;" ::: "memory");
#endif
}

/* A copied pack, read at once: one element after the other is a conflict of banks, as lanes are 16
 * bytes apart. */
template <class T> static __device__ __forceinline__ pack<T> take_copy(const pack<T> *from)
{
#ifdef __CUDA_ARCH__
    uint4 words = *reinterpret_cast<const uint4 *>(from);
#else
    typedef unsigned __int128 __attribute__((may_alias)) any;
    any words = *reinterpret_cast<const any *>(from);
#endif
    pack<T> out;

    memcpy(&out, &words, sizeof(out));
    return out;
}

/* The maximum of some numbers, and the sum of exponentials of their differences from it: terms in
 * real<T>, 16 at a time, the sum in f64. As in ref a NaN makes the sum NaN; an infinity does so at
 * the end. */
template <class T> struct running {
    typedef real<T> R;
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
            top = fmax(top, x[i]); /* a NaN makes its term NaN */
        if (top != max) {
            sum *= exp_of<T>(max - base(top));
            max = top;
        }
        PL_UNROLL
        for (int i = 0; i < N; i++)
            terms += exp_of<T>(x[i] - base(max));
        sum += terms;
    }

    /* Combines the team's; all its threads get the same. */
    template <int TEAM> __device__ __forceinline__ void join()
    {
        R top = row_team<TEAM>::max(max);

        sum *= exp_of<T>(max - base(top));
        sum = row_team<TEAM>::sum(sum);
        max = top;
    }
};

/* A row's largest logit and sum of exponentials. */
template <int TEAM, class T>
__device__ __forceinline__ running<T> look_at(const T *logits, size_t n)
{
    const unsigned packs = AT_ONCE / pack<T>::size;
    row_cut cut(logits, n);
    running<T> all;
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
    running<T> of_row = look_at<TEAM>(logits, n);
    if (a.probs) {
        real<T> scale = (real<T>)(1 / of_row.sum);

        row_map<TEAM>(n, logits, a.probs + r * n, false,
                      [&](size_t, real<T> x) { return exp_of<T>(x - of_row.max) * scale; });
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
        running<T> of_row = look_at<TEAM>(logits, n);

        max = of_row.max;
        scale = (real<T>)(1 / of_row.sum);
    }
    row_map<TEAM>(n, logits, a.dlogits + r * n, a.add, [&](size_t i, real<T> x) {
        return slope * (exp_of<T>(x - max) * scale - (i == label ? (real<T>)1 : (real<T>)0));
    });
}

/* The sum over a row, and then the row's loss and gradient. */
template <class T> struct ahead {
    running<T> of_row;
    real<T> scale, slope;
    size_t label; /* n or more: none */
    double *loss;

    __device__ __forceinline__ ahead(const row_args<T> &a, size_t r)
        : label(a.labels[r] >= 0 ? (size_t)a.labels[r] : a.classes), loss(a.loss + r)
    {
    }

    template <int TEAM> __device__ __forceinline__ void sum_up(const row_args<T> &a)
    {
        of_row.template join<TEAM>();
        scale = 1 / (real<T>)of_row.sum;
        slope = 1 / (real<T>)a.mean_of;
        if (row_team<TEAM>::at() == 0 && label >= a.classes)
            *loss = (double)NAN;
    }

    __device__ __forceinline__ void add(const pack<T> &in)
    {
        real<T> x[pack<T>::size];

        PL_UNROLL
        for (size_t j = 0; j < pack<T>::size; j++)
            x[j] = widen_one(in.of[j]);
        of_row.template add<(int)pack<T>::size>(x);
    }

    /* The label's is the loss, too. Its logit comes from the thread that writes there. */
    __device__ __forceinline__ real<T> gradient(real<T> logit, bool of_label) const
    {
        if (of_label)
            *loss = log(of_row.sum) - ((double)logit - of_row.max);
        return slope * (exp_of<T>(logit - of_row.max) * scale - (of_label ? (real<T>)1 : 0));
    }

    /* Of the logits from i on. */
    __device__ __forceinline__ void put(T *to, size_t i, pack<T> in) const
    {
        pack<T> out;

        PL_UNROLL
        for (size_t j = 0; j < pack<T>::size; j++)
            out.of[j] = narrow_one<T>(gradient(widen_one(in.of[j]), false));
        if (label - i < pack<T>::size) { /* wraps where the label is before */
            PL_UNROLL                    /* registers have no index */
                for (size_t j = 0; j < pack<T>::size; j++) if (label - i == j)
                    out.of[j] = narrow_one<T>(gradient(widen_one(in.of[j]), true));
        }
        store_pack(to, i, out);
    }
};

/* Loss and gradient in one pass: a row stays in registers between its sum and its gradient, but for
 * the surplus over HELD packs per thread, which is read again. A thread writes what it has read
 * itself, and that with the label's logit the loss. */
template <class T, int TEAM>
__global__ void __launch_bounds__(row_team<TEAM>::block) cross_entropy_ahead_kernel(row_args<T> a)
{
    const unsigned size = pack<T>::size;
    size_t r = row_team<TEAM>::row(), n = a.classes;
    unsigned at = row_team<TEAM>::at();
    const T *logits = a.logits + r * n;
    T *to = a.dlogits + r * n;
    pack<T> held[HELD];
    real<T> x[1];

    if (r >= a.rows)
        return;
    row_cut cut(logits, to, n);
    ahead<T> row(a, r);
    PL_UNROLL
    for (unsigned k = 0; k < HELD; k++)
        if (at + k * TEAM < cut.packs)
            held[k] = load_pack(logits, cut.head + (at + k * TEAM) * size);
    PL_UNROLL
    for (unsigned k = 0; k < HELD; k++)
        if (at + k * TEAM < cut.packs)
            row.add(held[k]);
    for (size_t p = at + (size_t)HELD * TEAM; p < cut.packs; p += TEAM)
        row.add(load_pack(logits, cut.head + p * size));
    cut.template each_loose<TEAM, T>(n, [&](size_t i) {
        x[0] = load(logits, i);
        row.of_row.template add<1>(x);
    });
    row.template sum_up<TEAM>(a);
    PL_UNROLL
    for (unsigned k = 0; k < HELD; k++)
        if (at + k * TEAM < cut.packs)
            row.put(to, cut.head + (at + k * TEAM) * size, held[k]);
    for (size_t p = at + (size_t)HELD * TEAM; p < cut.packs; p += TEAM)
        row.put(to, cut.head + p * size, load_pack(logits, cut.head + p * size));
    cut.template each_loose<TEAM, T>(
        n, [&](size_t i) { store(to, i, row.gradient(load(logits, i), i == row.label)); });
}

/* The same for long rows: in shared memory, `kept` packs of each, so that a multiprocessor reads
 * one row while it calculates with another. A thread reads there what it has written itself. */
template <class T>
__global__ void __launch_bounds__(LONG) cross_entropy_ahead_long_kernel(row_args<T> a, size_t kept)
{
    const unsigned size = pack<T>::size;
    size_t r = blockIdx.x, n = a.classes, at = threadIdx.x;
    const T *logits = a.logits + r * n;
    T *to = a.dlogits + r * n;
    PL_SHARED_DYNAMIC(pack<T>, held);
    real<T> x[1];
    row_cut cut(logits, to, n);
    ahead<T> row(a, r);

    kept = kept < cut.packs ? kept : cut.packs;
    size_t next = at;
    for (; next < kept; next += LONG)
        start_copy(&held[next], logits, cut.head + next * size);
    for (; next < cut.packs; next += LONG)
        row.add(load_pack(logits, cut.head + next * size));
    wait_for_copies();
    for (size_t p = at; p < kept; p += LONG)
        row.add(take_copy(&held[p]));
    cut.template each_loose<LONG, T>(n, [&](size_t i) {
        x[0] = load(logits, i);
        row.of_row.template add<1>(x);
    });
    row.template sum_up<LONG>(a);
    for (next = at; next < kept; next += LONG)
        row.put(to, cut.head + next * size, take_copy(&held[next]));
    for (; next < cut.packs; next += LONG)
        row.put(to, cut.head + next * size, load_pack(logits, cut.head + next * size));
    cut.template each_loose<LONG, T>(
        n, [&](size_t i) { store(to, i, row.gradient(load(logits, i), i == row.label)); });
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
        size_t packs = a->classes / pack<T>::size, most = SHARED_MOST / sizeof(pack<T>);
        size_t kept = packs < most ? packs : most;

        if (packs <= 32 * HELD)
            PL_LAUNCH((cross_entropy_ahead_kernel<T, 32>), ceil_div(a->rows, PL_ROW_WARPS),
                      32 * PL_ROW_WARPS, 0, args);
        else if (packs <= 256 * HELD)
            PL_LAUNCH((cross_entropy_ahead_kernel<T, 256>), a->rows, 256, 0, args);
        else
            PL_LAUNCH((cross_entropy_ahead_long_kernel<T>), a->rows, LONG, kept * sizeof(pack<T>),
                      args, kept);
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
