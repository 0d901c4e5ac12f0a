/* SPDX-License-Identifier: MIT */
/* What all ranks must have alike for the sum of their gradients to mean anything: the parameters
 * and where they stand in the arenas, and after training their values. Collective, and free in a
 * world of one. Where a rank differs from rank 0, all ranks return the same text. */
#ifndef PL_RUNTIME_ENGINE_PARAMS_CONSISTENCY_H
#define PL_RUNTIME_ENGINE_PARAMS_CONSISTENCY_H

#include "runtime/engine/params/params.h"

/* Compares names, types and shapes of parameters and buffers, as declared, with rank 0's, and then
 * gives params->order rank 0's order. -EINVAL names the first rank that differs, and what it has
 * instead; -ENOMEM. */
int pl_agree_on_layout(struct pl_params *params, struct pl_comm *comm, struct pl_error *err);

/* Compares the parameters' values, of which `hash` is what pl_params_hash() says. -EBADMSG names
 * the first rank that differs, and the first parameter that it does in; -EIO, -ENOMEM. */
int pl_agree_on_values(const struct pl_params *params,
                       const char hash[PL_PARAMS_HASH],
                       struct pl_comm *comm,
                       struct pl_error *err);

#endif
