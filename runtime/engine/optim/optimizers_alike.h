/* SPDX-License-Identifier: MIT */
/* Ranks that update parts of the parameters for each other must do it alike: each number of the
 * optimizers, which configure_optimizers may change, must be the same on all ranks. */
#ifndef PL_RUNTIME_ENGINE_OPTIM_OPTIMIZERS_ALIKE_H
#define PL_RUNTIME_ENGINE_OPTIM_OPTIMIZERS_ALIKE_H

#include "runtime/engine/optim/clip.h"
#include "runtime/engine/optim/optimizer.h"

/* Compares what pl_optimizers_init_groups() takes with rank 0's. Collective. -EINVAL names the
 * first rank that differs, and its number; -ENOMEM. */
int pl_optimizers_alike(const struct pl_params *params,
                        const struct plume_optimizer *options,
                        size_t n,
                        const struct pl_group_options *groups,
                        size_t n_groups,
                        struct pl_comm *comm,
                        struct pl_error *err);

/* The same for the rule of clipping, which is an option. */
int pl_clip_alike(const struct pl_clip_rule *clip, struct pl_comm *comm, struct pl_error *err);

#endif
