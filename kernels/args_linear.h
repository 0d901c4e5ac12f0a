/* SPDX-License-Identifier: MIT */
/* Products and what goes over images: linear layers, matmul, convolution, pooling, batch norm.
 * Rules for all ops: kernels/kernels.h, which includes this. */
#ifndef PL_KERNELS_ARGS_LINEAR_H
#define PL_KERNELS_ARGS_LINEAR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* gelu(x) = x Phi(x) with the normal distribution's Phi, or its approximation by tanh (Hendrycks
 * and Gimpel, arXiv 1606.08415); silu(x) = x / (1 + e^-x). */
enum pl_activation {
    PL_ACT_NONE,
    PL_ACT_RELU,
    PL_ACT_GELU,
    PL_ACT_GELU_TANH,
    PL_ACT_SILU,
    PL_ACT_TANH,
    PL_ACT_SIGMOID,
};

/* Whether its backward reads the activation's input; relu's and none's read y or nothing. */
static inline bool pl_activation_needs_pre(enum pl_activation act)
{
    return act > PL_ACT_RELU;
}

/* y = act(z), z = x w^T + b. x [rows, in], w [out, in], b [out], y [rows, out].
 * Backward: dz = dy act'(z); dx (+)= dz w; dw (+)= dz^T x; db (+)= column sums of dz.
 * pre [rows, out] keeps z for backward where pl_activation_needs_pre(), else it may be NULL; y is
 * read backward by relu only. dz [rows, out] is scratch of the caller's; it may be dy. */
struct pl_linear_args {
    size_t rows, in, out;
    enum pl_activation act;
    bool dx_add, dw_add, db_add;
    const void *x, *w, *b, *dy;
    void *y, *pre; /* written forward, read backward */
    void *dz, *dx, *dw, *db;
};

/* For each i < batch: c_i (+)= scale op(a_i) op(b_i); op(a_i) [m, k], op(b_i) [k, n], c_i [m, n].
 * op transposes where its flag is set: a_i itself is [k, m] then, b_i [n, k]. Rows are *_row
 * elements apart, matrices *_batch (0: all use the same one, not c's). Its gradients are products
 * again: da = dc op(b)^T, db = op(a)^T dc, or their transposes. */
struct pl_matmul_args {
    size_t batch, m, n, k;
    bool a_transposed, b_transposed, add;
    size_t a_row, b_row, c_row, a_batch, b_batch, c_batch;
    double scale;
    const void *a, *b;
    void *c;
};

/* X(function, struct of arguments) */
#define PL_KERNEL_LIST_LINEAR(X)                                                                   \
    X(linear_forward, linear)                                                                      \
    X(linear_backward, linear)                                                                     \
    X(matmul, matmul)

#endif
