/* SPDX-License-Identifier: MIT */
/* Attention over [batch, time, heads * dim], with one packed input, or with queries, keys and
 * values. */
#include "runtime/engine/ops/op_private.h"
#include "runtime/engine/ops/partial.h"

#include <math.h>

enum { HEADS, CAUSAL };

static struct pl_attention_args attention_args(const struct pl_call *c)
{
    const plume_tensor *y = c->node->out;
    size_t width = y->shape[2], heads = (size_t)c->attr->i[HEADS];
    bool packed = c->node->n_in == 1;
    size_t next = packed ? width * pl_real_size(c->k->real) : 0;
    size_t row = packed ? 3 * width : width;
    struct pl_attention_strides in_at = {y->shape[1] * row, row, width / heads};
    struct pl_attention_strides out_at = {y->shape[1] * width, width, width / heads};
    struct pl_attention_args a = {
        .batch = y->shape[0],
        .heads = heads,
        .time = y->shape[1],
        .keys = y->shape[1],
        .dim = width / heads,
        .causal = c->attr->i[CAUSAL],
        .scale = 1 / sqrt((double)(width / heads)),
        .dq_add = c->add[0],
        .dk_add = c->add[packed ? 0 : 1],
        .dv_add = c->add[packed ? 0 : 2],
        .dy = c->out_grad,
        .y = c->out,
        .lse = c->saved,
        .q_at = in_at,
        .k_at = in_at,
        .v_at = in_at,
        .y_at = out_at,
        .dy_at = out_at,
        .dq_at = in_at,
        .dk_at = in_at,
        .dv_at = in_at,
    };
    const void **in[] = {&a.q, &a.k, &a.v};
    void **grad[] = {&a.dq, &a.dk, &a.dv};

    for (size_t i = 0; i < 3; i++) {
        size_t from = packed ? 0 : i;

        *in[i] = (const char *)c->in[from] + i * next;
        *grad[i] = c->in_grad[from] ? (char *)c->in_grad[from] + i * next : NULL;
    }
    return a;
}

static void forward(const struct pl_call *c)
{
    struct pl_attention_args args = attention_args(c);

    c->k->attention_forward(&args);
}

/* The sums over batch and time of the gradients of queries, keys and values: the gradient of the
 * bias of the layer that makes them. A row's probabilities add up to 1, whatever the scores, so the
 * sums for the values are those of dy, and the sums for the keys are 0 (what adding up dk gives is
 * nothing but what has been rounded). Only dq has to be read. */
static void sum_up(const struct pl_call *c, const struct pl_attention_args *args)
{
    size_t width = args->heads * args->dim;
    struct pl_linear_args a = {.rows = args->batch * args->time,
                               .out = width,
                               .dy_row = args->dq_at.time,
                               .db_add = c->sums_add,
                               .db_wide = true,
                               .dy = args->dq,
                               .db = c->sums};

    c->k->linear_backward(&a);
    a.dy_row = args->dy_at.time;
    a.dy = args->dy;
    a.db = (float *)c->sums + 2 * width;
    c->k->linear_backward(&a);
    a.rows = 0;
    a.db = (float *)c->sums + width;
    if (!c->sums_add)
        c->k->linear_backward(&a);
}

static void backward(const struct pl_call *c)
{
    struct pl_attention_args args = attention_args(c);

    c->k->attention_backward(&args);
    if (c->sums)
        sum_up(c, &args);
}

static bool sums_grad(const struct pl_node *node)
{
    return node->n_in == 1 && !node->add[0];
}

/* sum_up() reads dq and dy. */
static double side_bytes(const struct pl_node *node, bool backward)
{
    enum pl_real real = node->k->real;
    size_t width = node->out->shape[node->out->rank - 1];

    return backward && node->fusion.bias_of
               ? 2 * ((double)node->out->count * (double)pl_real_size(real) +
                      pl_partial_of_bias(node->out->count / width, width, real))
               : 0;
}

/* Two products forward, five backward; half of each if causal. */
static double flops(const struct pl_node *node, bool backward)
{
    double product = 2.0 * (double)node->out->count * (double)node->out->shape[1];

    return product * (node->attr.i[CAUSAL] ? 0.5 : 1) * (backward ? 5 : 2);
}

static const struct pl_op op_attention = {
    .name = "attention",
    .cast = PL_CAST_LOW,
    .needs = PL_NEEDS_ALL,
    .product = true,
    .forward = forward,
    .backward = backward,
    .sums_grad = sums_grad,
    .side_bytes = side_bytes,
    .flops = flops,
    .split = PL_SPLIT_HEADS,
};

int pl_build_attention(struct pl_tape *tape,
                       const struct pl_op_request *req,
                       plume_tensor **ret,
                       struct pl_error *err)
{
    struct pl_apply what = pl_op_like(&op_attention, req, req->in[0]);
    int64_t heads = req->args.i[HEADS];
    size_t parts = req->n_in == 1 ? 3 : 1, width;

    if (!pl_op_all_real(req) || what.rank != 3 || req->in[0]->count == 0 || req->n_in == 2)
        return pl_op_refuse(req, "wanted: [batch, time, 3 width], or three [batch, time, width]",
                            err);
    for (size_t i = 1; i < req->n_in; i++)
        for (size_t d = 0; d < 3; d++)
            if (req->in[i]->rank != 3 || req->in[i]->shape[d] != what.shape[d])
                return pl_op_refuse(req, "queries, keys and values differ in shape", err);
    width = what.shape[2] / parts;
    if (heads < 1 || width * parts != what.shape[2] || width % (size_t)heads != 0)
        return pl_op_refuse(req, "the width cannot be shared among the heads", err);
    what.shape[2] = width;
    what.attr.i[HEADS] = heads;
    what.attr.i[CAUSAL] = req->args.i[CAUSAL] != 0;
    what.saved_stats = what.shape[0] * what.shape[1] * (size_t)heads;
    return pl_tape_apply(tape, &what, ret, err);
}
