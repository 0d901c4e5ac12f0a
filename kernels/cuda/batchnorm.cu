/* SPDX-License-Identifier: MIT */
/* Ioffe and Szegedy, arXiv 1502.03167. Each half reads x twice, once for the sums (backward dy,
 * too), and writes y, or dx, once. Backward, relu's mask is computed from x again, by the forward
 * pass' operations. What is added before relu is read once; then y is read for the mask, with the
 * sums only: the gradient of what was added is written there, and then read instead of y and dy.
 * The sums have two terms per element in f64 (sums.cuh), 3 operations forward, 4 backward; the rest
 * is 4 operations per element forward and 6 backward in real<X>, 4 more for the mask: bound by
 * memory, or by f64 on devices with few f64 units. Sums of x and x^2 instead of a running mean and
 * variance (Welford), since sums of several ranks are added. Where no rank adds its own, x of 32
 * bits or more is less its channel's first value, in f64: sums of n values then lose n^2 2^-53 of
 * the variance at most, however far from 0 they are, for one more operation (nvcc 13.0: as many
 * blocks at once, no spills; not measured). By data sheets the 4 operations of an f32 x, with its
 * conversion, are 18 % of the f64 units of an H100 while memory delivers it, and 42 % of an A100's;
 * an RTX 4090 takes 1.6 times as long as its memory, a B300 13 times (16 bits: 2.3 and 19 times).
 * Eight terms less the first of them, summed in f32 and then added in f64, need a third of that. It
 * was tried and rejected: the inverse deviation of a channel with one value far from all others was
 * 4e-7 off (batchnorm_far), and 144 bytes per thread were spilled. On an H100 (bf16, channels last)
 * the passes reached 2.2 of 3.0 TB/s at 1590 MHz with 8 bytes a thread, and kernels of one number
 * per channel took 4 us each. With 16 bytes, and with these done where the pieces of sums are
 * added, ResNet-50 takes 0.97 of the time (max pool and copies of weights changed, too).
 *
 * A thread has V neighbours at a time, 16 bytes of the type of computation, or with inner = 1 of 16
 * bits, if x and y have these. An image's channel is in one piece if inner is above 1: neighbours
 * have one channel then. With inner = 1, which is also an image whose channels are last, they have
 * V channels, whose numbers a thread keeps for several rows. Any shape; where V does not divide, or
 * an array is not aligned, V is less or 1. */
#include "kernels/cuda/batchnorm.cuh"

namespace pl_cuda
{

namespace
{

/* A channel's first value, to be taken off all of them; 0 where that would make NaNs of them. */
template <class X> static __device__ __forceinline__ double first_value(X x)
{
    return isfinite(widen_one(x)) ? (double)widen_one(x) : 0;
}

/* FIRST: of x less the channel's first value. */
template <class X, int V, bool COLUMNS, bool FIRST> struct moments {
    enum { ahead = V == 8 ? 4 : 8, resident = V == 8 ? 3 : 4 };
    typedef bunch<X, V> terms;
    const X *x;
    places<V, COLUMNS> at;

    struct numbers {
        enum { W = FIRST && COLUMNS ? V : 1 };
        double first[W];

        __device__ __forceinline__ numbers(const moments &f, size_t o, size_t i)
        {
            PL_UNROLL
            for (int j = 0; j < W; j++)
                first[j] = FIRST ? first_value(f.x[f.at(o, 0, i) + j]) : 0;
        }
    };

    __device__ __forceinline__ terms take_terms(size_t o, size_t k, size_t i) const
    {
        return take_raw<V>(x, at(o, k, i));
    }

    __device__ __forceinline__ void
    add_terms(size_t, size_t, size_t, const terms &in, const numbers &of, double *sum) const
    {
        group<real<X>, V> g = widen_all(in);

        PL_UNROLL
        for (int j = 0; j < V; j++) {
            double v = g.of[j], *to = sum + (COLUMNS ? 2 * j : 0);

            if constexpr (FIRST)
                v -= of.first[COLUMNS ? j : 0];
            to[0] += v;
            to[1] += v * v;
        }
    }
};

/* Of x - shift, in f64: of a channel at a time. */
template <class X, bool COLUMNS> struct differences {
    enum { ahead = 8, resident = 4 };
    typedef bunch<X, 1> terms;
    const X *x;
    const double *shift;
    places<1, COLUMNS> at;

    struct numbers {
        double shift;

        __device__ __forceinline__ numbers(const differences &f, size_t o, size_t i)
            : shift(f.shift[COLUMNS ? i : o])
        {
        }
    };

    __device__ __forceinline__ terms take_terms(size_t o, size_t k, size_t i) const
    {
        return take_raw<1>(x, at(o, k, i));
    }

    __device__ __forceinline__ void
    add_terms(size_t, size_t, size_t, const terms &in, const numbers &of, double *sum) const
    {
        double v = widen_one(in.of[0]) - of.shift;

        sum[0] += v;
        sum[1] += v * v;
    }
};

template <class R> struct statistics {
    size_t channels;
    double eps, momentum;
    R *running_mean, *running_var, *mean, *inv_std;

    /* Of n values with these sums of x - shift. */
    __device__ __forceinline__ void
    one(size_t c, double n, double of_x, double of_squares, double shift) const
    {
        double m = of_x / n, var = of_squares / n - m * m;

        var = var < 0 ? 0 : var; /* by rounding; NaN stays */
        m += shift;
        mean[c] = (R)m;
        inv_std[c] = (R)(1 / sqrt(var + eps));
        if (running_mean) {
            running_mean[c] = (R)((1 - momentum) * running_mean[c] + momentum * m);
            running_var[c] =
                (R)((1 - momentum) * running_var[c] + momentum * var * n / fmax(n - 1, 1.0));
        }
    }
};

/* sums: NULL in evaluation. */
template <class R>
__global__ void __launch_bounds__(PL_BATCHNORM_THREADS)
    statistics_kernel(statistics<R> s, const double *sums, const double *shift)
{
    size_t c = (size_t)blockIdx.x * PL_BATCHNORM_THREADS + threadIdx.x;

    if (c >= s.channels)
        return;
    if (sums) {
        s.one(c, sums[0], sums[1 + c], sums[1 + s.channels + c], shift ? shift[c] : 0);
        return;
    }
    s.mean[c] = s.running_mean[c];
    s.inv_std[c] = (R)(1 / sqrt((double)s.running_var[c] + s.eps));
}

/* Takes forward's sums. Where no rank adds its own, it makes the statistics of them instead. first:
 * NULL, or x, whose channels' first values they are less. */
template <class R> struct statistics_to {
    moments_to sums;
    statistics<R> of;
    bool alone;
    const R *first;
    size_t inner;

    __device__ void one(size_t c, const double sum[2]) const
    {
        if (alone)
            of.one(c, (double)sums.values, sum[0], sum[1],
                   first ? first_value(first[c * inner]) : 0);
        else
            sums.one(c, sum);
    }
};

/* X: type of x; Y: of y; G: of w and b. */
template <class X, class Y, class G> struct normalize {
    typedef real<X> R;
    const X *x;
    const Y *r; /* NULL: none */
    Y *y;
    const R *mean, *inv_std;
    const G *w, *b;
    bool relu;

    template <int V> struct terms {
        bunch<X, V> x;
        bunch<Y, V> r;
    };

    template <int V> __device__ __forceinline__ terms<V> take_terms(size_t i) const
    {
        terms<V> in = {};

        in.x = take_raw<V>(x, i);
        if (r)
            in.r = take_raw<V>(r, i);
        return in;
    }

    template <int W> struct numbers {
        R mean[W], inv_std[W], w[W], b[W];

        __device__ __forceinline__ numbers(const normalize &f, size_t c)
        {
            take_numbers<W, false>(f.mean, c, 0, mean);
            take_numbers<W, false>(f.inv_std, c, 0, inv_std);
            take_numbers<W, false>(f.w, c, 1, w);
            take_numbers<W, false>(f.b, c, 0, b);
        }
    };

    template <int V, int W>
    __device__ __forceinline__ void
    do_some(size_t i, const terms<V> &raw, const numbers<W> &of) const
    {
        group<R, V> in = widen_all(raw.x), also = widen_all(raw.r), out;

        PL_UNROLL
        for (int j = 0; j < V; j++) {
            const int k = W == 1 ? 0 : j;
            R v = normal(in.of[j], of.mean[k], of.inv_std[k], of.w[k], of.b[k]);

            if (r)
                v = widen_one(narrow_one<Y>(v)) + also.of[j];
            out.of[j] = relu && v <= 0 ? 0 : v;
        }
        give<V>(y, i, out);
    }
};

/* True if relu has passed y, with this before r. */
template <class Y, class R> static __device__ __forceinline__ bool passed(R v)
{
    return !(widen_one(narrow_one<Y>(v)) <= 0);
}

/* With AGAIN the kernel computes relu's mask from x. Without AGAIN it reads the mask from y, which
 * is NULL where there is no relu. It then also writes the gradient of what was added: dr (+)= dz.
 */
template <class X, class Y, class G, int V, bool COLUMNS, bool AGAIN> struct back_moments {
    enum { ahead = V == 8 ? 2 : 4, resident = AGAIN && V < 8 ? 3 : 2 };
    typedef real<X> R;
    const X *x;
    const Y *y, *dy;
    Y *dr; /* NULL: none */
    bool dr_add;
    const R *mean, *inv_std;
    const G *w, *b;
    places<V, COLUMNS> at;

    struct terms {
        bunch<X, V> x;
        bunch<Y, V> y, dy, dr;
    };

    /* Of the thread's channels. */
    struct numbers {
        enum { W = COLUMNS ? V : 1 };
        R mean[W], inv_std[W], w[W], b[W];

        __device__ __forceinline__ numbers(const back_moments &f, size_t o, size_t i)
        {
            size_t c = COLUMNS ? i * V : o;

            take_numbers<W, false>(f.mean, c, 0, mean);
            if (!AGAIN)
                return;
            take_numbers<W, false>(f.inv_std, c, 0, inv_std);
            take_numbers<W, false>(f.w, c, 1, w);
            take_numbers<W, false>(f.b, c, 0, b);
        }
    };

    __device__ __forceinline__ terms take_terms(size_t o, size_t k, size_t i) const
    {
        size_t e = at(o, k, i);
        terms in = {};

        in.x = take_raw<V>(x, e);
        in.dy = take_raw<V>(dy, e);
        if (!AGAIN && y)
            in.y = take_raw<V>(y, e);
        if (!AGAIN && dr && dr_add)
            in.dr = take_raw<V>(dr, e);
        return in;
    }

    __device__ __forceinline__ void
    add_terms(size_t o, size_t k, size_t i, const terms &raw, const numbers &of, double *sum) const
    {
        group<R, V> in = widen_all(raw.x), d = widen_all(raw.dy), out = widen_all(raw.y);

        PL_UNROLL
        for (int j = 0; j < V; j++) {
            const int c = COLUMNS ? j : 0;
            double *to = sum + 2 * c;

            if (AGAIN)
                d.of[j] = passed<Y>(normal(in.of[j], of.mean[c], of.inv_std[c], of.w[c], of.b[c]))
                              ? d.of[j]
                              : 0;
            else if (y && out.of[j] <= 0)
                d.of[j] = 0;
            to[0] += d.of[j];
            to[1] += d.of[j] * ((double)in.of[j] - of.mean[c]);
        }
        if (AGAIN || !dr)
            return;
        if (dr_add) {
            group<R, V> old = widen_all(raw.dr);

            PL_UNROLL
            for (int j = 0; j < V; j++)
                d.of[j] += old.of[j];
        }
        give<V>(dr, at(o, k, i), d);
    }
};

/* The numbers of a channel that dx = scale (dz - of_dz - (x - mean) of_x) and y need. Each has an
 * array of its own, so that neighbouring threads read neighbouring numbers. */
enum factor { MEAN, SCALE, OF_DZ, OF_X, INV_STD, WEIGHT, BIAS };

template <class G> struct factors {
    size_t channels;
    const real<G> *mean, *inv_std;
    const G *w, *b;
    real<G> *ret;

    /* Of n values with these sums; 0 in evaluation. */
    __device__ __forceinline__ void one(size_t c, double n, double of_dz, double of_x) const
    {
        real<G> std = inv_std[c], weight = w ? load(w, c) : 1;
        real<G> of[PL_BATCHNORM_FACTORS] = {
            mean[c], weight * std, (real<G>)(of_dz / n), (real<G>)(of_x / n * std * std),
            std,     weight,       load_or_zero(b, c)};

        PL_UNROLL
        for (int k = 0; k < PL_BATCHNORM_FACTORS; k++)
            ret[k * channels + c] = of[k];
    }
};

/* sums: NULL in evaluation. */
template <class G>
__global__ void __launch_bounds__(PL_BATCHNORM_THREADS)
    factors_kernel(factors<G> f, const double *sums)
{
    size_t c = (size_t)blockIdx.x * PL_BATCHNORM_THREADS + threadIdx.x;

    if (c >= f.channels)
        return;
    if (sums)
        f.one(c, sums[0], sums[1 + c], sums[1 + f.channels + c]);
    else
        f.one(c, 1, 0, 0);
}

/* Takes backward's sums. Where no rank adds its own, it makes the factors of them instead. */
template <class G> struct back_moments_to {
    moments_to sums;
    factors<G> of;
    bool alone, training;
    G *dw, *db;
    bool dw_add, db_add;

    __device__ void one(size_t c, const double sum[2]) const
    {
        if (!alone)
            sums.one(c, sum);
        else if (training)
            of.one(c, (double)sums.values, sum[0], sum[1]);
        else
            of.one(c, 1, 0, 0);
        if (dw)
            store(dw, c, (real<G>)((dw_add ? load(dw, c) : 0) + sum[1] * of.inv_std[c]));
        if (db)
            store(db, c, (real<G>)((db_add ? load(db, c) : 0) + sum[0]));
    }
};

/* AGAIN: as in back_moments. y: NULL without relu. */
template <class X, class Y, bool AGAIN> struct slope {
    typedef real<X> R;
    const X *x;
    const Y *y, *dy;
    X *dx;
    bool add;
    const R *factors;
    size_t channels;

    template <int V> struct terms {
        bunch<X, V> x, dx;
        bunch<Y, V> y, dy;
    };

    template <int V> __device__ __forceinline__ terms<V> take_terms(size_t i) const
    {
        terms<V> in = {};

        in.x = take_raw<V>(x, i);
        in.dy = take_raw<V>(dy, i);
        if (!AGAIN && y)
            in.y = take_raw<V>(y, i);
        if (add)
            in.dx = take_raw<V>(dx, i);
        return in;
    }

    template <int W> struct numbers {
        R of[PL_BATCHNORM_FACTORS][W];

        __device__ __forceinline__ numbers(const slope &f, size_t c)
        {
            PL_UNROLL
            for (int k = 0; k < (AGAIN ? PL_BATCHNORM_FACTORS : INV_STD); k++)
                take_numbers<W, true>(f.factors + k * f.channels, c, 0, of[k]);
        }
    };

    template <int V, int W>
    __device__ __forceinline__ void
    do_some(size_t i, const terms<V> &raw, const numbers<W> &n) const
    {
        group<R, V> in = widen_all(raw.x), d = widen_all(raw.dy), out = widen_all(raw.y);
        group<R, V> sum = widen_all(raw.dx);

        PL_UNROLL
        for (int j = 0; j < V; j++) {
            const int k = W == 1 ? 0 : j;
            R dz = d.of[j], x = in.of[j], mean = n.of[MEAN][k];

            if (AGAIN)
                dz = passed<Y>(normal(x, mean, n.of[INV_STD][k], n.of[WEIGHT][k], n.of[BIAS][k]))
                         ? dz
                         : 0;
            else if (y && out.of[j] <= 0)
                dz = 0;
            dz = n.of[SCALE][k] * (dz - n.of[OF_DZ][k] - (x - mean) * n.of[OF_X][k]);
            sum.of[j] = add ? sum.of[j] + dz : dz;
        }
        give<V>(dx, i, sum);
    }
};

template <class R> statistics<R> statistics_of(const struct pl_batchnorm_args *a)
{
    return {a->channels,         a->eps,       a->momentum,    (R *)a->running_mean,
            (R *)a->running_var, (R *)a->mean, (R *)a->inv_std};
}

template <class G> factors<G> factors_of(const struct pl_batchnorm_args *a, real<G> *ret)
{
    return {a->channels,     (const real<G> *)a->mean, (const real<G> *)a->inv_std,
            (const G *)a->w, (const G *)a->b,          ret};
}

template <class X, class Y, class G, int V, bool COLUMNS> struct passes {
    typedef real<X> R;

    template <bool FIRST> static void sums_by(const struct pl_batchnorm_args *a)
    {
        typedef channels_to<statistics_to<R>, COLUMNS ? V : 1> to;
        const R *first = NULL;

        if constexpr (FIRST)
            first = (const R *)a->x;
        by_channel<V, COLUMNS>(
            a, moments<X, V, COLUMNS, FIRST>{(const X *)a->x, places<V, COLUMNS>(a)},
            to{{{a->sums, a->batch * a->inner, a->channels},
                statistics_of<R>(a),
                a->alone,
                first,
                a->inner}});
    }

    static void sums(const struct pl_batchnorm_args *a)
    {
        if (a->shift)
            return by_channel<1, COLUMNS>(
                a, differences<X, COLUMNS>{(const X *)a->x, a->shift, places<1, COLUMNS>(a)},
                channels_to<moments_to, 1>{{a->sums, a->batch * a->inner, a->channels}});
        if constexpr (sizeof(X) > 2) /* 16 bits have too few to lose a variance */
            if (a->alone && a->batch && a->inner)
                return sums_by<true>(a);
        sums_by<false>(a);
    }

    static void forward(const struct pl_batchnorm_args *a)
    {
        all_elements<V, COLUMNS>(a, normalize<X, Y, G>{(const X *)a->x, (const Y *)a->r, (Y *)a->y,
                                                       (const R *)a->mean, (const R *)a->inv_std,
                                                       (const G *)a->w, (const G *)a->b, a->relu});
    }

    /* True if relu's mask is computed from x. */
    static bool again(const struct pl_batchnorm_args *a)
    {
        return a->relu && !a->r;
    }

    template <bool AGAIN> static void back_sums_by(const struct pl_batchnorm_args *a)
    {
        const int N = AGAIN || V < 8 ? V : V / 2; /* else a thread had not enough registers */
        typedef channels_to<back_moments_to<G>, COLUMNS ? N : 1> to;
        const Y *y = a->relu ? (const Y *)a->y : NULL;

        by_channel<N, COLUMNS>(a,
                               back_moments<X, Y, G, N, COLUMNS, AGAIN>{
                                   (const X *)a->x, y, (const Y *)a->dy, (Y *)a->dr, a->dr_add,
                                   (const R *)a->mean, (const R *)a->inv_std, (const G *)a->w,
                                   (const G *)a->b, places<N, COLUMNS>(a)},
                               to{{{a->back_sums, a->batch * a->inner, a->channels},
                                   factors_of<G>(a, (R *)a->factors),
                                   a->alone,
                                   a->training,
                                   (G *)a->dw,
                                   (G *)a->db,
                                   a->dw_add,
                                   a->db_add}});
    }

    static void back_sums(const struct pl_batchnorm_args *a)
    {
        if (again(a))
            back_sums_by<true>(a);
        else
            back_sums_by<false>(a);
    }

    static void backward(const struct pl_batchnorm_args *a, const R *f)
    {
        bool done = a->dr && !a->dr_add; /* dr is dz */
        const Y *y = a->relu && !done ? (const Y *)a->y : NULL;
        const Y *dy = (const Y *)(done ? a->dr : a->dy);

        if (again(a))
            all_elements<V, COLUMNS>(a, slope<X, Y, true>{(const X *)a->x, y, dy, (X *)a->dx,
                                                          a->dx_add, f, a->channels});
        else
            all_elements<V, COLUMNS>(a, slope<X, Y, false>{(const X *)a->x, y, dy, (X *)a->dx,
                                                           a->dx_add, f, a->channels});
    }
};

enum half_of { SUMS, FORWARD, BACK_SUMS, BACKWARD };

/* With factors for BACKWARD. */
template <class P, class R> void run(half_of which, const struct pl_batchnorm_args *a, const R *f)
{
    if (which == SUMS)
        P::sums(a);
    else if (which == FORWARD)
        P::forward(a);
    else if (which == BACK_SUMS)
        P::back_sums(a);
    else
        P::backward(a, f);
}

static bool aligned(const struct pl_batchnorm_args *a)
{
    return packable(a->x) && packable(a->y) && packable(a->dy) && packable(a->dx) &&
           packable(a->r) && packable(a->dr) && packable(a->factors);
}

template <class X, class Y, class G>
void shaped(half_of which, const struct pl_batchnorm_args *a, const real<X> *f)
{
    const int v = sizeof(real<X>) == 8 ? 2 : 4;

    if constexpr (sizeof(X) == 2 && sizeof(Y) == 2 && sizeof(G) == 4)
        if (a->inner == 1 && a->channels % 8 == 0 && aligned(a) && packable(a->mean) &&
            packable(a->inv_std) && packable(a->w) && packable(a->b))
            return run<passes<X, Y, G, 8, true>>(which, a, f);
    if (a->inner == 1 && a->channels % v == 0 && aligned(a))
        run<passes<X, Y, G, v, true>>(which, a, f);
    else if (a->inner == 1)
        run<passes<X, Y, G, 1, true>>(which, a, f);
    else if (a->inner % v == 0 && aligned(a))
        run<passes<X, Y, G, v, false>>(which, a, f);
    else
        run<passes<X, Y, G, 1, false>>(which, a, f);
}

/* The types of the arrays in a table. */
template <class T> struct typed {
    static void run(half_of which, const struct pl_batchnorm_args *a, const real<T> *f)
    {
        shaped<T, T, T>(which, a, f);
    }
};

template <class H> void halves(half_of which, const struct pl_batchnorm_args *a, const float *f)
{
    if (a->x_half && a->y_half)
        shaped<H, H, float>(which, a, f);
    else if (a->x_half)
        shaped<H, float, float>(which, a, f);
    else
        shaped<float, H, float>(which, a, f);
}

template <> struct typed<float> {
    static void run(half_of which, const struct pl_batchnorm_args *a, const float *f)
    {
        if (!a->x_half && !a->y_half)
            shaped<float, float, float>(which, a, f);
        else if (a->half == PL_HALF_F16)
            halves<f16>(which, a, f);
        else
            halves<bf16>(which, a, f);
    }
};

} // namespace

template <class T> void batchnorm_sums(const struct pl_batchnorm_args *a)
{
    typed<T>::run(SUMS, a, NULL);
}

template <class T> void batchnorm_forward(const struct pl_batchnorm_args *a)
{
    typedef real<T> R;

    if (a->channels && !(a->alone && a->training))
        PL_LAUNCH((statistics_kernel<R>), ceil_div(a->channels, PL_BATCHNORM_THREADS),
                  PL_BATCHNORM_THREADS, 0, statistics_of<R>(a),
                  (const double *)(a->training ? a->sums : NULL), a->shift);
    typed<T>::run(FORWARD, a, NULL);
}

template <class T> void batchnorm_back_sums(const struct pl_batchnorm_args *a)
{
    typed<T>::run(BACK_SUMS, a, NULL);
}

template <class T> void batchnorm_backward(const struct pl_batchnorm_args *a)
{
    real<T> *f = (real<T> *)a->factors;

    if (!a->dx || a->batch * a->channels * a->inner == 0)
        return;
    if (!a->alone) {
        f = (real<T> *)scratch(PL_BATCHNORM_FACTORS * a->channels * sizeof(*f));
        if (!f)
            return;
        PL_LAUNCH((factors_kernel<T>), ceil_div(a->channels, PL_BATCHNORM_THREADS),
                  PL_BATCHNORM_THREADS, 0, factors_of<T>(a, f),
                  (const double *)(a->training ? a->back_sums : NULL));
    }
    typed<T>::run(BACKWARD, a, f);
}

PL_CUDA_DEFINE(batchnorm_sums, batchnorm);
PL_CUDA_DEFINE(batchnorm_forward, batchnorm);
PL_CUDA_DEFINE(batchnorm_back_sums, batchnorm);
PL_CUDA_DEFINE(batchnorm_backward, batchnorm);

} // namespace pl_cuda
