/* SPDX-License-Identifier: MIT */
#include "kernels/cpu/level.h"
#include "kernels/pool/pool.h"

static void some(void *ctx, size_t begin, size_t end)
{
    const struct pl_matmul_args *a = ctx;

    for (size_t i = begin; i < end; i++)
        PL_CPU(gemm)
    (&(struct pl_gemm){.m = a->m,
                       .n = a->n,
                       .k = a->k,
                       .a = (const float *)a->a + i * a->a_batch,
                       .a_row = a->a_transposed ? 1 : a->a_row,
                       .a_col = a->a_transposed ? a->a_row : 1,
                       .b = (const float *)a->b + i * a->b_batch,
                       .b_row = a->b_transposed ? 1 : a->b_row,
                       .b_col = a->b_transposed ? a->b_row : 1,
                       .c = (float *)a->c + i * a->c_batch,
                       .ldc = a->c_row,
                       .scale = (float)a->scale,
                       .add = a->add});
}

void PL_CPU(matmul)(const struct pl_matmul_args *a)
{
    /* Few matrices: all threads work on each in turn. Many matrices: one thread each. */
    if (a->batch < 2 * pl_pool_threads())
        some((void *)a, 0, a->batch);
    else
        pl_pool_parallel(a->batch, 1, some, (void *)a);
}
