/* SPDX-License-Identifier: MIT */
#include "kernels/cpu/level.h"

#include <string.h>

static void product(const struct pl_gemm *g)
{
    if (!pl_gemm_dnnl(g))
        PL_CPU(gemm)(g);
}

void PL_CPU(linear_forward)(const struct pl_linear_args *a)
{
    const float *restrict b = a->b;
    size_t n = a->out;

    product(&(struct pl_gemm){.m = a->rows,
                              .n = n,
                              .k = a->in,
                              .a = a->x,
                              .a_row = a->in,
                              .a_col = 1,
                              .b = a->w,
                              .b_row = 1,
                              .b_col = a->in,
                              .c = a->y,
                              .ldc = n});
    for (size_t r = 0; r < a->rows; r++) {
        float *restrict y = (float *)a->y + r * n;

        if (b)
            for (size_t o = 0; o < n; o++)
                y[o] += b[o];
        if (a->relu)
            for (size_t o = 0; o < n; o++)
                y[o] = y[o] <= 0 ? 0 : y[o];
    }
}

void PL_CPU(linear_backward)(const struct pl_linear_args *a)
{
    const float *dz = a->dy;
    size_t n = a->out;

    if (a->relu) {
        const float *y = a->y, *dy = a->dy;
        float *masked = a->dz;

        for (size_t k = 0; k < a->rows * n; k++)
            masked[k] = y[k] <= 0 ? 0 : dy[k];
        dz = masked;
    }
    if (a->dx)
        product(&(struct pl_gemm){.m = a->rows,
                                  .n = a->in,
                                  .k = n,
                                  .a = dz,
                                  .a_row = n,
                                  .a_col = 1,
                                  .b = a->w,
                                  .b_row = a->in,
                                  .b_col = 1,
                                  .c = a->dx,
                                  .ldc = a->in,
                                  .add = a->dx_add});
    if (a->dw)
        product(&(struct pl_gemm){.m = n,
                                  .n = a->in,
                                  .k = a->rows,
                                  .a = dz,
                                  .a_row = 1,
                                  .a_col = n,
                                  .b = a->x,
                                  .b_row = a->in,
                                  .b_col = 1,
                                  .c = a->dw,
                                  .ldc = a->in,
                                  .add = a->dw_add});
    if (a->db) {
        float *restrict db = a->db;

        if (!a->db_add)
            memset(db, 0, n * sizeof(*db));
        for (size_t r = 0; r < a->rows; r++)
            for (size_t o = 0; o < n; o++)
                db[o] += dz[r * n + o];
    }
}
