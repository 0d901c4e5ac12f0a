/* SPDX-License-Identifier: MIT */
/* The first writer of each gradient. */
#include "runtime/engine/tape/tape_private.h"

#define COVER_MAX ((size_t)1 << 24) /* elements; larger bases of views are zeroed first */

enum written { NOTHING, PARTS, PARTS_COVER, ALL };

static bool runs_back(const struct pl_tape *tape, const struct pl_node *node)
{
    return tape->want_grad && !node->op->view && node->op->backward && node->out->wants_grad &&
           node->out->reached;
}

/* Marks the tensors on the paths to the roots. */
static void reach(struct pl_tape *tape)
{
    for (size_t i = 0; i < tape->n; i++) {
        struct pl_node *node = &tape->nodes[i];

        node->out->reached = false;
        node->out->written = NOTHING;
        for (size_t k = 0; k < node->n_in; k++)
            if (node->in[k]) {
                pl_tensor_root(node->in[k])->reached = false;
                pl_tensor_root(node->in[k])->written = NOTHING;
            }
    }
    for (size_t i = 0; i < tape->n_seeds; i++)
        if (tape->roots[i]->wants_grad) {
            pl_tensor_root(tape->roots[i])->reached = true;
            tape->roots[i]->reached = true;
        }
    for (size_t i = tape->n; i-- > 0;) {
        struct pl_node *node = &tape->nodes[i];

        if (node->out->base && node->out->wants_grad)
            node->out->reached = node->out->base->reached;
        node->back = runs_back(tape, node);
        for (size_t k = 0; k < node->n_in && node->back; k++)
            if (node->in[k] && node->in[k]->wants_grad)
                pl_tensor_root(node->in[k])->reached = true;
    }
}

/* Sets the bits of a view's elements; false if one was set already. */
static bool mark(uint8_t *bits, const plume_tensor *t)
{
    size_t index[PLUME_RANK_MAX] = {0}, at = t->offset;

    for (size_t n = 0; n < t->count; n++) {
        if (bits[at / 8] & (1u << at % 8))
            return false;
        bits[at / 8] |= (uint8_t)(1u << at % 8);
        for (size_t d = t->rank; d-- > 0;) {
            at += t->stride[d];
            if (++index[d] < t->shape[d])
                break;
            at -= t->stride[d] * t->shape[d];
            index[d] = 0;
        }
    }
    return true;
}

/* True if the views of `base` with gradients cover all of it, each element once. */
static bool views_cover(const struct pl_tape *tape, const plume_tensor *base)
{
    _cleanup_free_ uint8_t *bits = NULL;
    size_t covered = 0;

    if (base->count > COVER_MAX || !(bits = calloc(base->count / 8 + 1, 1)))
        return false;
    for (size_t i = 0; i < tape->n; i++) {
        const struct pl_node *node = &tape->nodes[i];

        for (size_t k = 0; k < node->n_in && node->back; k++) {
            const plume_tensor *in = node->in[k];

            if (!in || !in->wants_grad || (in != base && in->base != base))
                continue;
            if (in == base || !mark(bits, in))
                return false;
            covered += in->count;
        }
    }
    return covered == base->count;
}

void pl_tape_plan_writes(struct pl_tape *tape)
{
    reach(tape);
    for (size_t i = 0; i < tape->n_seeds; i++) /* filled by the caller, or with the seed */
        if (tape->roots[i]->wants_grad)
            pl_tensor_root(tape->roots[i])->written = ALL;
    for (size_t i = tape->n; i-- > 0;) {
        struct pl_node *node = &tape->nodes[i];

        for (size_t k = 0; k < node->n_in; k++) {
            plume_tensor *in = node->in[k], *root;

            node->add[k] = node->first[k] = node->alias[k] = false;
            if (!in || !in->wants_grad || !node->back)
                continue;
            root = pl_tensor_root(in);
            if (in->base && root->written == NOTHING) {
                root->written = views_cover(tape, root) ? PARTS_COVER : PARTS;
                node->first[k] = root->written == PARTS;
            }
            node->add[k] = root->written == PARTS || root->written == ALL;
            if (!in->base)
                root->written = ALL;
        }
    }
}
