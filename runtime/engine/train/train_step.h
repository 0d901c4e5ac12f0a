/* SPDX-License-Identifier: MIT */
/* One batch of training: forward, backward, reduction over the ranks, optimizer. */
#ifndef PL_RUNTIME_ENGINE_TRAIN_TRAIN_STEP_H
#define PL_RUNTIME_ENGINE_TRAIN_TRAIN_STEP_H

#include "runtime/engine/train/trainer.h"

#include <math.h>

/* Trains one batch, in each lane. If the group of accumulated batches is complete, or `last` is set
 * (the epoch ends), reduces the gradients over the ranks and steps the optimizers. batch NULL: this
 * rank has no batch left and takes part with zeros. -EDOM if the loss is not a number, -ECONNRESET
 * if a rank is lost. Collective. */
int pl_train_step_train(struct pl_trainer *t,
                        const struct plume_batch *batch,
                        bool last,
                        struct pl_error *err);

/* The parts of it, for manual.c. */

#define PL_NO_LOSS (-HUGE_VAL) /* an infinite loss ends the run, or its step is skipped */

/* Forward and backward of one batch in a lane; adds to the gradients if t->accumulated is above 1.
 * `reduces` them while backward runs. Sets *ret_loss if the module gave a loss. */
int pl_train_step_backward(struct pl_trainer *t,
                           unsigned optimizer_idx,
                           const struct plume_batch *batch,
                           bool reduces,
                           double *ret_loss,
                           struct pl_error *err);

/* Reduces what is not reduced yet and steps the lane's optimizer, or all if there is one lane. */
int pl_train_step_optimize(struct pl_trainer *t, unsigned optimizer_idx, struct pl_error *err);

#endif
