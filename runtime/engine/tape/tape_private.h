/* SPDX-License-Identifier: MIT */
/* What the tape's files share. */
#ifndef PL_RUNTIME_ENGINE_TAPE_TAPE_PRIVATE_H
#define PL_RUNTIME_ENGINE_TAPE_TAPE_PRIVATE_H

#include "runtime/engine/tape/tape.h"

static inline enum pl_half pl_tape_half_of(enum plume_dtype dtype)
{
    return dtype == PLUME_F16 ? PL_HALF_F16 : PL_HALF_BF16;
}

/* Bytes that the f32 copies of a node's 16-bit tensors and of their gradients need. */
size_t pl_tape_wide_bytes(const struct pl_node *node);

/* What the node gets to work on, before 16-bit tensors are copied and gradients begun. */
void pl_tape_point(const struct pl_tape *tape, size_t index, bool backward, struct pl_call *ret);

/* Runs the nodes first, first + 1, ... (backward: first, first - 1, ...), n of them. What allreduce
 * said. */
int pl_tape_run_nodes(struct pl_tape *tape,
                      size_t first,
                      size_t n,
                      const struct pl_backward *backward,
                      struct pl_error *err);

/* tape_graph.c */

/* Before a forward run: sees to what graphs of it need. */
void pl_tape_graphs_begin(struct pl_tape *tape);

/* Whether this run may use graphs; after begin. */
bool pl_tape_graphs_usable(const struct pl_tape *tape);

/* As pl_tape_run_nodes(), by a graph where there is one. Nodes that meet stand alone. */
int pl_tape_graphs_run(struct pl_tape *tape,
                       size_t first,
                       size_t n,
                       const struct pl_backward *backward,
                       struct pl_error *err);

void pl_tape_graphs_finish(struct pl_tape *tape);

/* Something in the tape's memory. */
struct pl_lifetime {
    size_t bytes, from, to; /* alive at these positions, both included */
    size_t offset;
};

/* Zeroed memory is an empty list; `list` is freed by the owner. */
struct pl_lifetimes {
    struct pl_lifetime *list;
    size_t n, cap;
    bool bad; /* out of memory: the list is not whole */
};

/* Returns the index, SIZE_MAX for no bytes (or, with `bad`, no memory). The size is rounded up to
 * PL_BUMP_ALIGN. */
size_t pl_lifetimes_add(struct pl_lifetimes *p, size_t bytes, size_t from, size_t to);

/* Sets the offsets, so that no two that are alive at the same position overlap; `spread`: so that
 * none do. Returns the bytes needed, SIZE_MAX when out of memory. */
size_t pl_lifetimes_set(struct pl_lifetimes *p, bool spread);

#endif
