/* SPDX-License-Identifier: MIT */
/* Gradients that share memory. The gradient of a sum's inputs is that of its output, so that a copy
 * would only cost time. They may share it as long as nobody changes what another still reads: each
 * tensor's gradient is changed by nodes that add to it, and by a backward that uses it as scratch.
 */
#include "runtime/engine/tape/tape_private.h"

static bool is_root(const struct pl_tape *tape, const plume_tensor *t)
{
    for (size_t i = 0; i < tape->n_roots; i++)
        if (tape->roots[i] == t || tape->roots[i]->base == t)
            return true;
    return pl_tape_keeps(tape, t);
}

/* The first position after `from` where the gradient of node i's output is changed; SIZE_MAX:
 * none. */
static size_t changed_after(const struct pl_tape *tape, size_t i, size_t from)
{
    const plume_tensor *out = tape->nodes[i].out;
    const struct pl_node *own = &tape->nodes[i];
    size_t at = SIZE_MAX;

    for (size_t n = i + 1; n < tape->n; n++) { /* only later nodes have it as an input */
        const struct pl_node *node = &tape->nodes[n];

        for (size_t k = 0; k < node->n_in && node->back; k++)
            if (node->in[k] && pl_tensor_root(node->in[k]) == out &&
                (node->add[k] || node->first[k]) && pl_tape_back_at(tape, n) > from)
                at = PL_MIN(at, pl_tape_back_at(tape, n));
    }
    if (own->back && own->op->scribbles && own->op->scribbles(own) &&
        pl_tape_back_at(tape, i) > from)
        at = PL_MIN(at, pl_tape_back_at(tape, i));
    return at;
}

/* True if the gradient of node j's output may have the memory of leader's group from `born` on. */
static bool
fits_in(const struct pl_tape *tape, const size_t *leader, size_t group, size_t j, size_t born)
{
    size_t changed = changed_after(tape, j, born);

    for (size_t m = 0; m < tape->n; m++)
        if (leader[m] == group && m != j &&
            (changed <= pl_tape_back_at(tape, m) ||
             changed_after(tape, m, born) <= pl_tape_back_at(tape, j)))
            return false;
    return true;
}

/* True if the gradient of the node's input k may have the memory of that of its output: both are
 * whole tensors of one type, and neither is of a loss (its layer may read it later), of a tensor
 * that the step keeps, of a layer's product, or of an output in no memory. */
static bool can_alias(const struct pl_tape *tape, const struct pl_node *node, size_t k)
{
    const plume_tensor *in = node->in[k], *out = node->out;

    return in && in->wants_grad && in->tape == tape && !in->base && !node->add[k] &&
           !node->first[k] && in->dtype == out->dtype && in->count == out->count &&
           !is_root(tape, in) && !is_root(tape, out) && !tape->nodes[in->node].fusion.product &&
           !tape->nodes[out->node].hidden;
}

void pl_tape_plan_aliases(struct pl_tape *tape, size_t *ret_leader)
{
    for (size_t i = 0; i < tape->n; i++)
        ret_leader[i] = i;
    for (size_t i = tape->n; !tape->no_reuse && i-- > 0;) {
        struct pl_node *node = &tape->nodes[i];
        uint64_t same = node->back && node->op->same_grad ? node->op->same_grad(node) : 0;

        for (size_t k = 0; k < node->n_in; k++) {
            size_t j;

            if (!(same & PL_NEEDS_IN(k)) || node->alias[k] || !can_alias(tape, node, k))
                continue;
            j = node->in[k]->node;
            if (ret_leader[j] != j || tape->nodes[j].op->view ||
                !fits_in(tape, ret_leader, ret_leader[i], j, pl_tape_back_at(tape, i)))
                continue;
            ret_leader[j] = ret_leader[i];
            node->alias[k] = true;
        }
    }
}
