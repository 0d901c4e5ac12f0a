/* SPDX-License-Identifier: MIT */
/* Shared by the tape's files. tape.c traces; tape_plan.c plans, with tape_writes.c and
 * tape_memory.c; tape_run.c runs nodes, with tape_node.c, and lets tape_graph.c replay them, with
 * tape_identity.c. */
#ifndef PL_RUNTIME_ENGINE_TAPE_TAPE_PRIVATE_H
#define PL_RUNTIME_ENGINE_TAPE_TAPE_PRIVATE_H

#include "runtime/engine/tape/tape.h"
#include "runtime/engine/tape/tape_memory.h"

static inline enum pl_half pl_tape_half_of(enum plume_dtype dtype)
{
    return dtype == PLUME_F16 ? PL_HALF_F16 : PL_HALF_BF16;
}

/* True if its memory is not the plan's: it is of another tape or of none, or a lent one. */
static inline bool pl_tape_is_leaf(const struct pl_tape *tape, const plume_tensor *root)
{
    return root->tape != tape || tape->nodes[root->node].lent;
}

/* True if the node's own kernel runs forward, or backward. */
static inline bool pl_node_runs(const struct pl_node *node, bool backward)
{
    return (backward ? node->back : !node->op->view && !node->lent && !node->unread) &&
           node->at[backward] == node->out->node;
}

/* True if t, or a view of it, is among the first n roots. */
static inline bool pl_tape_is_among(const struct pl_tape *tape, size_t n, const plume_tensor *t)
{
    for (size_t i = 0; i < n; i++)
        if (tape->roots[i] == t || tape->roots[i]->base == t)
            return true;
    return false;
}

/* tape_writes.c */

/* Decides which nodes run backward, and for each gradient which node writes it and which nodes add
 * to it, in backward order. */
void pl_tape_plan_writes(struct pl_tape *tape);

/* tape_fuse.c */

/* Decides which nodes the kernels of others do (pl_node's `at`, `hidden` and `fusion`). Call after
 * the writers are planned. */
void pl_tape_plan_fusions(struct pl_tape *tape);

/* The position of a node's backward among the tape's: see tape_plan.c. */
static inline size_t pl_tape_back_at(const struct pl_tape *tape, size_t i)
{
    return 2 * tape->n - 1 - tape->nodes[i].at[1];
}

/* tape_again.c */

/* Decides what is computed again, if the tape is cut into so many segments. Call after the writers
 * are planned. -ENOMEM. */
int pl_tape_plan_again(struct pl_tape *tape, size_t segments);

/* Gives the nodes of a segment (that ends before node `before`; 0: of all) their memory of the
 * forward run, or of backward. */
void pl_tape_switch_again(struct pl_tape *tape, size_t before, bool again);

/* The position at which a node runs again. */
static inline size_t pl_tape_again_at(const struct pl_tape *tape, size_t i)
{
    return 2 * tape->n - tape->again[i].before;
}

static inline bool pl_tape_runs_again(const struct pl_tape *tape, size_t i)
{
    return tape->again && tape->again[i].before;
}

/* tape_node.c */

/* The f32 copies of one call's 16-bit tensors. Zeroed memory means no copies. */
struct pl_f32_copies {
    char *next; /* the rest of the node's scratch */
    float *in[PL_NODE_INPUTS_MAX], *in_grad[PL_NODE_INPUTS_MAX]; /* of the inputs' roots */
    float *out, *out_grad;
    size_t row; /* the first that this call does; 0 if it does all */
};

/* The tensor whose gradient the node's backward writes for input k: the input, or that of its cast.
 */
const plume_tensor *
pl_node_grad_of(const struct pl_tape *tape, const struct pl_node *node, size_t k);

/* The tensor whose gradient are the sums that the node's backward adds up (`bias_of`); NULL: none.
 */
const plume_tensor *pl_node_sums_of(const struct pl_tape *tape, const struct pl_node *node);

/* The most rows that one call of the node does: all, unless their f32 copies would be large. */
size_t pl_node_rows(const struct pl_node *node);

/* Bytes that the f32 copies of a node's 16-bit tensors and of their gradients need. */
size_t pl_node_f32_bytes(const struct pl_node *node, bool backward);

/* Fills *ret with the node's pointers, before 16-bit tensors are copied and gradients begun. */
void pl_node_bind(const struct pl_tape *tape, size_t index, bool backward, struct pl_call *ret);

/* Replaces pointers to 16-bit tensors by pointers to f32 copies, and fills those that the op
 * reads: of copies->row and the call's further rows. A node that takes several calls gets them with
 * rising rows and the same copies. */
void pl_node_widen_inputs(struct pl_call *call, struct pl_f32_copies *copies, bool backward);

/* Rounds what the op has written into f32 copies back to the 16-bit tensors. */
void pl_node_narrow_outputs(const struct pl_call *call,
                            const struct pl_f32_copies *copies,
                            bool backward);

/* tape_run.c */

/* The device's calls so far; zero if nothing is timed, or the device has no libraries. */
struct pl_device_calls pl_tape_calls(const struct pl_tape *tape);

/* tape_identity.c */

/* A list that grows; zeroed memory is an empty one. `list` is freed by the owner. */
struct pl_words {
    uint64_t *list;
    size_t n, cap;
    bool bad; /* out of memory: the list is incomplete */
};

/* Appends what the arguments of the planned tape's kernels come from. */
void pl_tape_identity(const struct pl_tape *tape, struct pl_words *ret);

/* tape_graph.c */

/* Runs the nodes first, first + 1, ... (backward: first, first - 1, ...), n of them. Returns the
 * error of allreduce. */
typedef int pl_tape_run_fn(struct pl_tape *tape,
                           size_t first,
                           size_t n,
                           const struct pl_backward *backward,
                           struct pl_error *err);

/* Call before a forward run: finds the graphs of the plan and uploads dropout's counter. */
void pl_tape_graphs_begin(struct pl_tape *tape);

/* True if this run may use graphs; call after begin. */
bool pl_tape_graphs_usable(const struct pl_tape *tape);

/* Does the same as `run`, by replaying a graph if one has been captured. A node with a collective
 * must be a segment of its own. */
int pl_tape_graphs_run(struct pl_tape *tape,
                       size_t first,
                       size_t n,
                       const struct pl_backward *backward,
                       pl_tape_run_fn *run,
                       struct pl_error *err);

void pl_tape_graphs_finish(struct pl_tape *tape);

/* True if the tape keeps t, or what it is a view of, for the caller. */
static inline bool pl_tape_keeps(const struct pl_tape *tape, const plume_tensor *t)
{
    const plume_tensor *root = t->base ? t->base : t;

    return root->tape == tape && tape->nodes[root->node].op->keeps;
}

/* tape_alias.c */

/* Decides which inputs' gradients share memory with their output's (pl_node's `alias`), as
 * autograd's would: dx = dy for a sum. ret_leader[i]: the node whose output's gradient has the
 * memory of node i's; i itself if it has its own. Call after the fusions are planned. */
void pl_tape_plan_aliases(struct pl_tape *tape, size_t *ret_leader);

#endif
