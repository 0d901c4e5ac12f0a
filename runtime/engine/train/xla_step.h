/* SPDX-License-Identifier: MIT */
/* Training and evaluation on a device that takes whole programs (xla/): what the tapes of parts.h
 * do elsewhere. */
#ifndef PL_RUNTIME_ENGINE_TRAIN_XLA_STEP_H
#define PL_RUNTIME_ENGINE_TRAIN_XLA_STEP_H

#include "runtime/engine/train/trainer.h"

/* Call once the trainer is built. Does nothing without such a device. -ENOTSUP names what the run
 * asks for and such a device does not do: ops, hooks, options; -ENOMEM. */
int pl_xla_step_open(struct pl_trainer *t, struct pl_error *err);

/* One batch of training; with the update if `due`. *ret_loss is not checked. */
int pl_xla_step_train(struct pl_trainer *t,
                      const struct plume_batch *batch,
                      bool due,
                      double *ret_loss,
                      struct pl_error *err);

/* One batch of validation or test; adds to the stage's logged values. */
int pl_xla_step_evaluate(struct pl_trainer *t,
                         struct pl_stage *stage,
                         const struct plume_batch *batch,
                         struct pl_error *err);

#endif
