/* SPDX-License-Identifier: MIT */
/* Keeps a pipeline balanced: stages may take other times than measured before the run, because of
 * a slow node or other lengths of data. */
#ifndef PL_RUNTIME_ENGINE_TRAIN_PIPE_BALANCE_H
#define PL_RUNTIME_ENGINE_TRAIN_PIPE_BALANCE_H

#include "runtime/engine/train/trainer.h"

/* Call after each optimizer step. Every so many steps the stages' times are compared; if the best
 * cut for the devices as they are now has been better by a tenth twice in a row, the cut moves:
 * parameters and optimizer state go to their new owners. Prints the times before and after.
 * Collective. -ENOMEM, -EIO, -ECONNRESET. */
int pl_pipe_balance(struct pl_trainer *trainer, struct pl_error *err);

/* Moves the cut between two steps, with the state of what moves. cut: stages + 1 ops. Collective.
 * The same errors. */
int pl_pipe_move(struct pl_trainer *trainer, const size_t *cut, struct pl_error *err);

#endif
