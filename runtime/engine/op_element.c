/* SPDX-License-Identifier: MIT */
/* Element by element. */
#include "runtime/engine/op_private.h"

#include <string.h>

static struct pl_relu_args relu_args(const struct pl_call *c)
{
    return (struct pl_relu_args){
        .n = c->node->out->count,
        .dx_add = c->add[0],
        .x = c->in[0],
        .y = c->out,
        .dy = c->out_grad,
        .dx = c->in_grad[0],
    };
}

static void relu_forward(const struct pl_call *c)
{
    struct pl_relu_args args = relu_args(c);

    c->k->relu_forward(&args);
}

static void relu_backward(const struct pl_call *c)
{
    struct pl_relu_args args = relu_args(c);

    c->k->relu_backward(&args);
}

static double one_flop(const struct pl_node *node, bool backward)
{
    return (double)node->out->count;
}

static const struct pl_op op_relu = {
    .name = "relu",
    .needs = PL_NEEDS_OUT,
    .forward = relu_forward,
    .backward = relu_backward,
    .flops = one_flop,
};

int pl_build_unary(struct pl_tape *tape,
                   const struct pl_op_request *req,
                   plume_tensor **ret,
                   struct pl_error *err)
{
    struct pl_apply what = pl_op_like(&op_relu, req, req->in[0]);

    if (!pl_op_all_real(req))
        return pl_op_refuse(req, "needs real numbers", err);
    if (req->args.i[0] != PLUME_RELU)
        return pl_error_set(err, -EINVAL, "%s: unknown activation %d", req->name,
                            (int)req->args.i[0]);
    return pl_tape_apply(tape, &what, ret, err);
}

static void add_forward(const struct pl_call *c)
{
    c->k->add(&(struct pl_add_args){
        .n = c->node->out->count, .scale = 1, .a = c->in[0], .b = c->in[1], .dst = c->out});
}

static void add_backward(const struct pl_call *c)
{
    size_t n = c->node->out->count;

    for (size_t i = 0; i < 2; i++)
        if (c->in_grad[i] && c->add[i])
            c->k->add(&(struct pl_add_args){
                .n = n, .scale = 1, .a = c->in_grad[i], .b = c->out_grad, .dst = c->in_grad[i]});
        else if (c->in_grad[i])
            memcpy(c->in_grad[i], c->out_grad, n * pl_real_size(c->k->real));
}

static const struct pl_op op_add = {
    .name = "add",
    .forward = add_forward,
    .backward = add_backward,
    .flops = one_flop,
};

int pl_build_add(struct pl_tape *tape,
                 const struct pl_op_request *req,
                 plume_tensor **ret,
                 struct pl_error *err)
{
    const plume_tensor *a = req->in[0], *b = req->in[1];
    struct pl_apply what = pl_op_like(&op_add, req, a);

    if (!pl_op_all_real(req) || a->rank != b->rank ||
        memcmp(a->shape, b->shape, a->rank * sizeof(a->shape[0])) != 0)
        return pl_op_refuse(req, "shapes differ", err);
    return pl_tape_apply(tape, &what, ret, err);
}
