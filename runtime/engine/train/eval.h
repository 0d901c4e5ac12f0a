/* SPDX-License-Identifier: MIT */
/* Validation and test: a pass over a stage's batches, and the results of all ranks. */
#ifndef PL_RUNTIME_ENGINE_TRAIN_EVAL_H
#define PL_RUNTIME_ENGINE_TRAIN_EVAL_H

#include "runtime/engine/train/trainer.h"

/* Batches of a stage within the limits of the options. */
uint64_t pl_eval_batches(const struct pl_trainer *t, enum plume_stage stage);

/* True if the stage does not run: the module has none, or its limit is 0. The same on all ranks. */
bool pl_eval_is_off(const struct pl_trainer *t, enum plume_stage stage);

/* -EINVAL: a limit that is a share, or the size of batches, leaves no batch of a stage. */
int pl_eval_check_limits(const struct pl_trainer *t, struct pl_error *err);

/* -EINVAL: the limits, or the size of batches, leave no batch of a stage that is present. */
int pl_eval_need_batches(const struct pl_trainer *t, enum plume_stage stage, struct pl_error *err);

/* Runs at most `most` of a stage's batches of this rank and adds up the logged values over all
 * ranks; extra (two numbers per rank) becomes its sum over the ranks. values[i] is the result of
 * the stage's value i (pl_stage_logs()), NaN if nothing was logged. Collective. */
int pl_eval_run(struct pl_trainer *t,
                enum plume_stage stage,
                uint64_t most,
                double extra[2],
                double *values,
                struct pl_error *err);

/* Stores a stage's results in the trainer's metrics. */
void pl_eval_store(struct pl_trainer *t, enum plume_stage stage, const double *values);

/* On rank 0: prints a stage's results to options->out and logs them. `last`: no others follow in
 * this run. */
void pl_eval_report(struct pl_trainer *t, enum plume_stage stage, const double *values, bool last);

/* Early stopping, checkpoints and schedules watch values that the run will have: -ENOENT, -EINVAL
 * name one that it will not. */
int pl_eval_check_monitors(const struct pl_trainer *t, struct pl_error *err);

#endif
