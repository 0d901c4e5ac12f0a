/* SPDX-License-Identifier: MIT */
/* The fallback: three products (gemm.cuh), the activation in the first one's end, its slope and the
 * column sums of dz (sums.cuh) before the others: 2 rows in out operations each. */
#include "kernels/cuda/each.cuh"
#include "kernels/cuda/gemm.cuh"
#include "kernels/cuda/sums.cuh"

namespace pl_cuda
{

namespace
{

/* What relu passed is read off y: pre is not kept for it. */
template <class T> struct relu_passed {
    __device__ real<T> operator()(size_t, const real<T> x[2]) const
    {
        return x[0] <= 0 ? 0 : x[1];
    }
};

template <class T> struct sloped {
    int act;

    __device__ real<T> operator()(size_t, const real<T> x[2]) const
    {
        return x[1] * activate_slope_by(act, x[0]);
    }
};

template <class T> struct same {
    __device__ real<T> operator()(size_t, const real<T> x[1]) const
    {
        return x[0];
    }
};

template <class T> void slopes(const struct pl_linear_args *a)
{
    const T *dy = (const T *)a->dy, *y = (const T *)a->y, *pre = (const T *)a->pre;
    size_t n = a->rows * a->out;
    T *dz = (T *)a->dz;

    if (pl_activation_needs_pre(a->act))
        each<T, 2>(n, {{pre, dy}, dz}, false, sloped<T>{a->act});
    else if (a->act == PL_ACT_RELU)
        each<T, 2>(n, {{y, dy}, dz}, false, relu_passed<T>{});
    else if (dz != dy)
        each<T, 1>(n, {{dy}, dz}, false, same<T>{});
}

template <class T> struct column {
    const T *dz;
    size_t out;

    __device__ double operator()(size_t, size_t k, size_t i) const
    {
        return load(dz, k * out + i);
    }
};

template <class T> struct bias_to {
    T *db;
    bool add;

    __device__ void operator()(size_t i, double sum) const
    {
        store(db, i, (real<T>)(add ? load(db, i) + sum : sum));
    }
};

} // namespace

template <class T> void linear_forward(const struct pl_linear_args *a)
{
    gemm_args<T> g = {};

    g.batch = 1;
    g.m = a->rows;
    g.n = a->out;
    g.k = a->in;
    g.a = (const T *)a->x;
    g.a_row = g.b_col = a->in;
    g.a_col = g.b_row = 1;
    g.b = (const T *)a->w;
    g.c = (T *)a->y;
    g.c_row = a->out;
    g.scale = 1;
    g.bias = (const T *)a->b;
    g.act = a->act;
    g.pre = pl_activation_needs_pre(a->act) ? (T *)a->pre : NULL;
    gemm(g);
}

template <class T> void linear_backward(const struct pl_linear_args *a)
{
    gemm_args<T> g = {};

    slopes<T>(a);
    g.batch = 1;
    g.scale = 1;
    g.a = (const T *)a->dz;
    g.n = a->in;
    g.b_row = g.c_row = a->in;
    g.b_col = 1;
    if (a->dx) {
        g.m = a->rows;
        g.k = a->out;
        g.a_row = a->out;
        g.a_col = 1;
        g.b = (const T *)a->w;
        g.c = (T *)a->dx;
        g.add = a->dx_add;
        gemm(g);
    }
    if (a->dw) {
        g.m = a->out;
        g.k = a->rows;
        g.a_row = 1;
        g.a_col = a->out;
        g.b = (const T *)a->x;
        g.c = (T *)a->dw;
        g.add = a->dw_add;
        gemm(g);
    }
    if (a->db)
        sums(1, a->rows, a->out, column<T>{(const T *)a->dz, a->out},
             bias_to<T>{(T *)a->db, a->db_add});
}

PL_CUDA_DEFINE(linear_forward, linear);
PL_CUDA_DEFINE(linear_backward, linear);

} // namespace pl_cuda
