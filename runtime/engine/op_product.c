/* SPDX-License-Identifier: MIT */
/* Products: linear layers. */
#include "runtime/engine/op_private.h"

#include <string.h>

_Static_assert((int)PLUME_SIGMOID == PL_ACT_SIGMOID && (int)PLUME_GELU == PL_ACT_GELU,
               "the module's numbers are the kernels'");

static struct pl_linear_args linear_args(const struct pl_call *c)
{
    const plume_tensor *w = c->node->in[1];
    bool bias = c->node->n_in > 2;

    return (struct pl_linear_args){
        .rows = c->node->out->count / w->shape[0],
        .in = w->shape[1],
        .out = w->shape[0],
        .act = (enum pl_activation)c->attr->i[0],
        .dx_add = c->add[0],
        .dw_add = c->add[1],
        .db_add = bias && c->add[2],
        .x = c->in[0],
        .w = c->in[1],
        .b = bias ? c->in[2] : NULL,
        .y = c->out,
        .pre = c->aux,
        .dy = c->out_grad,
        .dz = c->out_grad, /* nobody reads it after this node */
        .dx = c->in_grad[0],
        .dw = c->in_grad[1],
        .db = bias ? c->in_grad[2] : NULL,
    };
}

static void linear_forward(const struct pl_call *c)
{
    struct pl_linear_args args = linear_args(c);

    c->k->linear_forward(&args);
}

static void linear_backward(const struct pl_call *c)
{
    struct pl_linear_args args = linear_args(c);

    c->k->linear_backward(&args);
}

static double linear_flops(const struct pl_node *node, bool backward)
{
    double product = 2.0 * (double)node->out->count * (double)node->in[1]->shape[1];
    double small = (double)node->out->count * ((node->n_in > 2) + (node->attr.i[0] ? 1 : 0));

    if (!backward)
        return product + small;
    return product * (node->in[0]->wants_grad + node->in[1]->wants_grad) + small;
}

static const struct pl_op op_linear = {
    .name = "linear",
    .cast = PL_CAST_LOW,
    .needs = PL_NEEDS_IN(0) | PL_NEEDS_IN(1),
    .forward = linear_forward,
    .backward = linear_backward,
    .flops = linear_flops,
};

/* The mask of the activation is read off the output. */
static const struct pl_op op_linear_act = {
    .name = "linear",
    .cast = PL_CAST_LOW,
    .needs = PL_NEEDS_IN(0) | PL_NEEDS_IN(1) | PL_NEEDS_OUT,
    .forward = linear_forward,
    .backward = linear_backward,
    .flops = linear_flops,
};

int pl_build_linear(struct pl_tape *tape,
                    const struct pl_op_request *req,
                    plume_tensor **ret,
                    struct pl_error *err)
{
    const plume_tensor *x = req->in[0], *w = req->in[1], *b = req->n_in > 2 ? req->in[2] : NULL;
    enum plume_activation act = (enum plume_activation)req->args.i[0];
    struct pl_apply what;

    if (!pl_op_all_real(req) || x->rank < 1 || w->rank != 2 || w->count == 0 ||
        (b && (b->rank != 1 || b->shape[0] != w->shape[0])) ||
        (pl_op_last(x) != w->shape[1] && x->count != x->shape[0] * w->shape[1]))
        return pl_op_refuse(req, "shapes do not fit (wanted: x [..., in], w [out, in], b [out])",
                            err);
    if ((unsigned)act > PLUME_SIGMOID)
        return pl_error_set(err, -EINVAL, "linear: unknown activation %d", (int)act);
    what = pl_op_like(act == PLUME_RELU ? &op_linear_act : &op_linear, req, x);
    if (pl_op_last(x) != w->shape[1])
        what.rank = 2;
    what.shape[what.rank - 1] = w->shape[0];
    what.attr.i[0] = act;
    if (pl_activation_needs_pre((enum pl_activation)act))
        what.aux_bytes = x->count / w->shape[1] * w->shape[0] * pl_real_size(tape->kernels->real);
    return pl_tape_apply(tape, &what, ret, err);
}
