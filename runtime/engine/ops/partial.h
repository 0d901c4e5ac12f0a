/* SPDX-License-Identifier: MIT */
/* Bytes of partial sums. Where kernels/cuda cuts a long sum into pieces, one kernel writes the sums
 * of the pieces and another one reads them. Each function has the number of pieces of one kernel
 * there, for arrays that are aligned (test engine_partial compares them), and returns the bytes
 * written and read. */
#ifndef PL_RUNTIME_ENGINE_OPS_PARTIAL_H
#define PL_RUNTIME_ENGINE_OPS_PARTIAL_H

#include "kernels/kernels.h"

#include <stdbool.h>
#include <stddef.h>

/* linear.cu: the sums of the columns of [rows, out], numbers of that type. */
double pl_partial_of_bias(size_t rows, size_t out, enum pl_real real);

/* Batch norm of [batch, channels, inner] in a table of that type. */
struct pl_partial_batchnorm {
    size_t batch, channels, inner;
    enum pl_real real;
    bool halves;          /* x and y have 16 bits there */
    bool backward, again; /* again: relu's mask is computed from x */
};

/* batchnorm.cu: the sums of each channel, of x or, backward, of x and dy. */
double pl_partial_of_batchnorm(const struct pl_partial_batchnorm *norm);

/* Layer norm's backward of rows [rows, n] in a table of that type. */
struct pl_partial_norm {
    size_t rows, n;
    enum pl_real real;
    bool y_half, params, dx_sums; /* of its arguments; params: dgamma or dbeta is wanted */
};

/* layernorm_backward.cu */
double pl_partial_of_layernorm(const struct pl_partial_norm *norm);

/* True if the gradients of gamma and beta take a pass of their own over x and dy. */
bool pl_layernorm_again_for_params(const struct pl_partial_norm *norm);

/* True if the sums of dx's columns take a pass of their own. */
bool pl_layernorm_again_for_sums(const struct pl_partial_norm *norm);

#endif
