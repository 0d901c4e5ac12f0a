/* SPDX-License-Identifier: MIT */
/* The fallback: see gemm.cuh. */
#include "kernels/cuda/gemm.cuh"

namespace pl_cuda
{

template <class T> void matmul(const struct pl_matmul_args *a)
{
    gemm_args<T> g = {};

    g.batch = a->batch;
    g.m = a->m;
    g.n = a->n;
    g.k = a->k;
    g.a = (const T *)a->a;
    g.a_row = a->a_transposed ? 1 : a->a_row;
    g.a_col = a->a_transposed ? a->a_row : 1;
    g.a_batch = a->a_batch;
    g.b = (const T *)a->b;
    g.b_row = a->b_transposed ? 1 : a->b_row;
    g.b_col = a->b_transposed ? a->b_row : 1;
    g.b_batch = a->b_batch;
    g.c = (T *)a->c;
    g.c_row = a->c_row;
    g.c_batch = a->c_batch;
    g.scale = (real<T>)a->scale;
    g.add = a->add;
    gemm(g);
}

PL_CUDA_DEFINE(matmul, matmul);

} // namespace pl_cuda
