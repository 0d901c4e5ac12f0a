/* SPDX-License-Identifier: MIT */
/* Forward and da: 2 elements read (3 where it adds; b mostly from the cache), 1 written, 1
 * operation; db reads a and dy once (sums.cuh). Bound by memory. */
#include "kernels/cuda/each.cuh"
#include "kernels/cuda/sums.cuh"

namespace pl_cuda
{

namespace
{

template <class T, int OP> struct applied {
    const T *b;
    size_t m;

    __device__ real<T> operator()(size_t i, const real<T> x[1]) const
    {
        real<T> y = load(b, m == 1 ? 0 : i % m);

        return OP == PL_BINARY_ADD   ? x[0] + y
               : OP == PL_BINARY_SUB ? x[0] - y
               : OP == PL_BINARY_MUL ? x[0] * y
                                     : x[0] / y;
    }
};

template <class T, int OP> struct by_a {
    const T *b;
    size_t m;

    __device__ real<T> operator()(size_t i, const real<T> dy[1]) const
    {
        if (OP == PL_BINARY_ADD || OP == PL_BINARY_SUB)
            return dy[0];
        return OP == PL_BINARY_MUL ? dy[0] * load(b, m == 1 ? 0 : i % m)
                                   : dy[0] / load(b, m == 1 ? 0 : i % m);
    }
};

/* Which op is no constant here: three kernels for all. */
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
        return -d * load(a, at) / (z * z);
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

template <class T, int OP> void forward(const struct pl_binary_args *p)
{
    each<T, 1>(p->n, {{(const T *)p->a}, (T *)p->y}, false, applied<T, OP>{(const T *)p->b, p->m});
}

template <class T, int OP> void backward(const struct pl_binary_args *p)
{
    const T *a = (const T *)p->a, *b = (const T *)p->b, *dy = (const T *)p->dy;

    if (p->da)
        each<T, 1>(p->n, {{dy}, (T *)p->da}, p->da_add, by_a<T, OP>{b, p->m});
    if (p->db && p->m)
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
