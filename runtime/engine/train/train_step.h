/* SPDX-License-Identifier: MIT */
/* One batch of training: forward, backward, reduction over the ranks, optimizer. */
#ifndef PL_RUNTIME_ENGINE_TRAIN_TRAIN_STEP_H
#define PL_RUNTIME_ENGINE_TRAIN_TRAIN_STEP_H

#include "runtime/engine/train/trainer.h"

/* Trains one batch, in each lane. If the group of accumulated batches is complete, or `last` is set
 * (the epoch ends), reduces the gradients over the ranks and steps the optimizers. batch NULL: this
 * rank has no batch left and takes part with zeros. -EDOM if the loss is not a number, -ECONNRESET
 * if a rank is lost. Collective. */
int pl_train_step_train(struct pl_trainer *t,
                        const struct plume_batch *batch,
                        bool last,
                        struct pl_error *err);

#endif
