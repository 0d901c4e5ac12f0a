/* SPDX-License-Identifier: MIT */
/* The two ops at the borders of a region that ranks share (split.h; f and g of Megatron-LM's figure
 * 3): one sums backward, the other forward. */
#include "runtime/engine/ops/op_private.h"
#include "runtime/engine/ops/split_private.h"

static void copy(const struct pl_call *c, bool add, const void *src, void *dst)
{
    c->k->copy(&(struct pl_copy_args){.rank = 1,
                                      .shape = {c->node->out->count},
                                      .src_stride = {1},
                                      .dst_stride = {1},
                                      .bytes = pl_real_size(c->k->real),
                                      .add = add,
                                      .src = src,
                                      .dst = dst});
}

static void sum_over_peers(const struct pl_call *c, void *buf)
{
    struct pl_tape *tape = (struct pl_tape *)(uintptr_t)c->tape; /* for its failure */

    if (tape->peers && !tape->failed)
        tape->failed = tape->peers->sum(tape->peers->ctx, buf, c->node->out->count, c->k->real,
                                        &tape->failure);
}

static void enter_forward(const struct pl_call *c)
{
    copy(c, false, c->in[0], c->out);
}

static void enter_backward(const struct pl_call *c)
{
    sum_over_peers(c, c->out_grad);
    copy(c, c->add[0], c->out_grad, c->in_grad[0]);
}

static bool enter_scribbles(const struct pl_node *node)
{
    return node->back;
}

static const struct pl_op op_enter = {
    .name = "columns of ranks",
    .cast = PL_CAST_NONE,
    .in_f32 = true,
    .collective = true,
    .forward = enter_forward,
    .backward = enter_backward,
    .scribbles = enter_scribbles,
};

static void sum_forward(const struct pl_call *c)
{
    copy(c, false, c->in[0], c->out);
    sum_over_peers(c, c->out);
}

static void sum_backward(const struct pl_call *c)
{
    copy(c, c->add[0], c->out_grad, c->in_grad[0]);
}

static uint64_t sum_same_grad(const struct pl_node *node)
{
    return PL_NEEDS_IN(0);
}

static const struct pl_op op_sum = {
    .name = "sum over ranks",
    .cast = PL_CAST_NONE,
    .in_f32 = true,
    .collective = true,
    .forward = sum_forward,
    .backward = sum_backward,
    .same_grad = sum_same_grad,
};

static int trace(struct pl_tape *tape,
                 const struct pl_op *op,
                 plume_tensor *x,
                 plume_tensor **ret,
                 struct pl_error *err)
{
    struct pl_apply what =
        pl_op_like(op, &(struct pl_op_request){.name = op->name, .in = &x, .n_in = 1}, x);

    return pl_tape_apply(tape, &what, ret, err);
}

int pl_split_enter(struct pl_tape *tape, plume_tensor *x, plume_tensor **ret, struct pl_error *err)
{
    return trace(tape, &op_enter, x, ret, err);
}

int pl_split_sum(struct pl_tape *tape, plume_tensor *x, plume_tensor **ret, struct pl_error *err)
{
    return trace(tape, &op_sum, x, ret, err);
}

size_t pl_split_summed_bytes(const struct pl_tape *run, const struct pl_node *node)
{
    bool adds = node->op == &op_sum || (node->op == &op_enter && node->out->wants_grad);

    return run->peers && adds ? node->out->count * pl_real_size(run->kernels->real) : 0;
}
