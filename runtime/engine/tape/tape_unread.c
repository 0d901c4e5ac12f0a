/* SPDX-License-Identifier: MIT */
/* Nodes that need not run: nobody reads their output, neither a node that runs nor the caller. A
 * module leaves some, and so do ops that are built in another way than they were asked for
 * (op_product.c). They stay on the tape, which is compared with the next step's calls. */
#include "runtime/engine/tape/tape_private.h"

/* True if the node does more than write its output, or the output is read after the run. */
static bool is_wanted(const struct pl_tape *tape, const struct pl_node *node)
{
    return tape->no_drop || node->op->state_inputs || node->op->collective || node->op->keeps ||
           pl_tape_is_among(tape, tape->n_roots, node->out);
}

void pl_tape_plan_unread(struct pl_tape *tape)
{
    for (size_t i = 0; i < tape->n; i++)
        tape->nodes[i].unread = !is_wanted(tape, &tape->nodes[i]);
    for (size_t i = tape->n; i-- > 0;) {
        const struct pl_node *node = &tape->nodes[i];

        for (size_t k = 0; k < node->n_in && !node->unread; k++) {
            const plume_tensor *root = node->in[k] ? pl_tensor_root(node->in[k]) : NULL;

            if (root && root->tape == tape)
                tape->nodes[root->node].unread = false;
            if (root && node->in[k]->tape == tape)
                tape->nodes[node->in[k]->node].unread = false;
        }
    }
}
