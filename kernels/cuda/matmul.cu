/* SPDX-License-Identifier: MIT */
/* The fallback without cublasLt, by gemm.cuh: 2 m n k operations, each operand read once per 64
 * rows or columns of the result, and the result written once (with `add` also read). Bound by the
 * f32 units; gemm.cuh has the alternatives; not measured on a card yet. Any shape up to 2^31 tiles
 * of 64 x 64. */
#include "kernels/cuda/gemm.cuh"

namespace pl_cuda
{

template <class T> void matmul(const struct pl_matmul_args *s)
{
    strided<T> a = {(const T *)s->a, s->a_row, 1, s->a_batch};
    strided<T> b = {(const T *)s->b, 1, s->b_row, s->b_batch};
    gemm_to<T> c = {(T *)s->c, s->c_row, s->c_batch, (real<T>)s->scale, s->add};

    if (s->a_transposed)
        a = {a.p, 1, s->a_row, s->a_batch};
    if (s->b_transposed)
        b = {b.p, s->b_row, 1, s->b_batch};
    gemm<T>({s->batch, s->m, s->n, s->k}, a, b, c);
}

PL_CUDA_DEFINE(matmul, matmul);

} // namespace pl_cuda
