/* SPDX-License-Identifier: MIT */
/* Updates that the ranks of a node share out. Ranks that have the same parameters and the same
 * gradients would all do the same work. Instead each rank updates its part of the elements, in the
 * memory of all ranks of the node, and the node has one copy of the optimizers' state. An update
 * works element by element, so the bits are those of a rank that updates everything.
 *
 * Needs params->by_node. */
#ifndef PL_RUNTIME_ENGINE_OPTIM_NODE_UPDATE_H
#define PL_RUNTIME_ENGINE_OPTIM_NODE_UPDATE_H

#include "runtime/engine/optim/optimizer.h"

/* Allocates the state of o->count elements in so many slots, which is zero. Collective over the
 * node. -ENOMEM, -ECONNRESET. */
int pl_node_update_alloc(struct pl_optimizer *o,
                         size_t slots,
                         const struct pl_params *params,
                         struct pl_error *err);

/* Call at the optimizer's end. The communicator's destroy frees the state. */
void pl_node_update_finish(struct pl_optimizer *o);

/* The part that a rank of the node has of elements [*from, *to) of a range, which has the state
 * from range->state on.
 */
void pl_node_update_part(const struct pl_optimizer *o,
                         const struct pl_params *params,
                         const struct pl_optimizer_range *range,
                         unsigned rank,
                         size_t *from,
                         size_t *to);

/* Stores the addresses at which the other ranks of the node have element `from` of the parameters.
 * mirrors: an array with an entry for each rank of the node. Returns the number of addresses. */
unsigned pl_node_update_mirrors(const struct pl_params *params, size_t from, void **mirrors);

#endif
