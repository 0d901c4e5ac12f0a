/* SPDX-License-Identifier: MIT */
/* The ops of plume/module.h, which includes this. Each takes and returns tensors of the engine;
 * NULL after a failure, which the engine reports when the hook returns. Shapes are in brackets. An
 * op is only written down when it is called, and runs after the hook has returned: a result has no
 * value before that. All are differentiable but where it says so. */
#ifndef PL_OPS_H
#define PL_OPS_H

#ifndef PL_MODULE_H
#error "include <plume/module.h>"
#endif

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

/* act(x w^T + b). x [..., in], w [out, in], b [out] or NULL; the result is [..., out]. An x whose
 * last dimension is not `in` but whose dimensions behind the first are as many in all is taken as
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

/* act(x), element by element, of x's shape. */
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

/* How many rows have their largest logit at the label; one element, without gradient. */
static inline plume_tensor *
plume_correct(struct plume_context *pl, plume_tensor *logits, plume_tensor *labels)
{
    plume_tensor *in[] = {logits, labels};

    return plume_op_call(pl, PLUME_OP_CORRECT, in, 2, NULL);
}

/* a + b, of one shape. */
static inline plume_tensor *plume_add(struct plume_context *pl, plume_tensor *a, plume_tensor *b)
{
    plume_tensor *in[] = {a, b};

    return plume_op_call(pl, PLUME_OP_ADD, in, 2, NULL);
}

/* The same elements in row-major order as [shape[0], ... shape[rank-1]]; one dimension may be 0,
 * which stands for what is left. Nothing is copied unless x is a view that is not dense. */
static inline plume_tensor *
plume_reshape(struct plume_context *pl, plume_tensor *x, size_t rank, const size_t *shape)
{
    struct plume_op_args args = {{(int64_t)rank}, {0}};

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

    for (size_t i = 0; i < PLUME_RANK_MAX; i++)
        args.i[i] = i < pl->api->shape(x, NULL) ? (int64_t)order[i] : 0;
    return plume_op_call(pl, PLUME_OP_PERMUTE, &x, 1, &args);
}

/* Dimensions a and b change places, as a view. */
static inline plume_tensor *
plume_transpose(struct plume_context *pl, plume_tensor *x, size_t a, size_t b)
{
    size_t order[PLUME_RANK_MAX];

    for (size_t i = 0; i < PLUME_RANK_MAX; i++)
        order[i] = i == a ? b : i == b ? a : i;
    return plume_permute(pl, x, order);
}

/* The n tensors one behind the other along dimension 0; their other dimensions are alike. */
static inline plume_tensor *plume_cat(struct plume_context *pl, size_t n, plume_tensor *const *list)
{
    return plume_op_call(pl, PLUME_OP_CAT, list, n, NULL);
}

#endif
