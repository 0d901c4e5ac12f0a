/* SPDX-License-Identifier: MIT */
/* The key of the cache of algorithms: everything about a product that decides which algorithm is
 * best, and nothing else (no addresses). Pure functions.
 *
 * Row-major and column-major: cublasLt's matrices are column-major (ORDER_COL), since its epilogues
 * exist only for these. A row-major [r, c] matrix with rows `row` apart has the same memory as the
 * column-major [c, r] matrix with columns `row` apart: its transpose. So c = op(a) op(b) is
 * computed as c^T = op(b)^T op(a)^T: cublasLt's A is our b, its B is our a, its D [n, m] is our c,
 * and our "transposed" flags are its own. The rows of D are our columns, so a bias along them has
 * one element per output feature. "The gradient of the bias, reduced over k of B" (EPILOGUE_BGRADB)
 * is that of our a; for dw = dz^T x it is the sums of dz over its rows. */
#ifndef PL_RUNTIME_ENGINE_CUDA_CUBLASLT_CUBLASLT_KEY_H
#define PL_RUNTIME_ENGINE_CUDA_CUBLASLT_CUBLASLT_KEY_H

#include "kernels/kernels.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* cublasLt's epilogues: applied to the product before it is stored. */
enum pl_cublaslt_epilogue {
    PL_CUBLASLT_PLAIN,
    PL_CUBLASLT_BIAS,          /* + bias */
    PL_CUBLASLT_RELU,          /* max(x, 0) */
    PL_CUBLASLT_RELU_BIAS,     /* both */
    PL_CUBLASLT_GELU_AUX,      /* stores x in aux; gelu by tanh */
    PL_CUBLASLT_GELU_AUX_BIAS, /* + bias, then GELU_AUX */
    PL_CUBLASLT_DGELU,         /* times gelu's slope (by tanh) at aux */
    PL_CUBLASLT_DGELU_BGRAD,   /* the same; also stores its sums over n in bias */
    PL_CUBLASLT_BGRAD,         /* also stores the sums of a over k in bias */
};

/* In cublasLt's terms: D [m, n] = A [m, k] B [k, n]; ld_* between columns, step_* between matrices
 * of a batch, in elements. No padding: it is hashed and compared as bytes. */
struct pl_cublaslt_key {
    uint64_t m, n, k, batch;
    uint64_t ld_a, ld_b, ld_d, step_a, step_b, step_d;
    uint8_t real, epilogue;
    uint8_t trans_a, trans_b; /* op = transposed */
    uint8_t add;              /* add to D */
    uint8_t tf32;             /* factors of f32 may be rounded to tf32 */
    uint8_t align_a, align_b; /* exponent of the largest power of two, up to 256 bytes */
    uint8_t align_d, align_aux, align_bias;
    uint8_t ways; /* of a choice between the epilogue and a kernel of its own; else 0 */
    uint8_t wide; /* D, and the gradient of a bias, is f32; A and B have 16 bits */
    uint8_t zero[3];
};

/* The operands' addresses, and the epilogue's input or output. */
struct pl_cublaslt_data {
    const void *a, *b; /* cublasLt's A and B */
    void *d;
    void *bias, *aux; /* of the epilogue, else NULL */
    double scale;
};

/* The product of the arguments; with `wide` c is f32. A batch of contiguous matrices that share b
 * becomes one matrix.
 * Returns false if cublasLt cannot do it: an empty dimension, a batch or alignment outside its
 * types. */
bool pl_cublaslt_of_matmul(const struct pl_matmul_args *args,
                           enum pl_real real,
                           bool wide,
                           bool tf32,
                           struct pl_cublaslt_key *ret_key,
                           struct pl_cublaslt_data *ret_data);

/* Adds an epilogue to a key for one matrix. Returns false if cublasLt's rules forbid it: bias must
 * be 16-byte aligned; aux too, and its rows (of D's length) must be multiples of 8 elements. */
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
