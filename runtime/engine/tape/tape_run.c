/* SPDX-License-Identifier: MIT */
/* Running a tape, forward and backward. */
#include "common/base/fs.h"
#include "runtime/engine/tape/profile.h"
#include "runtime/engine/tape/tape_private.h"
#include "runtime/engine/util/timeline.h"

struct pl_device_calls pl_tape_calls(const struct pl_tape *tape)
{
    struct pl_device_calls calls = {0};

    if (tape->timed && tape->dev->ops->calls)
        tape->dev->ops->calls(tape->dev, &calls);
    return calls;
}

static void
add_event(const struct pl_tape *tape, const struct pl_node *node, bool backward, uint64_t start)
{
    char text[96];

    if (tape->timeline)
        pl_timeline_end(tape->timeline, tape->part_index, backward ? "backward" : "forward",
                        node->op->name, pl_tensor_text(node->out, text, sizeof(text)), start);
}

static bool wants_any(const struct pl_call *call)
{
    for (size_t i = 0; i < call->node->n_in; i++)
        if (call->in_grad[i])
            return true;
    return false;
}

/* By as many calls as the node's f32 copies take. */
static void run_rows(struct pl_call *call, bool backward)
{
    const struct pl_node *node = call->node;
    struct pl_f32_copies copies = {0};
    size_t all = call->rows, most = pl_node_rows(node);

    do {
        call->rows = PL_MIN(most, all - copies.row);
        pl_node_widen_inputs(call, &copies, backward);
        if (backward)
            node->op->backward(call);
        else
            node->op->forward(call);
        pl_node_narrow_outputs(call, &copies, backward);
        copies.row += call->rows;
        for (size_t i = 1; i < node->n_in; i++)
            call->add[i] = true; /* the rows so far are in the sum */
    } while (copies.row < all);
}

static void run_node(struct pl_tape *tape, size_t index, const struct pl_backward *backward)
{
    struct pl_node *node = &tape->nodes[index];
    uint64_t start = tape->timed ? pl_now_ns() : 0, took;
    struct pl_device_calls before = pl_tape_calls(tape), done;
    struct pl_call call, product;

    pl_node_bind(tape, index, backward != NULL, &call);
    if (!backward && node->fusion.product) {
        pl_node_bind(tape, node->fusion.product - 1, false, &product);
        call.product = &product;
    }
    if (backward && !wants_any(&call))
        return; /* all gradients are the output's */
    for (size_t i = 0; backward && i < node->n_in; i++) {
        const plume_tensor *of = node->in[i] ? pl_node_grad_of(tape, node, i) : NULL;
        const plume_tensor *root = of && of->base ? of->base : of;

        if (root && root->is_param && backward->accumulate)
            call.add[i] = true;
        else if (node->first[i])
            pl_device_zero(tape->dev, pl_tape_grad(tape, root),
                           root->count * pl_dtype_size(root->dtype));
    }
    if (call.sums && backward->accumulate && pl_node_sums_of(tape, node)->is_param)
        call.sums_add = true;
    run_rows(&call, backward != NULL);
    if (tape->timed) {
        pl_device_sync(tape->dev, NULL); /* the next download returns its error */
        took = pl_now_ns() - start;
        add_event(tape, node, backward != NULL, start);
        done = pl_tape_calls(tape);
        done.library -= before.library;
        done.own -= before.own;
        pl_profile_add(tape, node, backward != NULL, took, done);
    }
}

/* A host's kernels are done: their error is known now. A device's comes with the next download. */
static int check_host(const struct pl_tape *tape, struct pl_error *err)
{
    return tape->dev->ops->host ? pl_device_sync(tape->dev, err) : 0;
}

/* Computes again what the backward of a segment needs; `last` is its last node. */
static void run_again(struct pl_tape *tape, size_t last)
{
    bool any = false;

    for (size_t i = 0; i <= last; i++) {
        if (tape->again[i].before != last + 1)
            continue;
        if (!any)
            pl_tape_switch_again(tape, last + 1, true);
        any = true;
        run_node(tape, i, NULL);
    }
}

static int run_nodes(struct pl_tape *tape,
                     size_t first,
                     size_t n,
                     const struct pl_backward *backward,
                     struct pl_error *err)
{
    for (size_t k = 0; k < n; k++) {
        size_t i = backward ? first - k : first + k;
        const struct pl_node *node = &tape->nodes[i];

        if (backward && tape->again)
            run_again(tape, i);
        if (!pl_node_runs(node, backward != NULL))
            continue;
        run_node(tape, i, backward);
        if (tape->failed < 0 && tape->failure.code)
            return pl_error_set(err, tape->failed, "%s", pl_error_text(&tape->failure));
        if (tape->failed < 0)
            return pl_error_set(err, tape->failed, "%s: the collective failed", node->op->name);
    }
    return 0;
}

/* Number of the next nodes, at most `most`, that one graph may hold. A node at which ranks meet
 * is a segment of its own. */
static size_t segment(const struct pl_tape *tape, size_t first, size_t most, bool backward)
{
    size_t n = 0;

    while (n < most) {
        const struct pl_node *node = &tape->nodes[backward ? first - n : first + n];

        if ((tape->allreduce || tape->peers) && node->op->collective)
            return PL_MAX(n, (size_t)1);
        n++;
    }
    return n;
}

/* Gets the memory of leaves for the node at this position. *n: the next nodes to run, which becomes
 * less if a later one of them needs more memory. */
static int get_leaves(struct pl_tape *tape, size_t position, size_t *n, struct pl_error *err)
{
    const struct pl_tape_leaves *leaves = tape->leaves;
    int r = 0;

    if (!leaves)
        return 0;
    if (leaves->next(leaves->ctx) <= position)
        r = leaves->need(leaves->ctx, position, err);
    if (r == 0)
        *n = PL_MIN(*n, leaves->next(leaves->ctx) - position);
    return r;
}

int pl_tape_forward(struct pl_tape *tape, struct pl_error *err)
{
    int r = 0;

    tape->failed = 0;
    tape->failure = (struct pl_error){0};
    if (tape->timed)
        r = pl_profile_begin(tape, err);
    if (r < 0)
        return r;
    pl_device_enter(tape->dev);
    pl_tape_switch_again(tape, 0, false);
    pl_tape_graphs_begin(tape);
    for (size_t i = 0, n; i < tape->n && r == 0; i += n) {
        n = segment(tape, i, tape->n - i, false);
        r = get_leaves(tape, i, &n, err);
        if (r == 0)
            r = pl_tape_graphs_run(tape, i, n, NULL, run_nodes, err);
    }
    return r == 0 ? check_host(tape, err) : r;
}

static int set_seed(struct pl_tape *tape, const struct pl_backward *what, struct pl_error *err)
{
    plume_tensor *loss = what->loss;
    bool any_param = false;
    float f32 = (float)what->seed;
    uint16_t half = pl_half_of_f32(pl_tape_half_of(loss->dtype), f32);
    const void *seed = loss->dtype == PLUME_F64   ? (const void *)&what->seed
                       : loss->dtype == PLUME_F32 ? (const void *)&f32
                                                  : &half;

    if (loss->count != 1 || !loss->wants_grad)
        return pl_tape_refuse_loss(loss, err);
    if (tape->n_seeds != 1 || tape->roots[0] != loss)
        return pl_error_set(
            err, -EINVAL, "the loss is another tensor than the one that the step was planned for");
    for (size_t i = 0; i < tape->n && !any_param; i++)
        for (size_t k = 0; k < tape->nodes[i].n_in; k++) {
            const plume_tensor *in = tape->nodes[i].in[k];

            any_param |= in && in->wants_grad &&
                         pl_tensor_root(tape->nodes[i].in[k])->tape != tape && tape->nodes[i].back;
        }
    if (!any_param)
        return pl_error_set(err, -EINVAL, "the loss depends on no parameter");
    if (loss->base) /* the other elements have no gradient */
        pl_device_zero(tape->dev, loss->base->grad, loss->base->count * pl_dtype_size(loss->dtype));
    pl_device_upload(tape->dev, pl_tensor_grad(loss), seed, pl_dtype_size(loss->dtype));
    return 0;
}

/* The node after which after_node is called next; `left` nodes have not run yet. */
static size_t next_stop(const struct pl_tape *tape, const struct pl_backward *what, size_t left)
{
    if (!what->after_node)
        return 0;
    if (!what->stop || !pl_tape_graphs_usable(tape))
        return left - 1;
    return PL_MIN(what->stop(what->ctx), left - 1);
}

int pl_tape_refuse_loss(const plume_tensor *loss, struct pl_error *err)
{
    char text[128];

    pl_tensor_text(loss, text, sizeof(text));
    return pl_error_set(err, -EINVAL,
                        loss->count == 1 ? "the loss is %s, and depends on no parameter"
                                         : "the loss is %s: it must be one number, such as a mean "
                                           "over the batch",
                        text);
}

int pl_tape_backward(struct pl_tape *tape, const struct pl_backward *what, struct pl_error *err)
{
    int r = 0;

    pl_device_enter(tape->dev);
    if (what->loss)
        r = set_seed(tape, what, err);
    for (size_t left = tape->n, n; left > 0 && r == 0; left -= n) {
        n = segment(tape, left - 1, left - next_stop(tape, what, left), true);
        r = get_leaves(tape, 2 * tape->n - left, &n, err);
        if (r == 0)
            r = pl_tape_graphs_run(tape, left - 1, n, what, run_nodes, err);
        if (r == 0)
            r = check_host(tape, err);
        if (r == 0 && what->after_node)
            r = what->after_node(what->ctx, left - n, err);
    }
    return r;
}
