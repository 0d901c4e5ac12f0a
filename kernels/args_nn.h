/* SPDX-License-Identifier: MIT */
/* Element by element, by row, and copies: activations, norms, losses, attention.
 * Rules for all ops: kernels/kernels.h, which includes this. */
#ifndef PL_KERNELS_ARGS_NN_H
#define PL_KERNELS_ARGS_NN_H

#include "kernels/half.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* dst = (a + b) scale. n elements. dst may be a or b. Exact. */
struct pl_add_args {
    size_t n;
    double scale;
    const void *a, *b;
    void *dst;
};

/* y = max(x, 0); a NaN stays one. Backward: dx (+)= dy where y > 0, else 0. n elements. Exact. */
struct pl_relu_args {
    size_t n;
    bool dx_add;
    const void *x, *dy;
    void *y, *dx;
};

/* Mean over rows of -log softmax(logits)[label], computed with the row's maximum taken out.
 * logits, probs [rows, classes], labels [rows] in [0, classes), loss [1], dloss [1].
 * Backward: dlogits (+)= dloss (probs - onehot) / rows. A label out of range gives a NaN loss. */
struct pl_cross_entropy_args {
    size_t rows, classes;
    bool dx_add;
    const void *logits, *dloss;
    const int32_t *labels;
    void *probs; /* written forward, read backward */
    void *loss, *dlogits;
};

/* count [1] = rows whose largest logit (the first of equals) is the label's. Exact. */
struct pl_correct_args {
    size_t rows, classes;
    const void *logits;
    const int32_t *labels;
    void *count;
};

/* n numbers between a 16-bit type and the table's real type. widen is exact; narrow rounds to the
 * nearest, ties to even, and keeps infinities and NaNs (any of them). Exact. */
struct pl_half_args {
    size_t n;
    enum pl_half type;
    uint16_t *half;
    void *wide;
};

/* X(function, struct of arguments) */
#define PL_KERNEL_LIST_NN(X)                                                                       \
    X(add, add)                                                                                    \
    X(relu_forward, relu)                                                                          \
    X(relu_backward, relu)                                                                         \
    X(cross_entropy_forward, cross_entropy)                                                        \
    X(cross_entropy_backward, cross_entropy)                                                       \
    X(correct, correct)                                                                            \
    X(widen, half)                                                                                 \
    X(narrow, half)

#endif
