/* SPDX-License-Identifier: MIT */
/* The op table: what a backend must be able to compute, and the backends there are.
 *
 * A new op is one struct of arguments and one line in PL_KERNEL_LIST here, kernels/ref/<op>.c (the
 * truth: plain loops that one can check by eye), kernels/cpu/<op>.c and tests/kernels/<op>.c.
 *
 * Rules for all ops: arrays are dense, row-major and of the table's real type (f32 or f64) where
 * they are void pointers; outputs never overlap inputs unless the struct says so; no op allocates
 * on the heap beyond a scratch buffer kept per thread, locks or fails. Thread safe. Ops marked
 * "exact" give the same bits on every machine and backend, since ranks rely on it. */
#ifndef PL_KERNELS_KERNELS_H
#define PL_KERNELS_KERNELS_H

#include "common/base/error.h"

#include <stdbool.h>
#include <stdint.h>

enum pl_real {
    PL_REAL_F32,
    PL_REAL_F64,
};

/* y = act(x w^T + b), act = relu or identity. x [rows, in], w [out, in], b [out], y [rows, out].
 * Backward: dz = dy where act passed, else 0; dx (+)= dz w; dw += dz^T x; db += column sums of dz.
 * dx, dw, db may be NULL (not wanted). dz [rows, out] is scratch of the caller's; it may be dy. */
struct pl_linear_args {
    size_t rows, in, out;
    bool relu;
    bool dx_add; /* add to dx, else write it */
    const void *x, *w, *b, *dy;
    void *y; /* written forward, read backward */
    void *dz, *dx, *dw, *db;
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

/* One step of stochastic gradient descent with momentum as in PyTorch's SGD (dampening 0):
 * g = grad + weight_decay p; m = momentum m + g; p = p - lr m (p - lr g where m is NULL).
 * n elements each. Exact. */
struct pl_sgd_args {
    size_t n;
    double lr, momentum, weight_decay;
    void *param, *velocity;
    const void *grad;
};

/* dst = (a + b) scale. n elements. dst may be a or b. Exact. */
struct pl_add_args {
    size_t n;
    double scale;
    const void *a, *b;
    void *dst;
};

/* X(function, struct of arguments) */
#define PL_KERNEL_LIST(X)                                                                          \
    X(linear_forward, linear)                                                                      \
    X(linear_backward, linear)                                                                     \
    X(relu_forward, relu)                                                                          \
    X(relu_backward, relu)                                                                         \
    X(cross_entropy_forward, cross_entropy)                                                        \
    X(cross_entropy_backward, cross_entropy)                                                       \
    X(correct, correct)                                                                            \
    X(sgd, sgd)                                                                                    \
    X(add, add)

struct pl_kernels {
    const char *name; /* e.g. "cpu/v3" */
    enum pl_real real;
#define PL_KERNEL_MEMBER(function, args) void (*function)(const struct pl_##args##_args *);
    PL_KERNEL_LIST(PL_KERNEL_MEMBER)
#undef PL_KERNEL_MEMBER
};

/* The truth, in either type. */
const struct pl_kernels *pl_kernels_ref(enum pl_real real);

/* The vectorised loops for f32, built for several x86-64 levels; level 0 runs everywhere. NULL
 * where this machine cannot run the level, or there is none of that number. */
const struct pl_kernels *pl_kernels_cpu(unsigned level);

/* The best table for this machine and type. Never NULL. */
const struct pl_kernels *pl_kernels_best(enum pl_real real);

/* Bytes of an element. */
static inline size_t pl_real_size(enum pl_real real)
{
    return real == PL_REAL_F64 ? sizeof(double) : sizeof(float);
}

/* Threads that this process may use: the smallest of its affinity mask, its cgroup's CPU quota
 * (rounded up) and $OMP_NUM_THREADS; at least 1. */
unsigned pl_threads_available(void);

#endif
