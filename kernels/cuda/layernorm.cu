/* SPDX-License-Identifier: MIT */
/* Forward (Ba et al., arXiv 1607.06450) reads x, or the two addends whose sum it is, once and
 * writes y and the sum: mean first, then the variance of the differences; 7 operations per element.
 * Rows and threads: see layernorm.cuh. Bound by memory: it reached 2.8 of 3.0 TB/s on an H100
 * (32768 x 768). */
#include "kernels/cuda/layernorm.cuh"

namespace pl_cuda
{

namespace
{

/* X: type of x, dx, a and sum; Y: of y, dy, b and dx_too; G: of gamma and beta. */
template <class X, class Y, class G> struct forward {
    size_t rows, n, b_rows;
    bool rms;
    real<X> eps;
    const X *x, *a;
    const Y *b;
    X *sum;
    const G *gamma, *beta;
    Y *y;
    real<X> *mean, *rstd;
};

template <class X, class Y, class G, int TEAM, int V, int H>
__global__ void __launch_bounds__(layout<real<X>, TEAM, V, H>::block)
    layernorm_forward_kernel(forward<X, Y, G> f)
{
    typedef real<X> R;
    typedef layout<R, TEAM, V, H> L;
    size_t r = (size_t)blockIdx.x * L::teams + L::team(), of_b;
    const X *x = f.sum ? f.sum : f.x;
    R held[L::held], mean = 0, square = 0, rstd;

    if (r >= f.rows) /* whole warps, never a part of a block that is one team */
        return;
    x += r * f.n;
    of_b = (f.b_rows ? r % f.b_rows : r) * f.n;
    L::each(f.n, [&](size_t i, unsigned k) {
        group<R, V> g;

        if (f.sum) {
            group<R, V> b = take<V>(f.b, of_b + i);

            g = take<V>(f.a, r * f.n + i);
            PL_UNROLL
            for (int j = 0; j < V; j++)
                g.of[j] = widen_one(narrow_one<X>(g.of[j] + b.of[j]));
            give<V>(f.sum, r * f.n + i, g);
        } else {
            g = take<V>(x, i);
        }
        PL_UNROLL
        for (int j = 0; j < V; j++) {
            mean += g.of[j];
            if (k < L::held)
                held[k + j] = g.of[j];
        }
    });
    mean = f.rms ? 0 : L::sum(mean) / (R)f.n;
    L::each(f.n, [&](size_t i, unsigned k) {
        group<R, V> g = {};

        if (k >= L::held)
            g = take<V>(x, i);
        PL_UNROLL
        for (int j = 0; j < V; j++) {
            R d = (k < L::held ? held[k + j] : g.of[j]) - mean;

            square += d * d;
        }
    });
    rstd = 1 / sqrt(L::sum(square) / (R)f.n + f.eps);
    L::each(f.n, [&](size_t i, unsigned k) {
        group<R, V> gamma = take_or<V>(f.gamma, i, (R)1), beta = take_or<V>(f.beta, i, (R)0),
                    g = {};

        if (k >= L::held)
            g = take<V>(x, i);
        PL_UNROLL
        for (int j = 0; j < V; j++)
            g.of[j] =
                ((k < L::held ? held[k + j] : g.of[j]) - mean) * rstd * gamma.of[j] + beta.of[j];
        give<V>(f.y, r * f.n + i, g);
    });
    if (L::at() == 0) {
        f.mean[r] = mean;
        f.rstd[r] = rstd;
    }
}

struct do_forward {
    template <class X, class Y, class G> static void run(const struct pl_layernorm_args *a)
    {
        forward<X, Y, G> f = {a->rows,
                              a->n,
                              a->b_rows,
                              a->rms,
                              (real<X>)a->eps,
                              (const X *)a->x,
                              (const X *)a->a,
                              (const Y *)a->b,
                              (X *)a->sum,
                              (const G *)a->gamma,
                              (const G *)a->beta,
                              (Y *)a->y,
                              (real<X> *)a->mean,
                              (real<X> *)a->rstd};

        if (a->rows == 0 || a->n == 0)
            return;
        with_layout<X>(a, [&](auto l) {
            typedef decltype(l) L;

            PL_LAUNCH((layernorm_forward_kernel<X, Y, G, L::team, L::v, L::h>),
                      L::team == 32 ? ceil_div(a->rows, PL_LAYERNORM_WARPS) : a->rows,
                      L::team == 32 ? 32 * PL_LAYERNORM_WARPS : L::team, 0, f);
        });
    }
};

} // namespace

template <class T> void layernorm_forward(const struct pl_layernorm_args *a)
{
    typed<do_forward, T>::run(a);
}

PL_CUDA_DEFINE(layernorm_forward, layernorm);

} // namespace pl_cuda
