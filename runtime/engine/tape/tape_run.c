/* SPDX-License-Identifier: MIT */
/* Running a tape. Kernels compute in f32 or f64. Where a node's table is of the tensors' 16-bit
 * type its kernels load and round them themselves. A table of f32 gets an f32 copy of a 16-bit
 * tensor, which is rounded back after the op (to nearest, ties to even), once a memory block (views
 * of one block share the copy). So every op has the rounding of a 16-bit machine: one an op. */
#include "common/base/fs.h"
#include "runtime/engine/tape/tape_private.h"

#include <string.h>

#define ALIGN(bytes) (((bytes) + PL_BUMP_ALIGN - 1) & ~(size_t)(PL_BUMP_ALIGN - 1))

static bool is_wide(const struct pl_node *node, const plume_tensor *t)
{
    return t && !node->op->raw && pl_dtype_is_16bit(t->dtype) &&
           pl_dtype_of_real(node->k->real) != t->dtype;
}

/* Whether an earlier input of the node lies in the same memory. */
static size_t shared_with(const struct pl_node *node, size_t i)
{
    for (size_t k = 0; k < i; k++)
        if (node->in[k] && pl_tensor_root(node->in[k]) == pl_tensor_root(node->in[i]))
            return k;
    return SIZE_MAX;
}

size_t pl_tape_wide_bytes(const struct pl_node *node)
{
    size_t sum = 0;

    for (size_t i = 0; i < node->n_in; i++)
        if (is_wide(node, node->in[i]) && shared_with(node, i) == SIZE_MAX)
            sum += 2 * ALIGN(pl_tensor_root(node->in[i])->count * sizeof(float));
    if (is_wide(node, node->out))
        sum += 2 * ALIGN(node->out->count * sizeof(float));
    return sum ? sum + PL_BUMP_ALIGN : 0;
}

void *pl_tape_data(const struct pl_tape *tape, const plume_tensor *t)
{
    const plume_tensor *root = t->base ? t->base : t;

    if (!tape->copies || !root->number)
        return pl_tensor_data(t);
    return (char *)tape->copies[root->number - 1] + t->offset * pl_dtype_size(root->dtype);
}

void *pl_tape_grad(const struct pl_tape *tape, const plume_tensor *t)
{
    const plume_tensor *root = t->base ? t->base : t;
    char *grad = pl_tensor_grad(t);

    return grad && root->is_param ? grad + tape->param_shift : grad;
}

static void widen(const struct pl_call *c, const plume_tensor *t, const void *from, float *to)
{
    c->k->widen(&(struct pl_half_args){
        .n = t->count, .type = pl_tape_half_of(t->dtype), .half = (void *)from, .wide = to});
}

static void narrow(const struct pl_call *c, const plume_tensor *t, const float *from, void *to)
{
    c->k->narrow(&(struct pl_half_args){
        .n = t->count, .type = pl_tape_half_of(t->dtype), .half = to, .wide = (void *)from});
}

/* Copies of one call; the scratch is handed out upwards. */
struct wide {
    char *next;
    float *in[PL_NODE_INPUTS_MAX], *in_grad[PL_NODE_INPUTS_MAX]; /* of the roots */
    float *out, *out_grad;
};

static float *take(struct wide *w, size_t count)
{
    void *p = w->next; /* aligned to PL_BUMP_ALIGN */

    w->next += ALIGN(count * sizeof(float));
    return p;
}

void pl_tape_point(const struct pl_tape *tape, size_t index, bool backward, struct pl_call *c)
{
    const struct pl_node *node = &tape->nodes[index];

    c->tape = tape;
    c->k = node->k;
    c->node = node;
    c->attr = &node->attr;
    c->index = index;
    for (size_t i = 0; i < node->n_in; i++) {
        const plume_tensor *in = node->in[i];

        c->in[i] = in ? pl_tape_data(tape, in) : NULL;
        c->in_grad[i] = backward && in && in->wants_grad ? pl_tape_grad(tape, in) : NULL;
        c->add[i] = node->add[i];
    }
    c->out = pl_tensor_data(node->out);
    c->out_grad = backward ? pl_tensor_grad(node->out) : NULL;
    c->aux = node->aux;
    c->scratch = node->scratch[backward];
}

/* Puts f32 copies in the place of 16-bit tensors. */
static void enter(struct pl_call *c, struct wide *w, bool backward)
{
    const struct pl_node *node = c->node;

    w->next = (char *)c->scratch + ALIGN(node->scratch_bytes);
    for (size_t i = 0; i < node->n_in; i++) {
        const plume_tensor *in = node->in[i], *root;
        size_t same;

        if (!is_wide(node, in))
            continue;
        root = pl_tensor_root(node->in[i]);
        same = shared_with(node, i);
        w->in[i] = same == SIZE_MAX ? take(w, root->count) : w->in[same];
        if (same == SIZE_MAX && (!backward || (node->op->needs & PL_NEEDS_IN(i))))
            widen(c, root, root->data, w->in[i]);
        c->in[i] = w->in[i] + in->offset;
        if (!c->in_grad[i])
            continue;
        w->in_grad[i] =
            same != SIZE_MAX && w->in_grad[same] ? w->in_grad[same] : take(w, root->count);
        if (same == SIZE_MAX || w->in_grad[i] != w->in_grad[same])
            if (c->add[i] || in->base)
                widen(c, root, pl_tape_grad(c->tape, root), w->in_grad[i]);
        c->in_grad[i] = w->in_grad[i] + in->offset;
    }
    if (!is_wide(node, node->out))
        return;
    w->out = take(w, node->out->count);
    if (backward && (node->op->needs & PL_NEEDS_OUT))
        widen(c, node->out, node->out->data, w->out);
    c->out = w->out;
    if (backward) {
        w->out_grad = take(w, node->out->count);
        widen(c, node->out, node->out->grad, w->out_grad);
        c->out_grad = w->out_grad;
    }
}

static void leave(const struct pl_call *c, const struct wide *w, bool backward)
{
    const struct pl_node *node = c->node;

    if (!backward) {
        if (w->out)
            narrow(c, node->out, w->out, node->out->data);
        return;
    }
    for (size_t i = 0; i < node->n_in; i++) {
        const plume_tensor *root = node->in[i] ? pl_tensor_root(node->in[i]) : NULL;
        size_t same = root ? shared_with(node, i) : SIZE_MAX;

        if (w->in_grad[i] && (same == SIZE_MAX || w->in_grad[same] != w->in_grad[i]))
            narrow(c, root, w->in_grad[i], pl_tape_grad(c->tape, root));
    }
}

static void run(struct pl_tape *tape, size_t index, const struct pl_backward *backward)
{
    struct pl_node *node = &tape->nodes[index];
    uint64_t start = tape->timed ? pl_now_ns() : 0;
    struct wide wide = {0};
    struct pl_call call;

    pl_tape_point(tape, index, backward != NULL, &call);
    for (size_t i = 0; backward && i < node->n_in; i++) {
        plume_tensor *root = node->in[i] ? pl_tensor_root(node->in[i]) : NULL;

        if (root && root->is_param && backward->accumulate)
            call.add[i] = true;
        else if (node->first[i])
            pl_device_zero(tape->dev, pl_tape_grad(tape, root),
                           root->count * pl_dtype_size(root->dtype));
    }
    enter(&call, &wide, backward != NULL);
    if (backward)
        node->op->backward(&call);
    else
        node->op->forward(&call);
    leave(&call, &wide, backward != NULL);
    if (tape->timed) {
        pl_device_sync(tape->dev, NULL); /* what went wrong, the next download tells */
        node->ns[backward != NULL] += pl_now_ns() - start;
    }
}

static bool
same_roots(const struct pl_tape *tape, plume_tensor *const *roots, size_t n_roots, size_t n_seeds)
{
    return tape->n_roots == n_roots && tape->n_seeds == n_seeds &&
           memcmp(tape->roots, roots, n_roots * sizeof(*roots)) == 0;
}

int pl_tape_prepare(struct pl_tape *tape,
                    plume_tensor *const *roots,
                    size_t n_roots,
                    size_t n_seeds,
                    struct pl_error *err)
{
    if (n_roots > PL_TAPE_ROOTS_MAX)
        return pl_error_set(err, -E2BIG, "a step has more than %d results", PL_TAPE_ROOTS_MAX);
    if (tape->planned && same_roots(tape, roots, n_roots, n_seeds))
        return 0;
    if (n_roots)
        memcpy(tape->roots, roots, n_roots * sizeof(*roots));
    tape->n_roots = n_roots;
    tape->n_seeds = n_seeds;
    tape->planned = false;
    return pl_tape_plan(tape, err);
}

int pl_tape_run_nodes(struct pl_tape *tape,
                      size_t first,
                      size_t n,
                      const struct pl_backward *backward,
                      struct pl_error *err)
{
    for (size_t k = 0; k < n; k++) {
        size_t i = backward ? first - k : first + k;
        const struct pl_node *node = &tape->nodes[i];

        if (backward ? !node->back : node->op->view)
            continue;
        run(tape, i, backward);
        if (tape->failed < 0)
            return pl_error_set(err, tape->failed, "%s: the ranks could not meet", node->op->name);
    }
    return 0;
}

/* How many of the next `most` nodes may be of one graph: up to one where ranks meet, or that one.
 */
static size_t stretch(const struct pl_tape *tape, size_t first, size_t most, bool backward)
{
    size_t n = 0;

    while (n < most) {
        const struct pl_node *node = &tape->nodes[backward ? first - n : first + n];

        if (tape->allreduce && node->op->meets)
            return PL_MAX(n, (size_t)1);
        n++;
    }
    return n;
}

int pl_tape_forward(struct pl_tape *tape, struct pl_error *err)
{
    int r = 0;

    tape->failed = 0;
    pl_device_enter(tape->dev);
    pl_tape_graphs_begin(tape);
    for (size_t i = 0, n; i < tape->n && r == 0; i += n) {
        n = stretch(tape, i, tape->n - i, false);
        r = pl_tape_graphs_run(tape, i, n, NULL, err);
    }
    return r;
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
        return pl_error_set(err, -EINVAL,
                            "the loss must have one element and depend on a parameter");
    if (tape->n_seeds != 1 || tape->roots[0] != loss)
        return pl_error_set(err, -EINVAL, "the loss is not what the step was planned for");
    for (size_t i = 0; i < tape->n && !any_param; i++)
        for (size_t k = 0; k < tape->nodes[i].n_in; k++) {
            const plume_tensor *in = tape->nodes[i].in[k];

            any_param |= in && in->wants_grad &&
                         pl_tensor_root(tape->nodes[i].in[k])->tape != tape && tape->nodes[i].back;
        }
    if (!any_param)
        return pl_error_set(err, -EINVAL, "the loss depends on no parameter");
    if (loss->base) /* what is not the loss has no gradient */
        pl_device_zero(tape->dev, loss->base->grad, loss->base->count * pl_dtype_size(loss->dtype));
    pl_device_upload(tape->dev, pl_tensor_grad(loss), seed, pl_dtype_size(loss->dtype));
    return 0;
}

/* The node behind which after_node is called next; `left` are not done yet. */
static size_t next_stop(const struct pl_tape *tape, const struct pl_backward *what, size_t left)
{
    if (!what->after_node)
        return 0;
    if (!what->stop || !pl_tape_graphs_usable(tape))
        return left - 1;
    return PL_MIN(what->stop(what->ctx), left - 1);
}

int pl_tape_backward(struct pl_tape *tape, const struct pl_backward *what, struct pl_error *err)
{
    int r = 0;

    pl_device_enter(tape->dev);
    if (what->loss)
        r = set_seed(tape, what, err);
    for (size_t left = tape->n, n; left > 0 && r == 0; left -= n) {
        n = stretch(tape, left - 1, left - next_stop(tape, what, left), true);
        r = pl_tape_graphs_run(tape, left - 1, n, what, err);
        if (r == 0 && what->after_node)
            r = what->after_node(what->ctx, left - n, err);
    }
    return r;
}
