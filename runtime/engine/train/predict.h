/* SPDX-License-Identifier: MIT */
/* Predictions: the module's output for each sample of the test, in a file. */
#ifndef PL_RUNTIME_ENGINE_TRAIN_PREDICT_H
#define PL_RUNTIME_ENGINE_TRAIN_PREDICT_H

#include "runtime/engine/train/trainer.h"

/* Rank 0 writes options->predictions, row i for sample i (or for entry i of the stage's list of
 * samples), whatever the number of ranks. -ENOENT: the module has no predict_step or no data for
 * the test. -EINVAL, -EIO, -EINTR. Collective. */
int pl_predict(struct pl_trainer *t, struct pl_error *err);

#endif
