/* SPDX-License-Identifier: MIT */
/* Places of the gradients with PL_SHARD_GRAD: each bucket has memory from the first node of
 * backward that writes to it until it is reduced. */
#ifndef PL_RUNTIME_ENGINE_REDUCE_GRAD_PLACES_H
#define PL_RUNTIME_ENGINE_REDUCE_GRAD_PLACES_H

#include "runtime/engine/reduce/reducer.h"

/* Places n buckets by the nodes of their parameters, `size` bytes an element, and sets the tensors'
 * gradients. late: the reduction of a bucket ends when the next one's starts. -ENOMEM. */
int pl_grad_places(struct pl_grad_places *places,
                   const struct pl_params *params,
                   struct pl_bucket *buckets,
                   size_t n,
                   size_t size,
                   bool late,
                   struct pl_error *err);

/* The bytes that this would need; SIZE_MAX when out of memory. */
size_t pl_grad_places_measure(const struct pl_params *params,
                              const struct pl_bucket *buckets,
                              size_t n,
                              size_t size,
                              bool late);

#endif
