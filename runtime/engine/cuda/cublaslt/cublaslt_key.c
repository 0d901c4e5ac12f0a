/* SPDX-License-Identifier: MIT */
#include "runtime/engine/cuda/cublaslt/cublaslt_key.h"

#include <limits.h>

#define BIAS_ALIGN 4    /* 16 bytes */
#define AUX_MULTIPLE 8u /* elements: CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD */

_Static_assert(sizeof(struct pl_cublaslt_key) == 96, "no padding");

/* The exponent of the largest power of two, up to 256, that divides the address. */
static uint8_t alignment(const void *p)
{
    uintptr_t at = (uintptr_t)p | 256;

    return (uint8_t)__builtin_ctzll(at);
}

/* Also considers the following rows and matrices. */
static uint8_t alignment_of(const void *p, uint64_t step, size_t size)
{
    uint8_t first = alignment(p);
    uint8_t next = (uint8_t)__builtin_ctzll((step * size) | 256);

    return PL_MIN(first, next);
}

/* Contiguous matrices that share b: one product with batch times the rows. */
static void fold_batch(struct pl_matmul_args *s)
{
    if (s->batch > 1 && s->b_batch == 0 && !s->a_transposed && s->a_batch == s->m * s->a_row &&
        s->c_batch == s->m * s->c_row) {
        s->m *= s->batch;
        s->batch = 1;
    }
}

bool pl_cublaslt_of_matmul(const struct pl_matmul_args *args,
                           enum pl_real real,
                           bool wide,
                           bool tf32,
                           struct pl_cublaslt_key *ret_key,
                           struct pl_cublaslt_data *ret_data)
{
    struct pl_matmul_args s = *args;
    size_t size = pl_real_size(real);

    fold_batch(&s);
    if (s.batch == 0 || s.m == 0 || s.n == 0 || s.k == 0 || s.batch > INT_MAX || s.m > INT_MAX ||
        s.n > INT_MAX || s.k > INT_MAX)
        return false;
    /* A matrix of one row may have any distance between rows. */
    s.a_row = PL_MAX(s.a_row, s.a_transposed ? s.m : s.k);
    s.b_row = PL_MAX(s.b_row, s.b_transposed ? s.k : s.n);
    s.c_row = PL_MAX(s.c_row, s.n);
    if (s.batch == 1)
        s.a_batch = s.b_batch = s.c_batch = 0;
    *ret_key = (struct pl_cublaslt_key){
        .m = s.n,
        .n = s.m,
        .k = s.k,
        .batch = s.batch,
        .ld_a = s.b_row,
        .ld_b = s.a_row,
        .ld_d = s.c_row,
        .step_a = s.b_batch,
        .step_b = s.a_batch,
        .step_d = s.c_batch,
        .real = (uint8_t)real,
        .epilogue = PL_CUBLASLT_PLAIN,
        .trans_a = s.b_transposed,
        .trans_b = s.a_transposed,
        .add = s.add,
        .tf32 = tf32 && real == PL_REAL_F32,
        .wide = wide,
        .align_a = alignment_of(s.b, s.b_batch, size),
        .align_b = alignment_of(s.a, s.a_batch, size),
        .align_d = alignment_of(s.c, s.c_batch, wide ? sizeof(float) : size),
    };
    *ret_data = (struct pl_cublaslt_data){.a = s.b, .b = s.a, .d = s.c, .scale = s.scale};
    return true;
}

bool pl_cublaslt_add_epilogue(struct pl_cublaslt_key *key,
                              struct pl_cublaslt_data *data,
                              enum pl_cublaslt_epilogue which,
                              void *bias,
                              void *aux)
{
    if (key->batch != 1 || (bias && alignment(bias) < BIAS_ALIGN))
        return false;
    if (aux && (key->m % AUX_MULTIPLE != 0 || alignment(aux) < BIAS_ALIGN))
        return false;
    key->epilogue = (uint8_t)which;
    key->align_bias = bias ? alignment(bias) : 0;
    key->align_aux = aux ? alignment(aux) : 0;
    data->bias = bias;
    data->aux = aux;
    return true;
}

struct pl_matmul_args pl_cublaslt_linear_y(const struct pl_linear_args *args, void *to)
{
    return (struct pl_matmul_args){
        .batch = 1,
        .m = args->rows,
        .n = args->out,
        .k = args->in,
        .b_transposed = true,
        .a_row = args->in,
        .b_row = args->in,
        .c_row = args->out,
        .scale = 1,
        .a = args->x,
        .b = args->w,
        .c = to,
    };
}

struct pl_matmul_args pl_cublaslt_linear_dx(const struct pl_linear_args *args, const void *dz)
{
    return (struct pl_matmul_args){
        .batch = 1,
        .m = args->rows,
        .n = args->in,
        .k = args->out,
        .add = args->dx_add,
        .a_row = args->out,
        .b_row = args->in,
        .c_row = args->in,
        .scale = 1,
        .a = dz,
        .b = args->w,
        .c = args->dx,
    };
}

struct pl_matmul_args pl_cublaslt_linear_dw(const struct pl_linear_args *args, const void *dz)
{
    return (struct pl_matmul_args){
        .batch = 1,
        .m = args->out,
        .n = args->in,
        .k = args->rows,
        .a_transposed = true,
        .add = args->dw_add,
        .a_row = args->out,
        .b_row = args->in,
        .c_row = args->in,
        .scale = 1,
        .a = dz,
        .b = args->x,
        .c = args->dw,
    };
}
