/* SPDX-License-Identifier: MIT */
/* The ops of plume/module.h, which includes this. Each takes and returns tensors of the engine;
 * NULL after a failure, which the engine reports when the hook returns. Shapes are in brackets. A
 * call only records the op, which runs after the hook has returned: a result has no value before
 * that. All ops are differentiable unless noted. */
#ifndef PL_OPS_H
#define PL_OPS_H

#include <errno.h>

#include "plume/module.h" /* which includes this at its end; whichever is first, both are there */

/* The number in struct plume_op_args' `i` that is not 0 if an op is to run in f32 at each level of
 * mixed precision: plume/ops_f32.h. */
#define PLUME_OP_ARG_F32 7

enum plume_activation {
    PLUME_IDENTITY = 0,
    PLUME_RELU = 1,      /* max(x, 0) */
    PLUME_GELU = 2,      /* x Phi(x), Phi of the normal distribution */
    PLUME_GELU_TANH = 3, /* its approximation by tanh (arXiv 1606.08415) */
    PLUME_SILU = 4,      /* x / (1 + e^-x) */
    PLUME_TANH = 5,
    PLUME_SIGMOID = 6,
};

static inline plume_tensor *plume_op_call(struct plume_context *pl,
                                          enum plume_op op,
                                          plume_tensor *const *in,
                                          size_t n_in,
                                          const struct plume_op_args *args)
{
    return pl->api->op(pl, op, in, n_in, args);
}

/* Fails, with a text such as "lstm: x, w_ih or w_hh is NULL"; an earlier failure stays the reason.
 * Returns NULL. */
static inline plume_tensor *plume_refuse_null(struct plume_context *pl, const char *text)
{
    pl->api->fail(pl, -EINVAL, text);
    return NULL;
}

/* act(x w^T + b). x [..., in], w [out, in], b [out] or NULL; the result is [..., out]. If the last
 * dimension of x is not `in`, but the product of its dimensions after the first is, x is taken as
 * [rows, in]. */
static inline plume_tensor *plume_linear(struct plume_context *pl,
                                         plume_tensor *x,
                                         plume_tensor *w,
                                         plume_tensor *b,
                                         enum plume_activation act)
{
    plume_tensor *in[] = {x, w, b};
    struct plume_op_args args = {{(int64_t)act}, {0}};

    return plume_op_call(pl, PLUME_OP_LINEAR, in, b ? 3 : 2, &args);
}

/* act(x), elementwise, of x's shape. */
static inline plume_tensor *
plume_activate(struct plume_context *pl, plume_tensor *x, enum plume_activation act)
{
    struct plume_op_args args = {{(int64_t)act}, {0}};

    return plume_op_call(pl, PLUME_OP_UNARY, &x, 1, &args);
}

/* max(x, 0), of x's shape. */
static inline plume_tensor *plume_relu(struct plume_context *pl, plume_tensor *x)
{
    return plume_activate(pl, x, PLUME_RELU);
}

/* Mean over all rows of -log softmax(logits)[label], in nats; logits [..., classes], labels [...]
 * of PLUME_I32. The result has one element. */
static inline plume_tensor *
plume_cross_entropy(struct plume_context *pl, plume_tensor *logits, plume_tensor *labels)
{
    plume_tensor *in[] = {logits, labels};

    return plume_op_call(pl, PLUME_OP_CROSS_ENTROPY, in, 2, NULL);
}

/* The number of rows whose largest logit is at the label; one element, no gradient. */
static inline plume_tensor *
plume_correct(struct plume_context *pl, plume_tensor *logits, plume_tensor *labels)
{
    plume_tensor *in[] = {logits, labels};

    return plume_op_call(pl, PLUME_OP_CORRECT, in, 2, NULL);
}

/* a + b. Shapes are broadcast by numpy's rule: from the last dimension on, two sizes are equal, or
 * one of them is 1 (or missing) and is repeated. Cheapest is a b whose shape is the end of a's, or
 * one element; others are repeated in memory first. */
static inline plume_tensor *plume_add(struct plume_context *pl, plume_tensor *a, plume_tensor *b)
{
    plume_tensor *in[] = {a, b};
    struct plume_op_args args = {{0}, {0}};

    return plume_op_call(pl, PLUME_OP_BINARY, in, 2, &args);
}

/* a - b, shapes as for plume_add(). */
static inline plume_tensor *plume_sub(struct plume_context *pl, plume_tensor *a, plume_tensor *b)
{
    plume_tensor *in[] = {a, b};
    struct plume_op_args args = {{1}, {0}};

    return plume_op_call(pl, PLUME_OP_BINARY, in, 2, &args);
}

/* a b, elementwise, shapes as for plume_add(). */
static inline plume_tensor *plume_mul(struct plume_context *pl, plume_tensor *a, plume_tensor *b)
{
    plume_tensor *in[] = {a, b};
    struct plume_op_args args = {{2}, {0}};

    return plume_op_call(pl, PLUME_OP_BINARY, in, 2, &args);
}

/* a / b, shapes as for plume_add(). */
static inline plume_tensor *plume_div(struct plume_context *pl, plume_tensor *a, plume_tensor *b)
{
    plume_tensor *in[] = {a, b};
    struct plume_op_args args = {{3}, {0}};

    return plume_op_call(pl, PLUME_OP_BINARY, in, 2, &args);
}

/* scale x + shift. */
static inline plume_tensor *
plume_scale(struct plume_context *pl, plume_tensor *x, double scale, double shift)
{
    struct plume_op_args args = {{0}, {scale, shift}};

    return plume_op_call(pl, PLUME_OP_AFFINE, &x, 1, &args);
}

/* x as a constant: no gradient flows through it (PyTorch's detach()). Through x + detach(q - x) the
 * value is q's and the gradient goes to x (straight-through, arXiv 1308.3432). */
static inline plume_tensor *plume_detach(struct plume_context *pl, plume_tensor *x)
{
    return plume_op_call(pl, PLUME_OP_DETACH, &x, 1, NULL);
}

/* In training each element is 0 with probability p, else x / (1 - p); otherwise x itself. The
 * random numbers depend on the seed, the step and the rank, so a resumed run gets the same ones. */
static inline plume_tensor *plume_dropout(struct plume_context *pl, plume_tensor *x, double p)
{
    struct plume_op_args args = {{0}, {p}};

    return plume_op_call(pl, PLUME_OP_DROPOUT, &x, 1, &args);
}

/* Sum over dimensions first .. end - 1, which are removed from the shape (one element: [1]). */
static inline plume_tensor *
plume_sum(struct plume_context *pl, plume_tensor *x, size_t first, size_t end)
{
    struct plume_op_args args = {{(int64_t)first, (int64_t)end, 0, 0}, {0}};

    return plume_op_call(pl, PLUME_OP_REDUCE, &x, 1, &args);
}

/* The same for the mean. */
static inline plume_tensor *
plume_mean(struct plume_context *pl, plume_tensor *x, size_t first, size_t end)
{
    struct plume_op_args args = {{(int64_t)first, (int64_t)end, 0, 1}, {0}};

    return plume_op_call(pl, PLUME_OP_REDUCE, &x, 1, &args);
}

/* Mean of (a - b)^2 over all elements; one element. a and b have equally many, in the same order:
 * [rows] fits [rows, 1], and [rows, 64] fits [rows, 8, 8]. Nothing is broadcast. */
static inline plume_tensor *plume_mse(struct plume_context *pl, plume_tensor *a, plume_tensor *b)
{
    plume_tensor *in[] = {a, b};

    return plume_op_call(pl, PLUME_OP_MSE, in, 2, NULL);
}

/* a b, matrices in the last two dimensions: [..., m, k] by [..., k, n] (or [k, n] for all) is [...,
 * m, n]. A transposed one is stored with these two dimensions swapped. */
static inline plume_tensor *plume_matmul(
    struct plume_context *pl, plume_tensor *a, plume_tensor *b, int a_transposed, int b_transposed)
{
    plume_tensor *in[] = {a, b};
    struct plume_op_args args = {{a_transposed, b_transposed}, {0}};

    return plume_op_call(pl, PLUME_OP_MATMUL, in, 2, &args);
}

/* (x - mean) / sqrt(var + eps) gamma + beta over the last dimension n; gamma, beta [n]. beta, or
 * both, may be NULL. eps 0 means 1e-5; below 0 is refused. */
static inline plume_tensor *plume_layernorm(
    struct plume_context *pl, plume_tensor *x, plume_tensor *gamma, plume_tensor *beta, double eps)
{
    plume_tensor *in[] = {x, gamma, beta};
    struct plume_op_args args = {{0}, {eps}};

    return plume_op_call(pl, PLUME_OP_LAYERNORM, in, beta ? 3 : gamma ? 2 : 1, &args);
}

/* Over the last dimension. */
static inline plume_tensor *plume_softmax(struct plume_context *pl, plume_tensor *x)
{
    return plume_op_call(pl, PLUME_OP_SOFTMAX, &x, 1, NULL);
}

static inline plume_tensor *plume_log_softmax(struct plume_context *pl, plume_tensor *x)
{
    struct plume_op_args args = {{1}, {0}};

    return plume_op_call(pl, PLUME_OP_SOFTMAX, &x, 1, &args);
}

/* x / max(|x|, eps) over the last dimension, |x| its Euclidean length; eps 0 means 1e-12; below 0
 * is refused. */
static inline plume_tensor *plume_normalize(struct plume_context *pl, plume_tensor *x, double eps)
{
    struct plume_op_args args = {{0}, {eps}};

    return plume_op_call(pl, PLUME_OP_NORMALIZE, &x, 1, &args);
}

/* Rows of table [vocabulary, dim] at ids (PLUME_I32 [...]): [..., dim]. An id out of range gives
 * NaN. */
static inline plume_tensor *
plume_embedding(struct plume_context *pl, plume_tensor *table, plume_tensor *ids)
{
    plume_tensor *in[] = {table, ids};

    return plume_op_call(pl, PLUME_OP_EMBEDDING, in, 2, NULL);
}

/* Batch normalisation of each channel of x [batch, channels, ...], as PyTorch's: in training by the
 * batch's mean and variance (of all ranks' batches with --sync-batchnorm), which also update the
 * buffers mean and var with `momentum` (0 means 0.1); otherwise by the buffers. w, b: parameters;
 * mean, var: buffers that start with 0 and 1; all [channels]. eps 0 means 1e-5; below 0 both are
 * refused. In training one value per channel is refused: it has no variance. The variance is right
 * also where the mean is many standard deviations from 0: CPUs and several ranks look whether their
 * sums have lost it, and then sum what x is more than its mean. GPUs always sum what x is more than
 * its channel's first value, unless x has 16 bits. */
static inline plume_tensor *plume_batchnorm(struct plume_context *pl,
                                            plume_tensor *x,
                                            plume_tensor *w,
                                            plume_tensor *b,
                                            plume_tensor *mean,
                                            plume_tensor *var,
                                            double eps,
                                            double momentum,
                                            enum plume_activation act)
{
    plume_tensor *in[] = {x, w, b, mean, var};
    struct plume_op_args args = {{(int64_t)act}, {eps, momentum}};

    return plume_op_call(pl, PLUME_OP_BATCHNORM, in, 5, &args);
}

/* The same elements in row-major order as [shape[0], ... shape[rank-1]]; one dimension may be 0 and
 * is then inferred. Nothing is copied unless x is a view that is not dense. */
static inline plume_tensor *
plume_reshape(struct plume_context *pl, plume_tensor *x, size_t rank, const size_t *shape)
{
    struct plume_op_args args = {{(int64_t)rank}, {0}};

    if (rank && !shape)
        return plume_refuse_null(pl, "reshape: the shape is NULL");
    for (size_t i = 0; i < rank && i < PLUME_RANK_MAX; i++)
        args.i[i + 1] = (int64_t)shape[i];
    return plume_op_call(pl, PLUME_OP_RESHAPE, &x, 1, &args);
}

/* Elements first .. first + count - 1 of one dimension, as a view. */
static inline plume_tensor *
plume_slice(struct plume_context *pl, plume_tensor *x, size_t dim, size_t first, size_t count)
{
    struct plume_op_args args = {{(int64_t)dim, (int64_t)first, (int64_t)count}, {0}};

    return plume_op_call(pl, PLUME_OP_SLICE, &x, 1, &args);
}

/* Dimension i of the result is dimension order[i] of x, as a view. */
static inline plume_tensor *
plume_permute(struct plume_context *pl, plume_tensor *x, const size_t *order)
{
    struct plume_op_args args = {{0}, {0}};

    if (!order)
        return plume_refuse_null(pl, "permute: the order is NULL");
    for (size_t i = 0; i < PLUME_RANK_MAX; i++)
        args.i[i] = i < pl->api->shape(x, NULL) ? (int64_t)order[i] : 0;
    return plume_op_call(pl, PLUME_OP_PERMUTE, &x, 1, &args);
}

/* Swaps dimensions a and b, as a view. */
static inline plume_tensor *
plume_transpose(struct plume_context *pl, plume_tensor *x, size_t a, size_t b)
{
    size_t order[PLUME_RANK_MAX];

    for (size_t i = 0; i < PLUME_RANK_MAX; i++)
        order[i] = i == a ? b : i == b ? a : i;
    return plume_permute(pl, x, order);
}

/* Concatenates n tensors, 1 to 64, along dimension dim; their other dimensions are equal. */
static inline plume_tensor *
plume_cat_along(struct plume_context *pl, size_t dim, size_t n, plume_tensor *const *list)
{
    struct plume_op_args args = {{(int64_t)dim}, {0}};

    if (n && !list)
        return plume_refuse_null(pl, "cat: the list of tensors is NULL");
    return plume_op_call(pl, PLUME_OP_CAT, list, n, &args);
}

/* The same along dimension 0. */
static inline plume_tensor *plume_cat(struct plume_context *pl, size_t n, plume_tensor *const *list)
{
    return plume_cat_along(pl, 0, n, list);
}

/* 0, 1, ... n - 1 as labels: PLUME_I32 [n], no gradient. In a square matrix of similarities row i
 * belongs to column i: plume_cross_entropy(pl, similarities, plume_arange(pl, n)) is info-NCE
 * (arXiv 1807.03748). */
static inline plume_tensor *plume_arange(struct plume_context *pl, size_t n)
{
    struct plume_op_args args = {{(int64_t)n}, {0}};

    return plume_op_call(pl, PLUME_OP_ARANGE, NULL, 0, &args);
}

/* A constant tensor [shape[0], ... shape[rank-1]] of real numbers, all `value`. */
static inline plume_tensor *
plume_full(struct plume_context *pl, size_t rank, const size_t *shape, double value)
{
    struct plume_op_args args = {{(int64_t)rank}, {value}};

    if (rank && !shape)
        return plume_refuse_null(pl, "full: the shape is NULL");
    for (size_t i = 0; i < rank && i < PLUME_RANK_MAX; i++)
        args.i[i + 1] = (int64_t)shape[i];
    return plume_op_call(pl, PLUME_OP_FULL, NULL, 0, &args);
}

/* act(x * w + b): cross-correlation, as PyTorch's conv2d. x [batch, in, height, width], w [out, in,
 * kernel_h, kernel_w], b [out] or NULL; stride and zero padding apply to both directions. Result
 * [batch, out, (height + 2 pad - kernel_h) / stride + 1, ...]. act: none or relu. */
static inline plume_tensor *plume_conv2d(struct plume_context *pl,
                                         plume_tensor *x,
                                         plume_tensor *w,
                                         plume_tensor *b,
                                         size_t stride,
                                         size_t pad,
                                         enum plume_activation act)
{
    plume_tensor *in[] = {x, w, b};
    struct plume_op_args args = {{(int64_t)stride, (int64_t)pad, (int64_t)act}, {0}};

    return plume_op_call(pl, PLUME_OP_CONV2D, in, b ? 3 : 2, &args);
}

/* The maximum of each window of kernel x kernel (at most 16), of each channel of x [batch,
 * channels, height, width]. pad is at most half the kernel. */
static inline plume_tensor *plume_max_pool2d(
    struct plume_context *pl, plume_tensor *x, size_t kernel, size_t stride, size_t pad)
{
    struct plume_op_args args = {{(int64_t)kernel, (int64_t)stride, (int64_t)pad}, {0}};

    return plume_op_call(pl, PLUME_OP_POOL2D, &x, 1, &args);
}

/* The mean of each window; padding counts as zeros. */
static inline plume_tensor *plume_avg_pool2d(
    struct plume_context *pl, plume_tensor *x, size_t kernel, size_t stride, size_t pad)
{
    struct plume_op_args args = {{(int64_t)kernel, (int64_t)stride, (int64_t)pad, 1}, {0}};

    return plume_op_call(pl, PLUME_OP_POOL2D, &x, 1, &args);
}

/* Attention (arXiv 1706.03762), scaled by 1 / sqrt(width / heads). qkv [batch, time, 3 width] has
 * the queries, keys and values of each time, concatenated, as one linear layer makes them; each is
 * divided among the heads. causal: no time sees a later one. Result [batch, time, width]. Memory
 * grows linearly with time. */
static inline plume_tensor *
plume_attention(struct plume_context *pl, plume_tensor *qkv, size_t heads, int causal)
{
    struct plume_op_args args = {{(int64_t)heads, causal}, {0}};

    return plume_op_call(pl, PLUME_OP_ATTENTION, &qkv, 1, &args);
}

/* The same with three tensors [batch, time, width]. */
static inline plume_tensor *plume_attention_of(struct plume_context *pl,
                                               plume_tensor *q,
                                               plume_tensor *k,
                                               plume_tensor *v,
                                               size_t heads,
                                               int causal)
{
    plume_tensor *in[] = {q, k, v};
    struct plume_op_args args = {{(int64_t)heads, causal}, {0}};

    return plume_op_call(pl, PLUME_OP_ATTENTION, in, 3, &args);
}

#include "plume/ops_f32.h"
#include "plume/ops_index.h"
#include "plume/ops_math.h"

#endif
