/* SPDX-License-Identifier: MIT */
/* Finds the parameters that have a gradient in a step. Batches and ranks may take different
 * branches. As in PyTorch's DistributedDataParallel (find_unused_parameters), a parameter that one
 * rank has not used takes part in the mean with zeros; one that no rank has used has no gradient:
 * optimizers leave it and its momentum unchanged and apply no weight decay.
 *
 * The flags of the parameters that a rank has used follow the last parameter in the arena of
 * gradients, one number per parameter. They are reduced with the first bucket, so that they cost no
 * collective of their own. Signals that a rank has received travel with them. */
#ifndef PL_RUNTIME_ENGINE_PARAMS_UNUSED_PARAMS_H
#define PL_RUNTIME_ENGINE_PARAMS_UNUSED_PARAMS_H

#include "runtime/engine/params/params.h"

/* The module step has other tapes: forget the old ones. */
void pl_unused_params_reset(struct pl_params *params);

/* Call between planning and backward: finds the parameters that the tapes of a batch reach, and
 * their first node. Returns true if they may have changed since the last call. */
bool pl_unused_params_find(struct pl_params *params, const struct pl_tape *const *tapes, size_t n);

/* Call before backward: adds the found parameters to those of the accumulated batches. For the
 * `first` of these it also clears the gradients that the first tape will not write. `any` false:
 * there is no batch. Parameters that want no gradient (of another optimizer) stay unchanged, here
 * and below. -EIO, -ENOMEM. */
int pl_unused_params_mark(struct pl_params *params, bool first, bool any, struct pl_error *err);

/* Call after the reduction: sets params' `unused`; *ret_any is false if all are unused. alone:
 * there is no other rank. -EIO, -ENOMEM. */
int pl_unused_params_collect(struct pl_params *params,
                             bool alone,
                             bool *ret_any,
                             struct pl_error *err);

#endif
