/* SPDX-License-Identifier: MIT */
/* Training and evaluation on a device that takes whole programs (xla/): what the tapes of parts.h
 * do elsewhere. */
#ifndef PL_RUNTIME_ENGINE_TRAIN_XLA_STEP_H
#define PL_RUNTIME_ENGINE_TRAIN_XLA_STEP_H

#include "runtime/engine/train/trainer.h"

/* Call once the trainer is built. Does nothing without such a device. -ENOTSUP names what the run
 * asks for and such a device does not do: ops, hooks, options; -ENOMEM. */
int pl_xla_step_open(struct pl_trainer *t, struct pl_error *err);

/* One batch of training in each replica, `batch` being that of the first; with the update if `due`.
 * losses: by replica, not checked. */
int pl_xla_step_train(struct pl_trainer *t,
                      const struct plume_batch *batch,
                      bool due,
                      double *losses,
                      struct pl_error *err);

/* Before validation and test: all replicas have the buffers of the first one. */
int pl_xla_step_spread_buffers(struct pl_trainer *t, struct pl_error *err);

/* A label of the last batches that is no class is -EDOM, with a text. */
int pl_xla_step_check_labels(struct pl_trainer *t,
                             const struct pl_stage *stage,
                             struct pl_error *err);

/* One batch of validation or test in each replica that has one; adds to the stage's logged values.
 */
int pl_xla_step_evaluate(struct pl_trainer *t,
                         struct pl_stage *stage,
                         const struct plume_batch *batch,
                         struct pl_error *err);

#endif
