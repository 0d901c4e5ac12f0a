/* SPDX-License-Identifier: MIT */
#include "runtime/engine/tape.h"

#include <string.h>

void pl_tape_init(struct pl_tape *tape, const struct pl_kernels *kernels, bool want_grad)
{
    *tape = (struct pl_tape){.kernels = kernels, .want_grad = want_grad};
}

void pl_tape_finish(struct pl_tape *tape)
{
    free(tape->nodes);
    pl_bump_finish(&tape->bump);
    *tape = (struct pl_tape){0};
}

void pl_tape_begin(struct pl_tape *tape)
{
    tape->cursor = 0;
    tape->changed = false;
}

/* Forgets the nodes from the cursor on. */
static void cut(struct pl_tape *tape)
{
    if (tape->cursor == tape->n)
        return;
    pl_bump_reset(&tape->bump, tape->nodes[tape->cursor].before);
    tape->n = tape->cursor;
    tape->planned_loss = NULL;
    if (!tape->changed)
        tape->recordings++;
    tape->changed = true;
}

static bool same(const struct pl_node *node,
                 const struct pl_op *op,
                 plume_tensor *const *in,
                 int attr,
                 size_t rank,
                 const size_t *shape)
{
    if (node->op != op || node->attr != attr || node->out->rank != rank ||
        memcmp(node->out->shape, shape, rank * sizeof(*shape)) != 0)
        return false;
    for (size_t i = 0; i < op->n_in; i++)
        if (node->in[i] != in[i] || (in[i] && node->in_count[i] != in[i]->count))
            return false;
    return true;
}

static int grow(struct pl_tape *tape)
{
    size_t cap = tape->cap ? tape->cap * 2 : 32;
    struct pl_node *nodes;

    if (tape->n < tape->cap)
        return 0;
    nodes = reallocarray(tape->nodes, cap, sizeof(*nodes));
    if (!nodes)
        return -ENOMEM;
    tape->nodes = nodes;
    tape->cap = cap;
    return 0;
}

static int record(struct pl_tape *tape,
                  const struct pl_op *op,
                  plume_tensor *const *in,
                  int attr,
                  enum plume_dtype dtype,
                  size_t rank,
                  const size_t *shape,
                  size_t aux_bytes)
{
    struct pl_node node = {.op = op, .attr = attr, .before = pl_bump_mark(&tape->bump)};
    plume_tensor *out = pl_bump_alloc(&tape->bump, sizeof(*out));
    int r;

    if (!out || grow(tape) < 0)
        return -ENOMEM;
    r = pl_tensor_init(out, dtype, rank, shape);
    if (r < 0)
        return r;
    for (size_t i = 0; i < op->n_in; i++) {
        node.in[i] = in[i];
        node.in_count[i] = in[i] ? in[i]->count : 0;
        if (tape->want_grad && op->backward && in[i] && in[i]->wants_grad)
            out->wants_grad = true;
    }
    out->data = pl_bump_alloc(&tape->bump, out->count * pl_dtype_size(dtype));
    if (out->wants_grad)
        out->grad = pl_bump_alloc(&tape->bump, out->count * pl_dtype_size(dtype));
    if (aux_bytes)
        node.aux = pl_bump_alloc(&tape->bump, aux_bytes);
    if (!out->data || (out->wants_grad && !out->grad) || (aux_bytes && !node.aux))
        return -ENOMEM;
    node.out = out;
    tape->nodes[tape->n++] = node;
    return 0;
}

int pl_tape_apply(struct pl_tape *tape,
                  const struct pl_op *op,
                  plume_tensor *const *in,
                  int attr,
                  enum plume_dtype dtype,
                  size_t rank,
                  const size_t *shape,
                  size_t aux_bytes,
                  plume_tensor **ret,
                  struct pl_error *err)
{
    int r;

    if (tape->cursor < tape->n && !same(&tape->nodes[tape->cursor], op, in, attr, rank, shape))
        cut(tape);
    if (tape->cursor == tape->n) {
        struct pl_bump_mark before = pl_bump_mark(&tape->bump);

        r = record(tape, op, in, attr, dtype, rank, shape, aux_bytes);
        if (r < 0) {
            pl_bump_reset(&tape->bump, before);
            return pl_error_errno(err, r, "cannot record op '%s'", op->name);
        }
        if (!tape->changed)
            tape->recordings++;
        tape->changed = true;
        tape->planned_loss = NULL;
    }
    if (!tape->dry)
        op->forward(tape->kernels, &tape->nodes[tape->cursor]);
    *ret = tape->nodes[tape->cursor++].out;
    return 0;
}

void pl_tape_end(struct pl_tape *tape)
{
    cut(tape);
}

/* Finds the nodes on the way to the loss, and who is the first to write each gradient. */
static bool plan(struct pl_tape *tape, plume_tensor *loss)
{
    bool any_param = false;

    for (size_t i = 0; i < tape->n; i++) {
        tape->nodes[i].out->reached = false;
        for (size_t k = 0; k < tape->nodes[i].op->n_in; k++)
            if (tape->nodes[i].in[k])
                tape->nodes[i].in[k]->reached = false;
    }
    loss->reached = true;
    for (size_t i = tape->n; i-- > 0;) {
        struct pl_node *node = &tape->nodes[i];

        if (!node->out->reached || !node->out->wants_grad)
            continue;
        for (size_t k = 0; k < node->op->n_in; k++) {
            plume_tensor *in = node->in[k];

            if (!in || !in->wants_grad)
                continue;
            any_param |= in->is_param;
            node->add[k] = in->is_param || in->reached;
            in->reached = true;
        }
    }
    tape->planned_loss = loss;
    return any_param;
}

int pl_tape_backward(struct pl_tape *tape,
                     plume_tensor *loss,
                     int (*after_node)(void *ctx, size_t index, struct pl_error *err),
                     void *ctx,
                     struct pl_error *err)
{
    if (loss->count != 1 || !loss->wants_grad)
        return pl_error_set(err, -EINVAL,
                            "the loss must have one element and depend on a parameter");
    if (tape->planned_loss != loss && !plan(tape, loss))
        return pl_error_set(err, -EINVAL, "the loss depends on no parameter");
    if (loss->dtype == PLUME_F64)
        *(double *)loss->grad = 1;
    else
        *(float *)loss->grad = 1;
    for (size_t i = tape->n; i-- > 0;) {
        const struct pl_node *node = &tape->nodes[i];
        int r;

        if (node->out->reached && node->out->wants_grad)
            node->op->backward(tape->kernels, node);
        if (after_node && (r = after_node(ctx, i, err)) < 0)
            return r;
    }
    return 0;
}

double pl_tape_flops(const struct pl_tape *tape, bool backward)
{
    double sum = 0;

    for (size_t i = 0; i < tape->n; i++)
        sum += tape->nodes[i].op->flops(&tape->nodes[i], backward);
    return sum;
}
