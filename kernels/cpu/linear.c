/* SPDX-License-Identifier: MIT */
#include "kernels/cpu/vmath.h"
#include "kernels/pool/pool.h"

#define ROWS 256     /* whose sums are added up apart: rounding grows with these and their number */
#define COLUMNS 1024 /* maximum number of dz's columns that one thread takes at a time */

/* Calls a function with the activation as a constant, so that its loops have no branches. */
#define WITH_ACTIVATION(act, f, ...)                                                               \
    switch (act) {                                                                                 \
    case PL_ACT_GELU:                                                                              \
        f(PL_ACT_GELU, __VA_ARGS__);                                                               \
        break;                                                                                     \
    case PL_ACT_GELU_TANH:                                                                         \
        f(PL_ACT_GELU_TANH, __VA_ARGS__);                                                          \
        break;                                                                                     \
    case PL_ACT_SILU:                                                                              \
        f(PL_ACT_SILU, __VA_ARGS__);                                                               \
        break;                                                                                     \
    case PL_ACT_TANH:                                                                              \
        f(PL_ACT_TANH, __VA_ARGS__);                                                               \
        break;                                                                                     \
    case PL_ACT_SIGMOID:                                                                           \
        f(PL_ACT_SIGMOID, __VA_ARGS__);                                                            \
        break;                                                                                     \
    case PL_ACT_RELU:                                                                              \
        f(PL_ACT_RELU, __VA_ARGS__);                                                               \
        break;                                                                                     \
    default:                                                                                       \
        f(PL_ACT_NONE, __VA_ARGS__);                                                               \
    }

PL_INLINE void
activate_row(const enum pl_activation act, const float *restrict z, float *restrict y, size_t n)
{
    for (size_t o = 0; o < n; o++)
        y[o] = pl_activate(act, z[o]);
}

static void activate_block(const struct pl_gemm *g, size_t i, size_t m, size_t j, size_t n)
{
    const struct pl_linear_args *a = g->ctx;

    for (size_t r = i; r < i + m; r++)
        WITH_ACTIVATION(a->act, activate_row, g->c + r * g->ldc + j, (float *)a->y + r * g->ldc + j,
                        n)
}

PL_INLINE void
slope_row(const enum pl_activation act, const float *restrict z, float *restrict dx, size_t n)
{
    for (size_t i = 0; i < n; i++)
        dx[i] *= pl_activate_slope(act, z[i]);
}

static void slope_block(const struct pl_gemm *g, size_t i, size_t m, size_t j, size_t n)
{
    const struct pl_linear_args *a = g->ctx;

    for (size_t r = i; r < i + m; r++)
        WITH_ACTIVATION(a->x_act, slope_row, (const float *)a->x_pre + r * g->ldc + j,
                        g->c + r * g->ldc + j, n)
}

void PL_CPU(linear_forward)(const struct pl_linear_args *a)
{
    bool pre = pl_activation_needs_pre(a->act);

    PL_CPU(gemm)
    (&(struct pl_gemm){.m = a->rows,
                       .n = a->out,
                       .k = a->in,
                       .a = a->x,
                       .a_row = a->in,
                       .a_col = 1,
                       .b = a->w,
                       .b_row = 1,
                       .b_col = a->in,
                       .c = pre ? a->pre : a->y,
                       .ldc = a->out,
                       .bias = a->b,
                       .relu = a->act == PL_ACT_RELU,
                       .done = pre ? activate_block : NULL,
                       .ctx = (void *)a});
}

/* dz = dy act'(z) for rows [r0, r1) and n columns, and their sums. dz may be dy. */
PL_INLINE void slope_rows(const enum pl_activation act,
                          const struct pl_linear_args *a,
                          size_t r0,
                          size_t r1,
                          size_t o0,
                          size_t n,
                          float *restrict sums)
{
    size_t row = a->dy_row ? a->dy_row : a->out;

    for (size_t r = r0; r < r1; r++) {
        const float *dy = (const float *)a->dy + r * row + o0;
        float *dz = act == PL_ACT_NONE ? NULL : (float *)a->dz + r * a->out + o0;

        if (act == PL_ACT_NONE) {
            for (size_t o = 0; o < n; o++)
                sums[o] += dy[o];
        } else if (act == PL_ACT_RELU) {
            const float *y = (const float *)a->y + r * a->out + o0;

            PL_INDEPENDENT
            for (size_t o = 0; o < n; o++) {
                float d = y[o] <= 0 ? 0 : dy[o];

                dz[o] = d;
                sums[o] += d;
            }
        } else {
            const float *z = (const float *)a->pre + r * a->out + o0;

            PL_INDEPENDENT
            for (size_t o = 0; o < n; o++) {
                float d = dy[o] * pl_activate_slope(act, z[o]);

                dz[o] = d;
                sums[o] += d;
            }
        }
    }
}

static void slope_columns(void *ctx, size_t begin, size_t end)
{
    const struct pl_linear_args *a = ctx;
    float *restrict db = a->db, sums[COLUMNS], totals[COLUMNS] = {0};

    for (size_t r = 0; r < a->rows; r += ROWS) {
        memset(sums, 0, (end - begin) * sizeof(*sums));
        WITH_ACTIVATION(a->act, slope_rows, a, r, PL_MIN(r + ROWS, a->rows), begin, end - begin,
                        sums)
        for (size_t o = 0; o < end - begin; o++)
            totals[o] += sums[o];
    }
    if (!db)
        return;
    for (size_t o = begin; o < end; o++)
        db[o] = a->db_add ? db[o] + totals[o - begin] : totals[o - begin];
}

void PL_CPU(linear_backward)(const struct pl_linear_args *a)
{
    const float *dz = a->act == PL_ACT_NONE ? a->dy : a->dz;

    /* Columns are summed independently: fewer pieces mean longer rows to read. */
    if (a->act != PL_ACT_NONE || a->db)
        pl_pool_parallel(a->out, PL_MIN(a->out / pl_pool_threads() / 16 * 16 + 16, (size_t)COLUMNS),
                         slope_columns, (void *)a);
    if (a->dy_row)
        return;
    if (a->dx)
        PL_CPU(gemm)
    (&(struct pl_gemm){.m = a->rows,
                       .n = a->in,
                       .k = a->out,
                       .a = dz,
                       .a_row = a->out,
                       .a_col = 1,
                       .b = a->w,
                       .b_row = a->in,
                       .b_col = 1,
                       .c = a->dx,
                       .ldc = a->in,
                       .add = a->dx_add,
                       .done = a->x_pre ? slope_block : NULL,
                       .ctx = (void *)a});
    if (a->dx_sums)
        PL_CPU(linear_backward)
    (&(struct pl_linear_args){
        .rows = a->rows, .out = a->in, .dy = a->dx, .db = a->dx_sums, .db_add = a->dx_sums_add});
    if (a->dw)
        PL_CPU(gemm)
    (&(struct pl_gemm){.m = a->out,
                       .n = a->in,
                       .k = a->rows,
                       .a = dz,
                       .a_row = 1,
                       .a_col = a->out,
                       .b = a->x,
                       .b_row = a->in,
                       .b_col = 1,
                       .c = a->dw,
                       .ldc = a->in,
                       .add = a->dw_add});
}
