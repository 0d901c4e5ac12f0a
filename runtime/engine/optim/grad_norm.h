/* SPDX-License-Identifier: MIT */
/* The norm of the gradients of several optimizers, and if they are finite. With shards (shard.h)
 * each rank measures its own, and the ranks add up; those that have parts of parameters
 * (param_parts.h) add up the parts, and count once what each of them has. */
#ifndef PL_RUNTIME_ENGINE_OPTIM_GRAD_NORM_H
#define PL_RUNTIME_ENGINE_OPTIM_GRAD_NORM_H

#include "runtime/engine/optim/optimizer.h"

/* Memory for the statistics, by the optimizers' ranges and by_blocks. -ENOMEM. */
int pl_grad_norm_init(struct pl_optimizers *optimizers, struct pl_error *err);
void pl_grad_norm_finish(struct pl_optimizers *optimizers);

/* Multiplies the gradients of the n optimizers from `first` on by scale. *ret_all: their L2 norm;
 * *ret_norm: without the optimizers whose gradients are not finite, if `skips`. ret_finite: n
 * values. Collective if there are shards. -EIO, -ENOMEM. */
int pl_grad_norm(struct pl_optimizers *optimizers,
                 size_t first,
                 size_t n,
                 const struct pl_kernels *kernels,
                 double scale,
                 bool skips,
                 bool *ret_finite,
                 double *ret_norm,
                 double *ret_all,
                 struct pl_error *err);

/* True if a step of n optimizers can clip by norm without the host: the gradients are on a device,
 * and no other rank has a part of them. */
bool pl_grad_clips_on_device(const struct pl_optimizers *optimizers, size_t n);

/* Then the device finds the factor for an optimizer's gradients, and nobody waits for it. Returns
 * its address there. */
const double *pl_grad_clip(struct pl_optimizers *optimizers,
                           size_t optimizer,
                           const struct pl_kernels *kernels,
                           double limit);

#endif
