/* SPDX-License-Identifier: MIT */
/* What a product asks of cublasLt: everything that decides which algorithm is best, and nothing
 * else (no addresses), so that it is the key of the cache of algorithms. Pure functions.
 *
 * Row-major and column-major: cublasLt's matrices are column-major (ORDER_COL), since its epilogues
 * exist for these. A row-major [r, c] matrix with rows `row` apart is, as memory, the column-major
 * [c, r] matrix with columns `row` apart: its transpose. So c = op(a) op(b) is asked for as
 * c^T = op(b)^T op(a)^T: cublasLt's A is our b, its B our a, its D [n, m] our c, and a flag
 * "transposed" of ours is one of cublasLt's. The rows of D are our columns, and so a bias along
 * them is one element an output feature; "the gradient of the bias, reduced over k of B"
 * (EPILOGUE_BGRADB) is that of our a, for dw = dz^T x the sums of dz over its rows. */
#ifndef PL_RUNTIME_ENGINE_CUDA_CUBLASLT_CUBLASLT_KEY_H
#define PL_RUNTIME_ENGINE_CUDA_CUBLASLT_CUBLASLT_KEY_H

#include "kernels/kernels.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* What is done to the product on its way to memory. */
enum pl_cublaslt_epilogue {
    PL_CUBLASLT_PLAIN,
    PL_CUBLASLT_BIAS,          /* + bias */
    PL_CUBLASLT_RELU,          /* max(x, 0) */
    PL_CUBLASLT_RELU_BIAS,     /* both */
    PL_CUBLASLT_GELU_AUX,      /* keeps x in aux; gelu by tanh */
    PL_CUBLASLT_GELU_AUX_BIAS, /* + bias, then that */
    PL_CUBLASLT_BGRAD,         /* also: bias = the sums of a over k */
};

/* In cublasLt's terms: D [m, n] = A [m, k] B [k, n]; ld_* between columns, step_* between matrices
 * of a batch, in elements. No padding: it is hashed and compared as bytes. */
struct pl_cublaslt_key {
    uint64_t m, n, k, batch;
    uint64_t ld_a, ld_b, ld_d, step_a, step_b, step_d;
    uint8_t real, epilogue;
    uint8_t trans_a, trans_b; /* op = transposed */
    uint8_t add;              /* to what D holds */
    uint8_t tf32;             /* products of f32 may be rounded to tf32 */
    uint8_t align_a, align_b; /* the largest power of two, up to 256 bytes, as an exponent */
    uint8_t align_d, align_aux, align_bias;
    uint8_t zero[5];
};

/* The operands' addresses, and what the epilogue reads or writes. */
struct pl_cublaslt_data {
    const void *a, *b; /* cublasLt's A and B */
    void *d;
    void *bias, *aux; /* of the epilogue, else NULL */
    double scale;
};

/* The product of the arguments. A batch whose matrices lie behind one another and share b becomes
 * one matrix. False where cublasLt cannot do it at all: an empty dimension, a batch or alignment
 * beyond its types. */
bool pl_cublaslt_of_matmul(const struct pl_matmul_args *args,
                           enum pl_real real,
                           bool tf32,
                           struct pl_cublaslt_key *ret_key,
                           struct pl_cublaslt_data *ret_data);

/* Adds an epilogue to a key for one matrix. False where cublasLt's rules forbid it: bias 16-byte
 * aligned; aux too, and its rows (of D's length) multiples of 8 elements. */
bool pl_cublaslt_add_epilogue(struct pl_cublaslt_key *key,
                              struct pl_cublaslt_data *data,
                              enum pl_cublaslt_epilogue which,
                              void *bias,
                              void *aux);

/* Products of a linear layer. y = x w^T, dx (+)= dz w, dw (+)= dz^T x. */
struct pl_matmul_args pl_cublaslt_linear_y(const struct pl_linear_args *args, void *to);
struct pl_matmul_args pl_cublaslt_linear_dx(const struct pl_linear_args *args, const void *dz);
struct pl_matmul_args pl_cublaslt_linear_dw(const struct pl_linear_args *args, const void *dz);

#endif
