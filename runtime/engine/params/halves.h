/* SPDX-License-Identifier: MIT */
/* The parameters' values rounded to autocast's 16-bit type, for the ops that read them so. Tapes
 * then need no casts of parameters (`lends` and `lends_all` of tape.h). The optimizers' kernels
 * write them with the new values (struct pl_update); after any other change of the values one
 * kernel rounds all of them. Not on the host, whose kernels want f32, and not where a rank has a
 * part of the values only: there units.h gathers 16-bit numbers. */
#ifndef PL_RUNTIME_ENGINE_PARAMS_HALVES_H
#define PL_RUNTIME_ENGINE_PARAMS_HALVES_H

#include "runtime/engine/params/params.h"

/* True if tapes on the parameters' device get their 16-bit values here. */
bool pl_halves_are_used(const struct pl_params *params);

/* Their bytes; 0 if they are not used. */
size_t pl_halves_bytes(const struct pl_params *params);

/* Call before a tape runs: brings the copies up to date. kernels: of the values' type. -ENOMEM. */
int pl_halves_refresh(struct pl_params *params,
                      const struct pl_kernels *kernels,
                      struct pl_error *err);

/* Gives the planned tape's casts of parameters their results. Call after refresh. */
void pl_halves_lend(const struct pl_params *params, struct pl_tape *tape);

/* True if the copies are those of the values. */
static inline bool pl_halves_are_current(const struct pl_params *params)
{
    return params->halves && params->halves_version == params->values_version;
}

/* Whoever has changed the values has changed the copies, too. */
static inline void pl_halves_follow(struct pl_params *params)
{
    params->halves_version = params->values_version;
}

/* The 16-bit type; PL_HALF_NONE without copies. */
enum pl_half pl_halves_type(const struct pl_params *params);

#endif
