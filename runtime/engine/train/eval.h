/* SPDX-License-Identifier: MIT */
/* Validation and test: a pass over a stage's batches, and what all ranks logged in it. */
#ifndef PL_RUNTIME_ENGINE_TRAIN_EVAL_H
#define PL_RUNTIME_ENGINE_TRAIN_EVAL_H

#include "runtime/engine/train/trainer.h"

/* What stands before the names that a stage logs: "val_". */
const char *pl_eval_prefix(enum plume_stage stage);

/* Runs at most `most` of a stage's batches of this rank and adds up what all ranks logged; extra
 * (two numbers of each rank) becomes their sum over the ranks too. values[i] is the result of the
 * stage's logs.name[i], NaN where nothing was logged. Collective. */
int pl_eval_run(struct pl_trainer *t,
                enum plume_stage stage,
                uint64_t most,
                double extra[2],
                double *values,
                struct pl_error *err);

/* Keeps what a stage came to among the trainer's metrics. */
void pl_eval_keep(struct pl_trainer *t, enum plume_stage stage, const double *values);

/* Rank 0 tells what a stage came to: people by options->out, and the logger. `last`: of the run. */
void pl_eval_tell(struct pl_trainer *t, enum plume_stage stage, const double *values, bool last);

#endif
