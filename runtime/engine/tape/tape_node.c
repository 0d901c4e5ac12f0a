/* SPDX-License-Identifier: MIT */
/* The pointers that one node runs on. Kernels compute in f32 or f64. Where a node's table is of the
 * tensors' 16-bit type, its kernels load and round them themselves. A table of f32 gets an f32 copy
 * of a 16-bit tensor, which is rounded back after the op (to nearest, ties to even). Views of one
 * memory block share the copy. So every op rounds as on a 16-bit machine: once per op. An op whose
 * rows are independent (`by_row`) runs several times, with copies of some rows each time. */
#include "runtime/engine/tape/tape_private.h"

/* Of the copies of one call's rows: at least these, and what the other inputs have, which each call
 * reads again. */
#define ROWS_BYTES ((size_t)1 << 20)

#define ALIGN(bytes) PL_BUMP_ALIGNED(bytes)

/* The node's kernel converts 16 bits of t itself; no other input has memory in common with t. */
static bool converts(const struct pl_node *node, const plume_tensor *t)
{
    if (!node->op->host_halves || !node->out->tape->dev->ops->host || node->k->real != PL_REAL_F32)
        return false;
    for (size_t i = 1; i < node->n_in; i++)
        if (node->in[i] &&
            (node->in[i] == t || pl_tensor_root(node->in[i]) == pl_tensor_root(node->in[0])))
            return false;
    return true;
}

bool pl_node_has_f32_copy(const struct pl_node *node, const plume_tensor *t)
{
    return t && !node->op->raw && pl_dtype_is_16bit(t->dtype) &&
           pl_dtype_of_real(node->k->real) != t->dtype && !converts(node, t);
}

/* Index of an earlier input in the same memory block, or SIZE_MAX. */
static size_t copy_shared_with(const struct pl_node *node, size_t i)
{
    for (size_t k = 0; k < i; k++)
        if (node->in[k] && pl_tensor_root(node->in[k]) == pl_tensor_root(node->in[i]))
            return k;
    return SIZE_MAX;
}

/* Backward reads this input, or another one in the same memory block. */
static bool reads_back(const struct pl_node *node, size_t i)
{
    for (size_t k = 0; k < node->n_in; k++)
        if (node->in[k] && pl_tensor_root(node->in[k]) == pl_tensor_root(node->in[i]) &&
            (node->op->needs & PL_NEEDS_IN(k)))
            return true;
    return false;
}

/* Backward writes the gradient of this input, or of another one in the same memory block. */
static bool writes_back(const struct pl_node *node, size_t i)
{
    for (size_t k = 0; k < node->n_in; k++)
        if (node->in[k] && pl_tensor_root(node->in[k]) == pl_tensor_root(node->in[i]) &&
            node->in[k]->wants_grad && !node->alias[k])
            return true;
    return false;
}

size_t pl_node_all_rows(const struct pl_node *node)
{
    return node->out->rank ? node->out->shape[0] : 1;
}

size_t pl_node_rows(const struct pl_node *node)
{
    const plume_tensor *in = node->n_in ? node->in[0] : NULL, *out = node->out;
    size_t all = pl_node_all_rows(node), bytes, most = ROWS_BYTES;

    if (!node->op->by_row || !pl_node_has_f32_copy(node, in) || !pl_node_has_f32_copy(node, out) ||
        in->base || out->base || node->saved_half || node->fusion.loss || in->rank < 2 ||
        in->shape[0] != all || all == 0)
        return all;
    for (size_t i = 1; i < node->n_in; i++) {
        if (node->in[i] && pl_tensor_root(node->in[i]) == in)
            return all;
        most = PL_MAX(most, node->in[i] ? 2 * node->in[i]->count * sizeof(float) : 0);
    }
    bytes = 2 * (in->count + out->count) / all * sizeof(float); /* with the gradients */
    return PL_MAX(PL_MIN(all, most / PL_MAX(bytes, (size_t)1)), (size_t)1);
}

/* Elements of a tensor that has these rows, all of which the node's output has. */
static size_t of_rows(const struct pl_node *node, const plume_tensor *t, size_t rows)
{
    size_t all = pl_node_all_rows(node);

    return rows == all ? t->count : t->count / all * rows;
}

/* Elements of input i's root of which a call has copies. */
static size_t copied(const struct pl_node *node, size_t i)
{
    const plume_tensor *root = pl_tensor_root(node->in[i]);

    return i == 0 ? of_rows(node, root, pl_node_rows(node)) : root->count;
}

size_t pl_node_f32_bytes(const struct pl_node *node, bool backward)
{
    size_t sum = 0;

    for (size_t i = 0; i < node->n_in; i++)
        if (pl_node_has_f32_copy(node, node->in[i]) && copy_shared_with(node, i) == SIZE_MAX) {
            size_t bytes = ALIGN(copied(node, i) * sizeof(float));

            sum += !backward || reads_back(node, i) ? bytes : 0;
            sum += backward && writes_back(node, i) ? bytes : 0;
        }
    if (pl_node_has_f32_copy(node, node->out)) {
        size_t bytes = ALIGN(of_rows(node, node->out, pl_node_rows(node)) * sizeof(float));

        sum += backward ? bytes : 0;
        sum += !backward || (node->op->needs & PL_NEEDS_OUT) ? bytes : 0;
    }
    sum += ALIGN(node->saved_half * sizeof(float));
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

/* All of t, whose 16 bits are at `half`, or the call's rows, if `by_row`. */
static struct pl_half_args half_args(const struct pl_call *c,
                                     const struct pl_f32_copies *copies,
                                     const plume_tensor *t,
                                     bool by_row,
                                     void *half,
                                     float *wide)
{
    size_t n = by_row ? of_rows(c->node, t, c->rows) : t->count;
    size_t before = by_row && copies->row ? of_rows(c->node, t, copies->row) : 0;

    return (struct pl_half_args){
        .n = n, .type = pl_tape_half_of(t->dtype), .half = (uint16_t *)half + before, .wide = wide};
}

static void widen(const struct pl_call *c,
                  const struct pl_f32_copies *copies,
                  const plume_tensor *t,
                  bool by_row,
                  void *from,
                  float *to)
{
    struct pl_half_args a = half_args(c, copies, t, by_row, from, to);

    c->k->widen(&a);
}

static void narrow(const struct pl_call *c,
                   const struct pl_f32_copies *copies,
                   const plume_tensor *t,
                   bool by_row,
                   float *from,
                   void *to)
{
    struct pl_half_args a = half_args(c, copies, t, by_row, to, from);

    c->k->narrow(&a);
}

/* The values that the op keeps from forward to backward. */
static struct pl_half_args saved_args(const struct pl_call *c)
{
    return (struct pl_half_args){.n = c->node->saved_half,
                                 .type = pl_tape_half_of(c->node->out->dtype),
                                 .half = c->node->saved,
                                 .wide = c->saved};
}

static float *take(struct pl_f32_copies *copies, size_t count)
{
    void *p = copies->next; /* aligned to PL_BUMP_ALIGN */

    copies->next += ALIGN(count * sizeof(float));
    return p;
}

const plume_tensor *
pl_node_grad_of(const struct pl_tape *tape, const struct pl_node *node, size_t k)
{
    const plume_tensor *in = node->in[k];

    return node->fusion.wide & PL_NEEDS_IN(k) ? tape->nodes[in->node].in[0] : in;
}

const plume_tensor *pl_node_sums_of(const struct pl_tape *tape, const struct pl_node *node)
{
    const struct pl_node *layer =
        node->fusion.bias_of ? &tape->nodes[node->fusion.bias_of - 1] : NULL;

    return layer ? pl_node_grad_of(tape, layer, layer->op->bias) : NULL;
}

void pl_node_bind(const struct pl_tape *tape, size_t index, bool backward, struct pl_call *c)
{
    const struct pl_node *node = &tape->nodes[index];

    c->tape = tape;
    c->k = node->k;
    c->node = node;
    c->attr = &node->attr;
    c->product = NULL;
    c->index = index;
    c->rows = pl_node_all_rows(node);
    for (size_t i = 0; i < node->n_in; i++) {
        const plume_tensor *in = node->in[i];

        c->in[i] = in ? pl_tape_data(tape, in) : NULL;
        c->in_grad[i] =
            backward && in && in->wants_grad && !node->alias[i] ? pl_tape_grad(tape, in) : NULL;
        c->add[i] = node->add[i];
        if (node->fusion.wide & PL_NEEDS_IN(i)) {
            c->in_grad[i] = backward ? pl_tape_grad(tape, pl_node_grad_of(tape, node, i)) : NULL;
            c->add[i] = tape->nodes[in->node].add[0];
        }
    }
    if (node->op->fuses && node->fusion.x != node->in[0]) {
        c->in[0] = pl_tape_data(tape, node->fusion.x);
        c->in_grad[0] =
            backward && node->fusion.x->wants_grad ? pl_tape_grad(tape, node->fusion.x) : NULL;
        c->add[0] = node->fusion.x_add;
    }
    c->out = pl_tensor_data(node->out);
    c->out_grad = backward ? pl_tensor_grad(node->out) : NULL;
    if (node->op->fuses && node->fusion.y != node->out) {
        c->out = pl_tensor_data(node->fusion.y);
        c->out_grad = backward ? pl_tensor_grad(node->fusion.y) : NULL;
    }
    c->saved = node->saved;
    c->scratch = node->scratch[backward];
    c->sums = NULL;
    c->sums_add = false;
    if (node->fusion.summed)
        c->in_grad[node->op->bias] = NULL;
    if (backward && node->fusion.bias_of) {
        const struct pl_node *layer = &tape->nodes[node->fusion.bias_of - 1];

        c->sums = pl_tape_grad(tape, pl_node_sums_of(tape, node));
        c->sums_add = tape->nodes[layer->in[layer->op->bias]->node].add[0];
    }
}

void pl_node_widen_inputs(struct pl_call *c, struct pl_f32_copies *copies, bool backward)
{
    const struct pl_node *node = c->node;
    size_t rows = of_rows(node, node->out, pl_node_rows(node));

    copies->next = (char *)c->scratch + ALIGN(node->scratch_bytes);
    if (node->saved_half) {
        struct pl_half_args saved;

        c->saved = take(copies, node->saved_half);
        saved = saved_args(c);
        if (backward)
            c->k->widen(&saved);
    }
    for (size_t i = 0; i < node->n_in; i++) {
        const plume_tensor *in = node->in[i], *root;
        size_t same;

        if (!pl_node_has_f32_copy(node, in))
            continue;
        root = pl_tensor_root(node->in[i]);
        same = copy_shared_with(node, i);
        if (same != SIZE_MAX) {
            copies->in[i] = copies->in[same];
        } else if (!backward || reads_back(node, i)) {
            copies->in[i] = take(copies, copied(node, i));
            if (i == 0 || copies->row == 0)
                widen(c, copies, root, i == 0, root->data, copies->in[i]);
        }
        c->in[i] = copies->in[i] ? copies->in[i] + in->offset : NULL;
        if (!c->in_grad[i])
            continue;
        copies->in_grad[i] = same != SIZE_MAX && copies->in_grad[same]
                                 ? copies->in_grad[same]
                                 : take(copies, copied(node, i));
        if (same == SIZE_MAX || copies->in_grad[i] != copies->in_grad[same])
            if ((c->add[i] || in->base) && (i == 0 || copies->row == 0))
                widen(c, copies, root, i == 0, pl_tape_grad(c->tape, root), copies->in_grad[i]);
        c->in_grad[i] = copies->in_grad[i] + in->offset;
    }
    if (!pl_node_has_f32_copy(node, node->out))
        return;
    if (!backward || (node->op->needs & PL_NEEDS_OUT))
        copies->out = take(copies, rows);
    if (backward && copies->out)
        widen(c, copies, node->out, true, node->out->data, copies->out);
    c->out = copies->out;
    if (backward) {
        copies->out_grad = take(copies, rows);
        widen(c, copies, node->out, true, node->out->grad, copies->out_grad);
        c->out_grad = copies->out_grad;
    }
}

void pl_node_narrow_outputs(const struct pl_call *c,
                            const struct pl_f32_copies *copies,
                            bool backward)
{
    const struct pl_node *node = c->node;
    bool last = copies->row + c->rows == pl_node_all_rows(node);

    if (!backward) {
        struct pl_half_args saved = saved_args(c);

        if (copies->out)
            narrow(c, copies, node->out, true, copies->out, node->out->data);
        if (node->saved_half)
            c->k->narrow(&saved);
        return;
    }
    for (size_t i = 0; i < node->n_in; i++) {
        const plume_tensor *root = node->in[i] ? pl_tensor_root(node->in[i]) : NULL;
        size_t same = root ? copy_shared_with(node, i) : SIZE_MAX;

        if (copies->in_grad[i] && (i == 0 || last) &&
            (same == SIZE_MAX || copies->in_grad[same] != copies->in_grad[i]))
            narrow(c, copies, root, i == 0, copies->in_grad[i], pl_tape_grad(c->tape, root));
    }
}
