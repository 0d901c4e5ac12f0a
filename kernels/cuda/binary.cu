/* SPDX-License-Identifier: MIT */
/* If b has a's shape, all passes are elementwise (each.cuh): forward reads 2 elements and writes 1;
 * a gradient reads 1 to 3 (one more with `add`) and writes 1; 1 operation, 3 for the db of a
 * division. If b is repeated, it comes from the cache, with its index by a multiplication and a
 * shift (divider.cuh), and db is a sum in f64 by columns (sums.cuh) that reads a and dy once. Bound
 * by memory; not measured on a card yet. Before, equal shapes also used the sums: with one row to
 * add, a block had 32 elements and only 1 of its 8 lines of threads had work. Passes share kernels:
 * a product's da and db are forward's kernel on dy. Any shape. */
#include "kernels/cuda/divider.cuh"
#include "kernels/cuda/each.cuh"
#include "kernels/cuda/sums.cuh"

namespace pl_cuda
{

namespace
{

template <int OP, class R> __device__ __forceinline__ R apply(R a, R b)
{
    return OP == PL_BINARY_ADD   ? a + b
           : OP == PL_BINARY_SUB ? a - b
           : OP == PL_BINARY_MUL ? a * b
                                 : a / b;
}

/* x: a and, if it has a's shape, b. */
template <class T, int OP> struct applied {
    __device__ real<T> operator()(size_t, const real<T> x[2]) const
    {
        return apply<OP>(x[0], x[1]);
    }
};

/* The same with b repeated. */
template <class T, int OP> struct applied_to {
    const T *b;
    divider by_m;

    __device__ real<T> operator()(size_t i, const real<T> x[1]) const
    {
        size_t at;

        by_m(i, &at);
        return apply<OP>(x[0], load(b, at));
    }
};

template <class T> struct times {
    real<T> scale;

    __device__ real<T> operator()(size_t, const real<T> x[1]) const
    {
        return scale * x[0];
    }
};

/* A division's db; x: dy, a and b. In this order: b^2 and dy / b may overflow or underflow. */
template <class T> struct by_divisor {
    __device__ real<T> operator()(size_t, const real<T> x[3]) const
    {
        return -x[0] * (x[1] / x[2] / x[2]);
    }
};

/* db if b is repeated. The op is no constant here: three kernels serve all. */
template <class T> struct by_b {
    const T *a, *b, *dy;
    size_t m;
    enum pl_binary op;

    __device__ double operator()(size_t, size_t k, size_t i) const
    {
        size_t at = k * m + i;
        double d = load(dy, at), z;

        if (op == PL_BINARY_ADD)
            return d;
        if (op == PL_BINARY_SUB)
            return -d;
        if (op == PL_BINARY_MUL)
            return d * load(a, at);
        z = load(b, i);
        return -d * (load(a, at) / z / z);
    }
};

template <class T> struct added_to {
    T *db;
    bool add;

    __device__ void operator()(size_t i, double sum) const
    {
        store(db, i, (real<T>)(add ? load(db, i) + sum : sum));
    }
};

template <class T, int OP>
void apply_all(size_t n, size_t m, const T *a, const T *b, T *y, bool add)
{
    if (m == n)
        each<T, 2>(n, {{a, b}, y}, add, applied<T, OP>{});
    else
        each<T, 1>(n, {{a}, y}, add, applied_to<T, OP>{b, divider(m)});
}

template <class T, int OP> void forward(const struct pl_binary_args *p)
{
    apply_all<T, OP>(p->n, p->m, (const T *)p->a, (const T *)p->b, (T *)p->y, false);
}

template <class T, int OP> void by_a(const struct pl_binary_args *p)
{
    const T *dy = (const T *)p->dy;

    if constexpr (OP == PL_BINARY_ADD || OP == PL_BINARY_SUB)
        each<T, 1>(p->n, {{dy}, (T *)p->da}, p->da_add, times<T>{1});
    else
        apply_all<T, OP>(p->n, p->m, dy, (const T *)p->b, (T *)p->da, p->da_add);
}

/* b has a's shape. */
template <class T, int OP> void by_equal(const struct pl_binary_args *p)
{
    const T *a = (const T *)p->a, *b = (const T *)p->b, *dy = (const T *)p->dy;
    T *db = (T *)p->db;

    if constexpr (OP == PL_BINARY_MUL)
        each<T, 2>(p->n, {{dy, a}, db}, p->db_add, applied<T, OP>{});
    else if constexpr (OP == PL_BINARY_DIV)
        each<T, 3>(p->n, {{dy, a, b}, db}, p->db_add, by_divisor<T>{});
    else
        each<T, 1>(p->n, {{dy}, db}, p->db_add, times<T>{(real<T>)(OP == PL_BINARY_ADD ? 1 : -1)});
}

template <class T, int OP> void backward(const struct pl_binary_args *p)
{
    const T *a = (const T *)p->a, *b = (const T *)p->b, *dy = (const T *)p->dy;

    if (p->da)
        by_a<T, OP>(p);
    if (p->db && p->m == p->n)
        by_equal<T, OP>(p);
    else if (p->db && p->m)
        sums(1, p->n / p->m, p->m, by_b<T>{a, b, dy, p->m, p->op},
             added_to<T>{(T *)p->db, p->db_add});
}

} // namespace

#define BY_OP(body)                                                                                \
    switch (a->op) {                                                                               \
    case PL_BINARY_ADD:                                                                            \
        body<T, PL_BINARY_ADD>(a);                                                                 \
        break;                                                                                     \
    case PL_BINARY_SUB:                                                                            \
        body<T, PL_BINARY_SUB>(a);                                                                 \
        break;                                                                                     \
    case PL_BINARY_MUL:                                                                            \
        body<T, PL_BINARY_MUL>(a);                                                                 \
        break;                                                                                     \
    case PL_BINARY_DIV:                                                                            \
        body<T, PL_BINARY_DIV>(a);                                                                 \
        break;                                                                                     \
    }

template <class T> void binary_forward(const struct pl_binary_args *a)
{
    BY_OP(forward)
}

template <class T>
void binary_backward(const struct pl_binary_args *a){BY_OP(backward)}

PL_CUDA_DEFINE(binary_forward, binary);
PL_CUDA_DEFINE(binary_backward, binary);

} // namespace pl_cuda
