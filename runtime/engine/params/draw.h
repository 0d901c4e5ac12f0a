/* SPDX-License-Identifier: MIT */
/* Initial values that ranks draw together: each draws a share of the parameters, and all get all.
 * Numbers do not depend on who draws them (rng.h), so the result is that of one rank. */
#ifndef PL_RUNTIME_ENGINE_PARAMS_DRAW_H
#define PL_RUNTIME_ENGINE_PARAMS_DRAW_H

#include "runtime/engine/params/params.h"

/* True if the ranks of comm, in the host's memory, have all parameters whole. */
bool pl_params_drawn_together(const struct pl_params *params, const struct pl_comm *comm);

/* The random numbers of parameter i, as declared. */
void pl_params_stream(uint64_t seed, size_t i, struct pl_rng *ret);

/* Call on all ranks, after the layout. The kinds of values, their numbers, and values that the
 * module has given are rank 0's, should modules differ in them. -ENOMEM, or as pl_comm_broadcast().
 */
int pl_params_draw(struct pl_params *params,
                   struct pl_comm *comm,
                   uint64_t seed,
                   struct pl_error *err);

#endif
