/* SPDX-License-Identifier: MIT */
/* Arguments of linear layers, matmul, and ops on images: convolution, pooling, batch norm. Rules
 * for all ops: kernels/kernels.h, which includes this. */
#ifndef PL_KERNELS_ARGS_LINEAR_H
#define PL_KERNELS_ARGS_LINEAR_H

#include "kernels/anywhere.h"
#include "kernels/half.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* gelu(x) = x Phi(x) with the normal distribution's Phi, or its approximation by tanh (Hendrycks
 * and Gimpel, arXiv 1606.08415); silu(x) = x / (1 + e^-x). */
/* New ones are appended: NONE and RELU stay first (pl_activation_needs_pre), and modules have the
 * numbers (PLUME_RELU and so on in plume/ops.h). */
enum pl_activation {
    PL_ACT_NONE,
    PL_ACT_RELU,
    PL_ACT_GELU,
    PL_ACT_GELU_TANH,
    PL_ACT_SILU,
    PL_ACT_TANH,
    PL_ACT_SIGMOID,
};

/* True if backward reads the activation's input. The backward of relu reads y, that of the identity
 * reads neither. */
static inline bool pl_activation_needs_pre(enum pl_activation act)
{
    return act > PL_ACT_RELU;
}

/* y = act(z), z = x w^T + b. x [rows, in], w [out, in], b [out], y [rows, out]. Backward: dz = dy
 * act'(z); dx (+)= dz w; dw (+)= dz^T x; db (+)= column sums of dz. pre [rows, out] keeps z for
 * backward if pl_activation_needs_pre(), else it may be NULL; backward reads y only for relu. dz
 * [rows, out] is the caller's scratch; it may be dy. dw_wide, db_wide (of 16-bit tables): dw, db is
 * f32, and not rounded to 16 bits. If x_pre [rows, in] is not NULL, x is x_act(x_pre), and backward
 * dx is multiplied by x_act'(x_pre): it is then the dz of the layer before. x_act needs pre, and
 * dx_add is not set. dx_sums [in], if it is not NULL, (+)= the column sums of dx as it was rounded:
 * the db of that layer. They are f32 in 16-bit tables, and go with x_pre only. dy_row: if it is not
 * 0, backward does nothing but db, without an activation, and the rows of dy are so many elements
 * apart; dz is not used. */
struct pl_linear_args {
    size_t rows, in, out, dy_row;
    enum pl_activation act, x_act;
    bool dx_add, dw_add, db_add, dw_wide, db_wide, dx_sums_add;
    const void *x, *x_pre, *w, *b, *dy;
    void *y, *pre; /* written forward, read backward */
    void *dz, *dx, *dw, *db, *dx_sums;
};

/* For each i < batch: c_i (+)= scale op(a_i) op(b_i); op(a_i) [m, k], op(b_i) [k, n], c_i [m, n].
 * op transposes if its flag is set: a_i itself is then [k, m], b_i [n, k]. Rows are *_row elements
 * apart, matrices *_batch (0: all share one; not for c). The gradients are products of this kind:
 * da = dc op(b)^T, db = op(a)^T dc, or their transposes. */
struct pl_matmul_args {
    size_t batch, m, n, k;
    bool a_transposed, b_transposed, add;
    size_t a_row, b_row, c_row, a_batch, b_batch, c_batch;
    double scale;
    const void *a, *b;
    void *c;
};

/* Cross-correlation as in PyTorch's conv2d, one group, no dilation: y[n, o, i, j] = act(b[o] + sum
 * over c, u, v of w[o, c, u, v] x[n, c, i stride + u - pad, ...]). x [batch, in, height, width], w
 * [out, in, kernel_h, kernel_w], b [out] or NULL, y [batch, out, pl_conv_size(height, ...),
 * pl_conv_size(width, ...)], dy like y; act is relu or none. Backward: dz = dy where relu passed,
 * else 0 (dy is not changed); dx, dw, db follow from dz. If there is no memory for scratch, the
 * outputs are NaN. last: channels are last in memory, x [batch, height, width, in], w [out,
 * kernel_h, kernel_w, in], y [batch, oh, ow, out], and so are dx, dw, dy.
 * Mend: unless *bad is 0, forward for those elements of y alone whose window has an x that is not
 * finite; bad is used by nothing else. */
struct pl_conv2d_args {
    size_t batch, in, height, width, out;
    size_t kernel_h, kernel_w, stride_h, stride_w, pad_h, pad_w;
    bool relu, last;
    bool dx_add, dw_add, db_add;
    const void *x, *w, *b, *dy;
    void *y; /* written forward, read backward if relu */
    void *dx, *dw, *db;
    const uint32_t *bad;
};

/* Number of windows along an axis; 0 if the kernel is longer than the padded axis. */
static inline size_t pl_conv_size(size_t size, size_t kernel, size_t stride, size_t pad)
{
    return size + 2 * pad < kernel ? 0 : (size + 2 * pad - kernel) / stride + 1;
}

/* Pooling of each of `planes` [height, width] (batch times channels), windows as conv2d's; pad is
 * at most half the kernel, and kernel_h * kernel_w <= 256, so that no window is empty. max: y = the
 * window's maximum, ignoring the padding; a NaN wins, else the first of equals. which [planes, oh,
 * ow, inner] is its tap, u * kernel_w + v. Backward: dx gets dy at that element. avg: y = sum over
 * the window / (kernel_h * kernel_w), padding counts as 0 (PyTorch's count_include_pad); which is
 * not used. x, dx [planes, height, width, inner], y, dy [planes, oh, ow, inner]: with inner above 1
 * so many planes (channels that are last) lie between each other. */
struct pl_pool2d_args {
    size_t planes, height, width, inner;
    size_t kernel_h, kernel_w, stride_h, stride_w, pad_h, pad_w;
    bool dx_add;
    const void *x, *dy;
    uint8_t *which; /* written forward, read backward */
    void *y, *dx;
};

/* Batch normalisation (Ioffe and Szegedy, arXiv 1502.03167) over x [batch, channels, inner], per
 * channel. y = relu or identity of (x - mean) inv_std w + b, inv_std = 1 / sqrt(var + eps); w, b
 * may be NULL: 1 and 0. Training has two functions per direction; between them the caller may add
 * the sums of several ranks, and the result is then that of their joint batch.
 *
 * Forward: batchnorm_sums writes sums [1 + 2 channels] = number of values per channel, sums of x,
 * sums of x^2. batchnorm_forward computes mean and inv_std [channels] from them and, if
 * running_mean is given, running = (1 - momentum) running + momentum (mean or unbiased variance),
 * as PyTorch does. In evaluation only batchnorm_forward is called, and uses running_mean and
 * running_var. Such sums of n values lose up to 3 n 2^-53 of the mean's square. With `alone` the
 * host takes the variance from x if that is too much (pl_batchnorm_lost()), in f64 always, and GPUs
 * sum what x, if not of 16 bits, is more than its channel's first. Without, the caller may see that
 * sums have lost a variance: with `shift` [channels], means from these sums, both functions take x
 * - shift for x but for y, and add shift to the mean of that.
 *
 * Backward, with dz = dy where relu passed: batchnorm_back_sums writes back_sums [1 + 2 channels] =
 * number of values, sums of dz, sums of dz (x - mean), and this rank's db (+)= the former, dw (+)=
 * inv_std times the latter. batchnorm_backward writes dx (+)= w inv_std (dz - mean of dz - (x -
 * mean) inv_std^2 mean of dz (x - mean)), in evaluation w inv_std dz.
 *
 * With `alone` the caller adds no sums of others. The functions that sum up may then do all that
 * needs one number per channel, in place of sums: batchnorm_sums mean, inv_std and running_*, and
 * batchnorm_back_sums `factors`, of the type of mean. Kernels of so few numbers take a GPU as long
 * as it takes to start them.
 *
 * If r is given, it is added before relu; dr (+)= dz, by batchnorm_back_sums, where it is given.
 * Without dr_add batchnorm_backward may read dr instead of y and dy.
 *
 * In f32 tables x and dx may have 16 bits of type `half` (x_half), and y, dy, r and dr (y_half).
 * Other tables ignore both. Each result is rounded as if a kernel of its own computed it, also the
 * one to which r is added. relu passes what is above 0 after rounding. Backward
 * may read from y what relu has passed. Where there is no r, it may also compute it from x, as
 * forward does, unless relu_of_y is set. */
#define PL_BATCHNORM_FACTORS 7

struct pl_batchnorm_args {
    size_t batch, channels, inner;
    double eps, momentum;
    bool training, relu, alone;
    bool dx_add, dw_add, db_add, dr_add;
    bool x_half, y_half, relu_of_y;
    enum pl_half half;
    const void *x, *w, *b, *r, *dy;
    double *sums, *back_sums;         /* doubles in every table */
    const double *shift;              /* not with `alone`; NULL: 0 */
    void *running_mean, *running_var; /* [channels] */
    void *factors;                    /* [PL_BATCHNORM_FACTORS, channels], if alone */
    void *mean, *inv_std, *y;         /* written forward, read backward */
    void *dx, *dw, *db, *dr;
};

/* True if var, the mean of n squares less m^2 in f64, may be wrong by 3 2^-21 of it, or by more. */
static inline bool pl_batchnorm_lost(double n, double m, double var)
{
    return var < m * m * n * 0x1p-32;
}

/* The windows of x [batch, channels, height, width] as rows of cols [groups, batch, oh, ow,
 * channels / groups, kernel_h, kernel_w]: its element (g, n, i, j, c, u, v) is x at (n, g channels
 * / groups + c, i stride_h + u dilation_h - pad_h, ...), or 0 in the padding. unfold: dst = cols
 * (+)= from src = x. fold, its transpose: dst = x (+)= the sums of src = cols over the windows, in
 * their order. Each is the other's gradient. Exact. */
struct pl_unfold_args {
    size_t batch, channels, height, width, groups;
    size_t kernel_h, kernel_w, stride_h, stride_w, pad_h, pad_w, dilation_h, dilation_w;
    bool add;
    const void *src;
    void *dst;
};

/* Number of windows along an axis of a kernel that reaches over dilation (kernel - 1) + 1. */
PL_ANYWHERE static inline size_t
pl_window_count(size_t size, size_t kernel, size_t stride, size_t pad, size_t dilation)
{
    size_t reach = dilation * (kernel - 1) + 1;

    return size + 2 * pad < reach ? 0 : (size + 2 * pad - reach) / stride + 1;
}

/* Squares of 2 x 2 elements of x [batch, height, width, channels], side by side, with their
 * channels together, as y [batch, rows, columns, 2, 2, wide], where wide is at least channels: its
 * element (n, i, j, u, v, c) is x at (n, 2 i + u - before_h, 2 j + v - before_w, c), or 0 where x
 * has none. space_to_depth: dst = y of src = x. depth_to_space: dst = x (+)= its elements in src =
 * y, 0 where y has none. With this a convolution of few channels at every second place is one of 4
 * wide channels at every place. bad: if not NULL, space_to_depth writes 0 for an element that is
 * not finite, and adds to *bad for each, or for some of them together. Exact. */
struct pl_squares_args {
    size_t batch, height, width, channels;
    size_t rows, columns, wide, before_h, before_w;
    bool add; /* in depth_to_space */
    uint32_t *bad;
    const void *src;
    void *dst;
};

/* New ones are appended: modules have the numbers (plume/ops_image.h). */
enum pl_resample {
    PL_RESAMPLE_NEAREST,
    PL_RESAMPLE_LINEAR,  /* between the centres of the elements */
    PL_RESAMPLE_CORNERS, /* the same, the first and the last centre kept (align_corners) */
    PL_RESAMPLE_AREA,    /* means of ranges, as of an adaptive average pool */
};

/* y [outer, m, inner]: x [outer, n, inner] with m elements instead of n, as PyTorch's interpolate()
 * and adaptive_avg_pool1d(). Backward: dx (+)= the transpose. */
struct pl_resample_args {
    size_t outer, n, m, inner;
    enum pl_resample mode;
    bool dx_add;
    const void *x, *dy;
    void *y, *dx;
};

/* The elements of x that make element i of y: first .. first + count - 1. The first one's weight is
 * `weight`, that of each other one `others`. Neither end of the range falls as i grows. */
struct pl_taps {
    size_t first, count;
    double weight, others;
};

PL_ANYWHERE static inline struct pl_taps
pl_taps_of(enum pl_resample mode, size_t n, size_t m, size_t i)
{
    struct pl_taps t = {0, 1, 1, 0};
    double at;

    if (mode == PL_RESAMPLE_NEAREST) { /* PyTorch's product in f32 */
        float scale = (float)n / (float)m, place = (float)i * scale;

        t.first = (size_t)place < n ? (size_t)place : n - 1;
        return t;
    }
    if (mode == PL_RESAMPLE_AREA) {
        t.first = i * n / m;
        t.count = ((i + 1) * n + m - 1) / m - t.first;
        t.weight = t.others = 1 / (double)t.count;
        return t;
    }
    if (mode == PL_RESAMPLE_CORNERS)
        at = m > 1 ? (double)i * ((double)(n - 1) / (double)(m - 1)) : 0;
    else
        at = ((double)i + 0.5) * ((double)n / (double)m) - 0.5;
    at = at > 0 ? at : 0;
    t.first = (size_t)at < n ? (size_t)at : n - 1;
    if (t.first + 1 < n) {
        t.count = 2;
        t.others = at - (double)t.first;
        t.weight = 1 - t.others;
    }
    return t;
}

/* X(function, struct of arguments) */
#define PL_KERNEL_LIST_LINEAR(X)                                                                   \
    X(linear_forward, linear)                                                                      \
    X(linear_backward, linear)                                                                     \
    X(matmul, matmul)                                                                              \
    X(conv2d_forward, conv2d)                                                                      \
    X(conv2d_backward, conv2d)                                                                     \
    X(conv2d_mend, conv2d)                                                                         \
    X(max_pool2d_forward, pool2d)                                                                  \
    X(max_pool2d_backward, pool2d)                                                                 \
    X(avg_pool2d_forward, pool2d)                                                                  \
    X(avg_pool2d_backward, pool2d)                                                                 \
    X(batchnorm_sums, batchnorm)                                                                   \
    X(batchnorm_forward, batchnorm)                                                                \
    X(batchnorm_back_sums, batchnorm)                                                              \
    X(batchnorm_backward, batchnorm)                                                               \
    X(unfold, unfold)                                                                              \
    X(fold, unfold)                                                                                \
    X(space_to_depth, squares)                                                                     \
    X(depth_to_space, squares)                                                                     \
    X(resample_forward, resample)                                                                  \
    X(resample_backward, resample)

#endif
