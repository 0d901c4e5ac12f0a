/* SPDX-License-Identifier: MIT */
/* Parameters of a pipeline's stages. Each parameter has one owner, the stage with its first use: it
 * keeps the value, the optimizers' state, and the sum of the gradients. A stage that uses it as
 * well (tied weights) borrows it: it has a copy of the value, and a gradient of its own that goes
 * to the owner. comm: the ranks of one pipeline, in the order of stages. */
#ifndef PL_RUNTIME_ENGINE_PARAMS_STAGES_H
#define PL_RUNTIME_ENGINE_PARAMS_STAGES_H

#include "runtime/engine/params/params.h"

#define PL_STAGES_MAX 64 /* bits of pl_param's `borrowers` */

/* Sets bounds and the own range from the cut. Called by the layout. -ENOMEM. */
int pl_stages_set_bounds(struct pl_params *params, struct pl_error *err);

/* Sets the tensors' pointers: to the arenas, to borrowed memory, or NULL. */
void pl_stages_point(struct pl_params *params);

/* The owner of a parameter, by bounds. */
unsigned pl_stages_owner(const struct pl_param_stages *stages, const struct pl_param *p);

/* A stage uses a parameter. Returns true if it is a new borrower, the same on all ranks. */
bool pl_stages_use(struct pl_params *params, unsigned stage, struct pl_param *p);

/* Allocates what this rank borrows and frees what it does not. Values and gradients are undefined
 * afterwards. -ENOMEM. */
int pl_stages_borrow(struct pl_params *params, struct pl_error *err);

/* Copies `bytes` from one stage's device memory (`from`, read there only) to `to` on the ranks
 * where it is not NULL. Collective. -ENOMEM, -EIO, -ECONNRESET. */
int pl_stages_fetch(struct pl_comm *comm,
                    struct pl_device *dev,
                    unsigned owner,
                    const void *from,
                    void *to,
                    size_t bytes,
                    struct pl_error *err);

/* Gives borrowers the owners' values. Collective. */
int pl_stages_share_values(struct pl_params *params, struct pl_comm *comm, struct pl_error *err);

/* Adds the borrowers' gradients to the owners'. Collective. */
int pl_stages_sum_grads(struct pl_params *params, struct pl_comm *comm, struct pl_error *err);

/* Gives all stages the buffers of those that change them. Collective. */
int pl_stages_share_buffers(struct pl_params *params, struct pl_comm *comm, struct pl_error *err);

/* Cuts anew: parameters go to their new owners. Gradients are zero and borrowers forgotten
 * afterwards. cut: stages + 1 nodes of the layout's tape, copied. *ret_old: the former bounds,
 * which the caller frees. Collective. -ENOMEM, -EIO, -ECONNRESET. */
int pl_stages_move(struct pl_params *params,
                   struct pl_comm *comm,
                   const size_t *cut,
                   size_t **ret_old,
                   struct pl_error *err);

#endif
