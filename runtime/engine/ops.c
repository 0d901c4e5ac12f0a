/* SPDX-License-Identifier: MIT */
#include "runtime/engine/ops.h"

#include <string.h>

#define TEXT 96

static bool is_real(const struct pl_tape *tape, const plume_tensor *t)
{
    return t->dtype == pl_dtype_of_real(tape->kernels->real);
}

static size_t rows_of(const plume_tensor *t)
{
    return t->rank ? t->shape[0] : 1;
}

/* linear */

static struct pl_linear_args linear_args(const struct pl_node *node)
{
    const plume_tensor *x = node->in[0], *w = node->in[1], *b = node->in[2];

    return (struct pl_linear_args){
        .rows = node->out->shape[0],
        .in = w->shape[1],
        .out = w->shape[0],
        .act = node->attr == PLUME_RELU ? PL_ACT_RELU : PL_ACT_NONE,
        .dx_add = node->add[0],
        .dw_add = node->add[1],
        .db_add = node->add[2],
        .x = x->data,
        .w = w->data,
        .b = b ? b->data : NULL,
        .y = node->out->data,
        .dy = node->out->grad,
        .dz = node->out->grad, /* nobody reads it after this node */
        .dx = x->wants_grad ? x->grad : NULL,
        .dw = w->wants_grad ? w->grad : NULL,
        .db = b && b->wants_grad ? b->grad : NULL,
    };
}

static void linear_forward(const struct pl_kernels *k, const struct pl_node *node)
{
    struct pl_linear_args args = linear_args(node);

    k->linear_forward(&args);
}

static void linear_backward(const struct pl_kernels *k, const struct pl_node *node)
{
    struct pl_linear_args args = linear_args(node);

    k->linear_backward(&args);
}

static double linear_flops(const struct pl_node *node, bool backward)
{
    double product = 2.0 * (double)node->out->count * (double)node->in[1]->shape[1];
    double small = (double)node->out->count * ((node->in[2] ? 1 : 0) + (node->attr ? 1 : 0));

    if (!backward)
        return product + small;
    return product * (node->in[0]->wants_grad + node->in[1]->wants_grad) + small;
}

static const struct pl_op op_linear = {
    .name = "linear",
    .n_in = 3,
    .forward = linear_forward,
    .backward = linear_backward,
    .flops = linear_flops,
};

int pl_op_linear(struct pl_tape *tape,
                 plume_tensor *x,
                 plume_tensor *w,
                 plume_tensor *b,
                 enum plume_activation act,
                 plume_tensor **ret,
                 struct pl_error *err)
{
    char xs[TEXT], ws[TEXT], bs[TEXT];
    plume_tensor *in[] = {x, w, b};
    size_t rows = rows_of(x);

    if (!is_real(tape, x) || !is_real(tape, w) || x->rank < 1 || w->rank != 2 ||
        x->count != rows * w->shape[1] ||
        (b && (!is_real(tape, b) || b->rank != 1 || b->shape[0] != w->shape[0])))
        return pl_error_set(err, -EINVAL, "linear: shapes do not fit: x %s, w %s, b %s",
                            pl_tensor_text(x, xs, sizeof(xs)), pl_tensor_text(w, ws, sizeof(ws)),
                            b ? pl_tensor_text(b, bs, sizeof(bs)) : "none");
    if (act != PLUME_IDENTITY && act != PLUME_RELU)
        return pl_error_set(err, -EINVAL, "linear: unknown activation %d", (int)act);
    return pl_tape_apply(tape, &op_linear, in, act, x->dtype, 2, (size_t[]){rows, w->shape[0]}, 0,
                         ret, err);
}

/* relu */

static struct pl_relu_args relu_args(const struct pl_node *node)
{
    return (struct pl_relu_args){
        .n = node->out->count,
        .dx_add = node->add[0],
        .x = node->in[0]->data,
        .y = node->out->data,
        .dy = node->out->grad,
        .dx = node->in[0]->grad,
    };
}

static void relu_forward(const struct pl_kernels *k, const struct pl_node *node)
{
    struct pl_relu_args args = relu_args(node);

    k->relu_forward(&args);
}

static void relu_backward(const struct pl_kernels *k, const struct pl_node *node)
{
    struct pl_relu_args args = relu_args(node);

    k->relu_backward(&args);
}

static double relu_flops(const struct pl_node *node, bool backward)
{
    return (double)node->out->count;
}

static const struct pl_op op_relu = {
    .name = "relu",
    .n_in = 1,
    .forward = relu_forward,
    .backward = relu_backward,
    .flops = relu_flops,
};

int pl_op_relu(struct pl_tape *tape, plume_tensor *x, plume_tensor **ret, struct pl_error *err)
{
    char xs[TEXT];

    if (!is_real(tape, x))
        return pl_error_set(err, -EINVAL, "relu: needs real numbers, not %s",
                            pl_tensor_text(x, xs, sizeof(xs)));
    return pl_tape_apply(tape, &op_relu, &x, 0, x->dtype, x->rank, x->shape, 0, ret, err);
}

/* cross_entropy and correct: the same inputs */

static int check_labels(const struct pl_tape *tape,
                        const char *op,
                        const plume_tensor *logits,
                        const plume_tensor *labels,
                        struct pl_error *err)
{
    char zs[TEXT], ls[TEXT];

    if (!is_real(tape, logits) || logits->rank != 2 || logits->count == 0 ||
        labels->dtype != PLUME_I32 || labels->count != logits->shape[0])
        return pl_error_set(err, -EINVAL,
                            "%s: shapes do not fit: logits %s, labels %s (wanted: [rows, classes], "
                            "i32[rows])",
                            op, pl_tensor_text(logits, zs, sizeof(zs)),
                            pl_tensor_text(labels, ls, sizeof(ls)));
    return 0;
}

static struct pl_cross_entropy_args cross_entropy_args(const struct pl_node *node)
{
    const plume_tensor *logits = node->in[0];

    return (struct pl_cross_entropy_args){
        .rows = logits->shape[0],
        .classes = logits->shape[1],
        .dx_add = node->add[0],
        .logits = logits->data,
        .labels = node->in[1]->data,
        .probs = node->aux,
        .loss = node->out->data,
        .dloss = node->out->grad,
        .dlogits = logits->grad,
    };
}

static void cross_entropy_forward(const struct pl_kernels *k, const struct pl_node *node)
{
    struct pl_cross_entropy_args args = cross_entropy_args(node);

    k->cross_entropy_forward(&args);
}

static void cross_entropy_backward(const struct pl_kernels *k, const struct pl_node *node)
{
    struct pl_cross_entropy_args args = cross_entropy_args(node);

    k->cross_entropy_backward(&args);
}

static double cross_entropy_flops(const struct pl_node *node, bool backward)
{
    /* Forward: compare, subtract, exp, add, multiply a logit; exp counted as one. */
    return (double)node->in[0]->count * (backward ? 2 : 5);
}

static const struct pl_op op_cross_entropy = {
    .name = "cross_entropy",
    .n_in = 2,
    .forward = cross_entropy_forward,
    .backward = cross_entropy_backward,
    .flops = cross_entropy_flops,
};

int pl_op_cross_entropy(struct pl_tape *tape,
                        plume_tensor *logits,
                        plume_tensor *labels,
                        plume_tensor **ret,
                        struct pl_error *err)
{
    plume_tensor *in[] = {logits, labels};
    int r = check_labels(tape, "cross_entropy", logits, labels, err);

    if (r < 0)
        return r;
    return pl_tape_apply(tape, &op_cross_entropy, in, 0, logits->dtype, 1, (size_t[]){1},
                         logits->count * pl_dtype_size(logits->dtype), ret, err);
}

static void correct_forward(const struct pl_kernels *k, const struct pl_node *node)
{
    struct pl_correct_args args = {
        .rows = node->in[0]->shape[0],
        .classes = node->in[0]->shape[1],
        .logits = node->in[0]->data,
        .labels = node->in[1]->data,
        .count = node->out->data,
    };

    k->correct(&args);
}

static double correct_flops(const struct pl_node *node, bool backward)
{
    return backward ? 0 : (double)node->in[0]->count;
}

static const struct pl_op op_correct = {
    .name = "correct",
    .n_in = 2,
    .forward = correct_forward,
    .flops = correct_flops,
};

int pl_op_correct(struct pl_tape *tape,
                  plume_tensor *logits,
                  plume_tensor *labels,
                  plume_tensor **ret,
                  struct pl_error *err)
{
    plume_tensor *in[] = {logits, labels};
    int r = check_labels(tape, "correct", logits, labels, err);

    if (r < 0)
        return r;
    return pl_tape_apply(tape, &op_correct, in, 0, logits->dtype, 1, (size_t[]){1}, 0, ret, err);
}
