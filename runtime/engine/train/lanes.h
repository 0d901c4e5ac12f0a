/* SPDX-License-Identifier: MIT */
/* Optimizers that take turns: with the module's step_per_optimizer each has a training step of its
 * own for every batch, on a tape of its own, and its own parameters only want gradients (checklist
 * 4.4: several optimizers toggle requires_grad). The tape, outputs and reducer of the first are
 * those of the trainer, so that without turns there is one. */
#ifndef PL_RUNTIME_ENGINE_TRAIN_LANES_H
#define PL_RUNTIME_ENGINE_TRAIN_LANES_H

#include "runtime/engine/train/trainer.h"

/* Once there are optimizers. -ENOMEM. */
int pl_lanes_init(struct pl_trainer *t, struct pl_error *err);
void pl_lanes_finish(struct pl_trainer *t);

/* Makes it optimizer `turn`'s turn. */
void pl_lanes_set(struct pl_trainer *t, unsigned turn);

/* The running turn's: the stage of training, and the reducer. */
struct pl_stage *pl_lanes_stage(struct pl_trainer *t);
struct pl_reducer *pl_lanes_reducer(struct pl_trainer *t);

#endif
