/* SPDX-License-Identifier: MIT */
/* Forward reads 1 element, backward 2 (3 with `add`), both write 1; a sine or a power is about 30
 * operations: bound by memory but for f64. One kernel for all functions: the switch goes the same
 * way in all threads, and costs the registers of the largest; a kernel a function would take the
 * compiler minutes (unary.cu). Not measured on a card yet. Any number of elements. */
#include "kernels/cuda/each.cuh"

namespace pl_cuda
{

namespace
{

template <class T> struct map_value {
    enum pl_map fn;
    real<T> p, q;

    __device__ real<T> operator()(size_t, const real<T> in[1]) const
    {
        const real<T> x = in[0];

        switch (fn) {
        case PL_MAP_FILL:
            return p;
        case PL_MAP_EXP:
            return exp(x);
        case PL_MAP_LOG:
            return log(x);
        case PL_MAP_SQRT:
            return sqrt(x);
        case PL_MAP_RSQRT:
            return 1 / sqrt(x);
        case PL_MAP_POW:
            return pow(x, p);
        case PL_MAP_ABS:
            return fabs(x);
        case PL_MAP_CLAMP:
            return x < p ? p : x > q ? q : x;
        case PL_MAP_SOFTPLUS:
            return (x <= 0 ? 0 : x) + log1p(exp(-fabs(x)));
        case PL_MAP_ELU:
            return x > 0 ? x : p * expm1(x);
        case PL_MAP_LEAKY:
            return x > 0 ? x : p * x;
        case PL_MAP_SIN:
            return sin(x);
        case PL_MAP_COS:
            return cos(x);
        case PL_MAP_FLOOR:
            return floor(x);
        case PL_MAP_CEIL:
            return ceil(x);
        case PL_MAP_ROUND:
            return rint(x);
        case PL_MAP_SIGN:
            return real<T>(x > 0) - real<T>(x < 0);
        case PL_MAP_ERF:
            return erf(x);
        case PL_MAP_TAN:
            return tan(x);
        }
        return 0;
    }
};

template <class T> struct map_slope {
    enum pl_map fn;
    real<T> p, q;

    static __device__ real<T> square(real<T> x)
    {
        return x * x;
    }

    static __device__ real<T> cube(real<T> x)
    {
        return x * x * x;
    }

    __device__ real<T> slope(real<T> x) const
    {
        switch (fn) {
        case PL_MAP_FILL:
            return 0;
        case PL_MAP_EXP:
            return exp(x);
        case PL_MAP_LOG:
            return 1 / x;
        case PL_MAP_SQRT:
            return real<T>(0.5) / sqrt(x);
        case PL_MAP_RSQRT:
            return real<T>(-0.5) * cube(1 / sqrt(x));
        case PL_MAP_POW:
            return p == 0 ? real<T>(0) : p * pow(x, p - 1);
        case PL_MAP_ABS:
            return real<T>(x > 0) - real<T>(x < 0);
        case PL_MAP_CLAMP:
            return (x > p || p == -INFINITY) && (x < q || q == INFINITY) ? 1 : 0;
        case PL_MAP_SOFTPLUS:
            return 1 / (1 + exp(-x));
        case PL_MAP_ELU:
            return x <= 0 ? p * exp(x) : real<T>(1);
        case PL_MAP_LEAKY:
            return x > 0 ? real<T>(1) : p;
        case PL_MAP_SIN:
            return cos(x);
        case PL_MAP_COS:
            return -sin(x);
        case PL_MAP_FLOOR:
        case PL_MAP_CEIL:
        case PL_MAP_ROUND:
        case PL_MAP_SIGN:
            return 0;
        case PL_MAP_ERF:
            return real<T>(1.12837916709551257390) * exp(-x * x);
        case PL_MAP_TAN:
            return 1 + square(tan(x));
        }
        return 0;
    }

    __device__ real<T> operator()(size_t, const real<T> in[2]) const
    {
        return in[1] * slope(in[0]);
    }
};

} // namespace

template <class T> void map_forward(const struct pl_map_args *a)
{
    const T *x = (const T *)(a->fn == PL_MAP_FILL ? a->y : a->x); /* FILL reads what it replaces */

    each<T, 1>(a->n, {{x}, (T *)a->y}, false, map_value<T>{a->fn, (real<T>)a->p, (real<T>)a->q});
}

template <class T> void map_backward(const struct pl_map_args *a)
{
    each<T, 2>(a->n, {{(const T *)a->x, (const T *)a->dy}, (T *)a->dx}, a->dx_add,
               map_slope<T>{a->fn, (real<T>)a->p, (real<T>)a->q});
}

PL_CUDA_DEFINE(map_forward, map);
PL_CUDA_DEFINE(map_backward, map);

} // namespace pl_cuda
