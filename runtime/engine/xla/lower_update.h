/* SPDX-License-Identifier: MIT */
/* Lowers clipping and the optimizers' updates. What changes from step to step (learning rates, step
 * numbers) are numbers that the host gives the program; the rest is constant. */
#ifndef PL_RUNTIME_ENGINE_XLA_LOWER_UPDATE_H
#define PL_RUNTIME_ENGINE_XLA_LOWER_UPDATE_H

#include "runtime/engine/optim/optimizer.h"
#include "runtime/engine/xla/hlo.h"

#define PL_UPDATE_NUMBERS 4 /* of a class: the parameters whose numbers are the same */

/* A parameter's optimizer and range; NULL, NULL if it has none. */
struct pl_update_owner {
    const struct pl_optimizer *optimizer;
    const struct pl_optimizer_range *range;
};
struct pl_update_owner pl_update_owner(const struct pl_optimizers *optimizers, size_t order);

/* The numbers of a step, which the optimizer counts already (its `steps`), for a parameter that has
 * missed `missed` of them. */
void pl_update_numbers(const struct pl_update_owner *owner,
                       uint64_t missed,
                       float ret[PL_UPDATE_NUMBERS]);

/* The factor by which clipping multiplies the n gradients; none: it does not. */
struct pl_hlo_value pl_update_factor(struct pl_hlo *h,
                                     const struct pl_clip_rule *clip,
                                     const struct pl_hlo_value *grads,
                                     size_t n);

/* One parameter: its value and slots (PL_OPTIMIZER_SLOTS) become new ones. factor: see above.
 * numbers: f32[PL_UPDATE_NUMBERS]. */
void pl_update_lower(struct pl_hlo *h,
                     const struct pl_update_owner *owner,
                     const struct pl_clip_rule *clip,
                     struct pl_hlo_value factor,
                     struct pl_hlo_value numbers,
                     struct pl_hlo_value grad,
                     struct pl_hlo_value *value,
                     struct pl_hlo_value *slots);

#endif
