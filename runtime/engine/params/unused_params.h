/* SPDX-License-Identifier: MIT */
/* Which parameters a step has a gradient for. Steps may take other branches from batch to batch and
 * from rank to rank; as in PyTorch's DistributedDataParallel (find_unused_parameters) a parameter
 * that a rank has not used takes part in the mean with zeros, and one that no rank has used has no
 * gradient: optimizers leave it alone, with its momentum and without weight decay.
 *
 * What a rank has used stands behind the last parameter in the arena of gradients, a number a
 * parameter, and is reduced with the first bucket: it costs no collective of its own. */
#ifndef PL_RUNTIME_ENGINE_PARAMS_UNUSED_PARAMS_H
#define PL_RUNTIME_ENGINE_PARAMS_UNUSED_PARAMS_H

#include "runtime/engine/params/params.h"

/* Another module step's tapes: what was looked at is forgotten. */
void pl_unused_params_reset(struct pl_params *params);

/* Between planning and backward: what the tapes of a batch reach, and from which node of the first
 * one on. True where that may have changed since the last call. */
bool pl_unused_params_find(struct pl_params *params, const struct pl_tape *const *tapes, size_t n);

/* Before backward: adds what was looked at to the group of accumulated batches, of which this one
 * is the `first`; then also clears the gradients that the first tape will not write. `any` false:
 * there is no batch. Parameters that want no gradient (it is another optimizer's turn) stay as they
 * are, here and below. -EIO, -ENOMEM. */
int pl_unused_params_mark(struct pl_params *params, bool first, bool any, struct pl_error *err);

/* After the reduction: sets params' `unused`; *ret_any false where that are all. alone: there is no
 * other rank to hear from. -EIO, -ENOMEM. */
int pl_unused_params_collect(struct pl_params *params,
                             bool alone,
                             bool *ret_any,
                             struct pl_error *err);

#endif
