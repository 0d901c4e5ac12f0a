/* SPDX-License-Identifier: MIT */
/* One step of a stage: the hook on the tape, and in training what follows from the loss. */
#ifndef PL_RUNTIME_ENGINE_TRAIN_TRAIN_STEP_H
#define PL_RUNTIME_ENGINE_TRAIN_TRAIN_STEP_H

#include "runtime/engine/train/trainer.h"

/* Whether the module has a hook for the batches of a stage. */
bool pl_train_step_has_hook(const struct pl_trainer *t, enum plume_stage stage);

/* Calls the hook of a stage on a batch, tracing on the stage's tape; nothing runs. *ret_loss is set
 * in training only and lives as long as the tape. NULL where the module gave no loss; the hook's
 * own failures as pl_context_result() tells them. */
int pl_train_step_trace(struct pl_trainer *t,
                        enum plume_stage stage,
                        const struct plume_batch *batch,
                        plume_tensor **ret_loss,
                        struct pl_error *err);

/* Runs what was traced, and adds up what it logged. loss: as traced; NULL outside training. */
int pl_train_step_forward(struct pl_trainer *t,
                          enum plume_stage stage,
                          plume_tensor *loss,
                          struct pl_error *err);

/* The training tape, of the first part where a batch has parts: by it parameters are ordered. */
const struct pl_tape *pl_train_step_tape(const struct pl_trainer *t);

/* One batch of training: closure and gradients; and where the group of accumulated batches is
 * whole, or `last` says that the epoch is over, reduction over the ranks and optimizer. batch NULL:
 * this rank has none left and takes part with zeros. -EDOM where the loss is no number, -ECONNRESET
 * where a rank is lost. Collective. */
int pl_train_step_train(struct pl_trainer *t,
                        const struct plume_batch *batch,
                        bool last,
                        struct pl_error *err);

#endif
