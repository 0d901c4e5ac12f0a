/* SPDX-License-Identifier: MIT */
/* Products and what goes over images: linear layers, matmul, convolution, pooling, batch norm.
 * Rules for all ops: kernels/kernels.h, which includes this. */
#ifndef PL_KERNELS_ARGS_LINEAR_H
#define PL_KERNELS_ARGS_LINEAR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* y = act(x w^T + b), act = relu or identity. x [rows, in], w [out, in], b [out], y [rows, out].
 * Backward: dz = dy where act passed, else 0; dx (+)= dz w; dw (+)= dz^T x; db (+)= column sums of
 * dz. dz [rows, out] is scratch of the caller's; it may be dy. */
struct pl_linear_args {
    size_t rows, in, out;
    bool relu;
    bool dx_add, dw_add, db_add;
    const void *x, *w, *b, *dy;
    void *y; /* written forward, read backward */
    void *dz, *dx, *dw, *db;
};

/* X(function, struct of arguments) */
#define PL_KERNEL_LIST_LINEAR(X)                                                                   \
    X(linear_forward, linear)                                                                      \
    X(linear_backward, linear)

#endif
