/* SPDX-License-Identifier: MIT */
/* The fallback without cublasLt: three products (gemm.cuh) of 2 rows in out operations each, with
 * the activation at the end of the first one (and that of the layer before at the end of dx, if it
 * is asked for); before the others its slope (each.cuh, 2 elements read and 1 written) and the
 * column sums of dz in f64 (sums.cuh, dz read once more). Bytes of the products: see gemm.cuh.
 * Bound by the f32 units. Computing the slope where the products read dy would do it twice; not
 * measured on a card yet. Any shape up to 2^31 tiles of 64 x 64. */
#include "kernels/cuda/activation.cuh"
#include "kernels/cuda/each.cuh"
#include "kernels/cuda/gemm.cuh"
#include "kernels/cuda/sums.cuh"

namespace pl_cuda
{

namespace
{

/* Relu's mask is computed from y: pre is not kept for it. */
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

/* y = act(z), z = sum + b. */
template <class T> struct activated_to {
    T *y, *pre;
    const T *b;
    size_t out;
    int act;

    __device__ __forceinline__ void operator()(size_t, size_t i, size_t j, real<T> z) const
    {
        if (b)
            z += load(b, j);
        if (pre)
            store(pre, i * out + j, z);
        store(y, i * out + j, activate_by(act, z));
    }
};

/* dx = sum x_act'(x_pre), rounded as by two kernels. */
template <class T> struct sloped_to {
    T *dx;
    const T *pre;
    size_t in;
    int act;

    __device__ __forceinline__ void operator()(size_t, size_t i, size_t j, real<T> sum) const
    {
        real<T> d = widen_one(narrow_one<T>(sum));

        store(dx, i * in + j, d * activate_slope_by(act, load(pre, i * in + j)));
    }
};

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
    strided<T> x = {(const T *)a->x, a->in, 1, 0}, w = {(const T *)a->w, a->in, 1, 0};
    T *pre = pl_activation_needs_pre(a->act) ? (T *)a->pre : NULL;

    gemm<T>({1, a->rows, a->out, a->in}, x, w,
            activated_to<T>{(T *)a->y, pre, (const T *)a->b, a->out, a->act});
}

template <class T> void linear_backward(const struct pl_linear_args *a)
{
    const T *x = (const T *)a->x, *w = (const T *)a->w, *dz = (const T *)a->dz;

    slopes<T>(a);
    if (a->dx && a->x_pre)
        gemm<T>({1, a->rows, a->in, a->out}, strided<T>{dz, a->out, 1, 0},
                strided<T>{w, 1, a->in, 0},
                sloped_to<T>{(T *)a->dx, (const T *)a->x_pre, a->in, a->x_act});
    else if (a->dx)
        gemm<T>({1, a->rows, a->in, a->out}, strided<T>{dz, a->out, 1, 0},
                strided<T>{w, 1, a->in, 0}, gemm_to<T>{(T *)a->dx, a->in, 0, 1, a->dx_add});
    if (a->dw && a->dw_wide)
        gemm<T>({1, a->out, a->in, a->rows}, strided<T>{dz, 1, a->out, 0},
                strided<T>{x, 1, a->in, 0},
                gemm_to<real<T>>{(real<T> *)a->dw, a->in, 0, 1, a->dw_add});
    else if (a->dw)
        gemm<T>({1, a->out, a->in, a->rows}, strided<T>{dz, 1, a->out, 0},
                strided<T>{x, 1, a->in, 0}, gemm_to<T>{(T *)a->dw, a->in, 0, 1, a->dw_add});
    if (a->db && a->db_wide)
        sums(1, a->rows, a->out, column<T>{dz, a->out},
             bias_to<real<T>>{(real<T> *)a->db, a->db_add});
    else if (a->db)
        sums(1, a->rows, a->out, column<T>{dz, a->out}, bias_to<T>{(T *)a->db, a->db_add});
}

PL_CUDA_DEFINE(linear_forward, linear);
PL_CUDA_DEFINE(linear_backward, linear);

} // namespace pl_cuda
