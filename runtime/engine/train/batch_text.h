/* SPDX-License-Identifier: MIT */
/* The line at a run's start that says how many samples a step has. */
#ifndef PL_RUNTIME_ENGINE_TRAIN_BATCH_TEXT_H
#define PL_RUNTIME_ENGINE_TRAIN_BATCH_TEXT_H

#include "runtime/engine/train/trainer.h"

/* On rank 0, unless a step has one rank's batch. Strategies differ in this: dp and ddp2 split a
 * batch, ddp does not. */
void pl_print_batch(const struct pl_trainer *trainer);

#endif
