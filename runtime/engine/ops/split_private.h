/* SPDX-License-Identifier: MIT */
/* Shared by split_find.c and split.c. */
#ifndef PL_RUNTIME_ENGINE_OPS_SPLIT_PRIVATE_H
#define PL_RUNTIME_ENGINE_OPS_SPLIT_PRIVATE_H

#include "runtime/engine/ops/split.h"

enum pl_split_role {
    PL_SPLIT_WHOLE,
    PL_SPLIT_COLUMNS, /* a linear layer, the first of a region: its output is split */
    PL_SPLIT_INSIDE,  /* its output is split */
    PL_SPLIT_ROWS,    /* a linear layer, the last of a region: its first input is split */
};

struct pl_split_mark {
    enum pl_split_role role;
    struct pl_split_at at; /* of the output */
};

struct pl_split_use {
    size_t node, input;
};

/* The regions of one tape. */
struct pl_split_regions {
    const struct pl_split *split;
    const struct pl_split_tape *from;
    const struct pl_tape *tape; /* from->whole */
    const bool *banned;         /* parameters that stay whole, by number - 1; NULL: none */
    struct pl_split_mark *marks;
    bool *is_root; /* by node */
    bool *odd;     /* by node: a linear layer that only its sizes keep whole */
    /* Uses of each node's output, and of each parameter: list[first[i]] up to first[i + 1]. */
    size_t *first, *param_first;
    struct pl_split_use *list, *param_list;
    struct pl_split_at *params; /* as this tape splits them, by number - 1 */
    struct pl_split_counts counts;
    /* The region at hand. */
    size_t *todo, n_todo, n_done;
    unsigned *taken; /* numbers of its parameters */
    size_t n_taken;
    size_t rows; /* of its layers that are split by rows */
    bool failed, indivisible;
};

int pl_split_regions_find(struct pl_split_regions *regions,
                          const struct pl_split *split,
                          const struct pl_split_tape *tape,
                          const bool *banned,
                          struct pl_error *err);
void pl_split_regions_finish(struct pl_split_regions *regions);

/* The number of a parameter that this tape splits in another way than split->params says; 0: none.
 */
unsigned pl_split_regions_differ(const struct pl_split_regions *regions);

/* Finds the split of a node's inputs if its output is split at `at` (inward), or of the output if
 * an input is. False if one of them would have to be whole. */
bool pl_split_through(const struct pl_node *node,
                      struct pl_split_at at,
                      bool inward,
                      struct pl_split_at *ret);

/* True if input k is repeated in the dimension of the output that is split at `at`, so that all
 * ranks need all of it. */
static inline bool pl_split_repeats(const struct pl_node *node, size_t k, struct pl_split_at at)
{
    const plume_tensor *in = node->in[k], *out = node->out;
    size_t missing = out->rank - PL_MIN(in->rank, out->rank);

    return in->count == 1 || at.dim < missing ||
           (in->shape[at.dim - missing] == 1 && out->shape[at.dim] > 1);
}

/* The parameter that this is, or of which it is a copy in another type; NULL for others. */
const plume_tensor *pl_split_param(const struct pl_tape *tape, const plume_tensor *t);

/* op_peers.c */

/* x as an input of layers that are split by columns: backward sums its gradient over the ranks. */
int pl_split_enter(struct pl_tape *tape, plume_tensor *x, plume_tensor **ret, struct pl_error *err);

/* The sum of x over the ranks. */
int pl_split_sum(struct pl_tape *tape, plume_tensor *x, plume_tensor **ret, struct pl_error *err);

#endif
