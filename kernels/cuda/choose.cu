/* SPDX-License-Identifier: MIT */
/* Two or three elements read and one written per operand, a comparison and a selection: bound by
 * memory. Not measured on a card yet. Any number of elements. */
#include "kernels/cuda/each.cuh"

namespace pl_cuda
{

namespace
{

template <class T> struct choose_two {
    enum pl_choose op;

    __device__ real<T> operator()(size_t, const real<T> x[2]) const
    {
        const real<T> a = x[0], b = x[1];

        switch (op) {
        case PL_CHOOSE_MAX:
            return a > b || a != a ? a : b;
        case PL_CHOOSE_MIN:
            return a < b || a != a ? a : b;
        case PL_CHOOSE_LT:
            return a < b ? 1 : 0;
        case PL_CHOOSE_LE:
            return a <= b ? 1 : 0;
        case PL_CHOOSE_EQ:
            return a == b ? 1 : 0;
        default:
            return a != b ? 1 : 0;
        }
    }
};

template <class T> struct choose_where {
    __device__ real<T> operator()(size_t, const real<T> x[3]) const
    {
        return x[0] != 0 ? x[1] : x[2];
    }
};

/* The first operand's part of dy, x[2], for the larger one (or the smaller one) of two. */
template <class T> struct share_of_two {
    bool max;

    __device__ real<T> operator()(size_t, const real<T> x[3]) const
    {
        const real<T> mine = x[0], other = x[1];

        return mine == other                         ? x[2] * real<T>(0.5)
               : (max ? mine < other : mine > other) ? real<T>(0)
                                                     : x[2];
    }
};

/* dy, x[1], where the condition x[0] is `yes`. */
template <class T> struct share_of_where {
    bool yes;

    __device__ real<T> operator()(size_t, const real<T> x[2]) const
    {
        return (x[0] != 0) == yes ? x[1] : real<T>(0);
    }
};

template <class T> struct share_of_none {
    __device__ real<T> operator()(size_t, const real<T>[1]) const
    {
        return 0;
    }
};

template <class T> void none(size_t n, void *out, bool add)
{
    if (out && !add)
        each<T, 1>(n, {{(const T *)out}, (T *)out}, false, share_of_none<T>{});
}

} // namespace

template <class T> void choose_forward(const struct pl_choose_args *args)
{
    const T *a = (const T *)args->a, *b = (const T *)args->b, *c = (const T *)args->c;

    if (args->op == PL_CHOOSE_WHERE)
        each<T, 3>(args->n, {{a, b, c}, (T *)args->y}, false, choose_where<T>{});
    else
        each<T, 2>(args->n, {{a, b}, (T *)args->y}, false, choose_two<T>{args->op});
}

template <class T> void choose_backward(const struct pl_choose_args *args)
{
    const T *a = (const T *)args->a, *b = (const T *)args->b, *dy = (const T *)args->dy;
    T *da = (T *)args->da, *db = (T *)args->db, *dc = (T *)args->dc;
    bool max = args->op == PL_CHOOSE_MAX, two = max || args->op == PL_CHOOSE_MIN;

    if (two) {
        if (da)
            each<T, 3>(args->n, {{a, b, dy}, da}, args->da_add, share_of_two<T>{max});
        if (db)
            each<T, 3>(args->n, {{b, a, dy}, db}, args->db_add, share_of_two<T>{max});
        return;
    }
    none<T>(args->n, da, args->da_add);
    if (args->op != PL_CHOOSE_WHERE)
        none<T>(args->n, db, args->db_add);
    else if (db)
        each<T, 2>(args->n, {{a, dy}, db}, args->db_add, share_of_where<T>{true});
    if (dc)
        each<T, 2>(args->n, {{a, dy}, dc}, args->dc_add, share_of_where<T>{false});
}

PL_CUDA_DEFINE(choose_forward, choose);
PL_CUDA_DEFINE(choose_backward, choose);

} // namespace pl_cuda
