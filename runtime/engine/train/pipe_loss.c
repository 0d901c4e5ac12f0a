/* SPDX-License-Identifier: MIT */
/* The losses that microbatches change: a microbatch counts by its rows, which is right for means
 * over rows only. */
#include "common/base/log.h"
#include "runtime/engine/ops/ops.h"
#include "runtime/engine/train/pipe.h"

/* A node's output. of_batch: it depends on the batch's fields. one: it is one such number, repeated
 * or not. read: the loss depends on it. */
struct value {
    bool of_batch, one, read;
};

static bool repeats(const struct pl_op *op)
{
    return op->view || op->split == PL_SPLIT_EXPAND || op->split == PL_SPLIT_RESHAPE;
}

static bool is_field(const plume_tensor *t)
{
    const plume_tensor *root = t->base ? t->base : t;

    return !t->tape && !root->tape && !root->is_param && root->number == 0;
}

/* False for what is not a result of this tape: a leaf. */
static bool find(const struct pl_tape *tape, const plume_tensor *t, size_t *ret)
{
    if (!t || t->tape != tape || t->node >= tape->n)
        return false;
    *ret = t->node;
    return true;
}

static void look_forward(const struct pl_tape *tape, struct value *values)
{
    for (size_t i = 0; i < tape->n; i++) {
        const struct pl_node *node = &tape->nodes[i];
        size_t from;

        for (size_t k = 0; k < node->n_in; k++)
            if (find(tape, node->in[k], &from))
                values[i].of_batch |= values[from].of_batch;
            else if (node->in[k])
                values[i].of_batch |= is_field(node->in[k]);
        values[i].one = values[i].of_batch && node->out->count == 1;
        if (repeats(node->op) && find(tape, node->in[0], &from))
            values[i].one |= values[from].one;
    }
}

/* True if a quotient, whose divisor is one number that depends on the batch, leads to the loss. */
static bool
divides_by_batch(const struct pl_tape *tape, const plume_tensor *loss, struct value *values)
{
    size_t at, from;

    if (!find(tape, loss, &at))
        return false;
    look_forward(tape, values);
    values[at].read = true;
    for (size_t i = at + 1; i-- > 0;) {
        const struct pl_node *node = &tape->nodes[i];

        if (!values[i].read)
            continue;
        if (pl_op_divides(node) && find(tape, node->in[1], &from) && values[from].one)
            return true;
        for (size_t k = 0; k < node->n_in; k++)
            if (find(tape, node->in[k], &from))
                values[from].read = true;
    }
    return false;
}

int pl_pipe_check_loss(struct pl_pipe *pipe,
                       struct pl_pipe_slot *slot,
                       const struct plume_batch *whole,
                       struct pl_error *err)
{
    const struct pl_tape *tape = &slot->lane.parts.root->tape;
    _cleanup_free_ struct value *values = NULL;
    int r;

    pl_batch_slice(whole, 0, whole->rows, slot->fields, &slot->batch);
    r = pl_lane_trace(&pipe->stages[PLUME_TRAIN], &slot->lane, &slot->batch, &slot->loss, err);
    if (r < 0)
        return r;
    values = calloc(tape->n + 1, sizeof(*values));
    if (!values)
        return pl_error_nomem(err);
    if (slot->loss && divides_by_batch(tape, slot->loss, values) && pipe->world->rank == 0 &&
        (!pipe->peers || pipe->peers->rank == 0))
        pl_log_warn("train",
                    "the loss divides by a number that it computes from the batch, such as that of "
                    "the labels that are not ignored: each microbatch has its own number, but "
                    "counts by its samples, so the mean is not that of the whole batch; divide by "
                    "the samples, or choose --microbatches 1");
    return 0;
}
