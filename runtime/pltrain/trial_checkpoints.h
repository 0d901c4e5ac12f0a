/* SPDX-License-Identifier: MIT */
/* The default folder of checkpoints of a run in a trial of plsubmit --requeue-on.
 *
 * A trial's job script may start several runs, and starts them again in each attempt. A run is
 * known by its module and hyper-parameters, which give ID, and among those that have the same ones
 * by its place in the attempt: the first has the folder checkpoints/ID, the next one
 * checkpoints/ID-2, and so on. A run that fails or is interrupted keeps its place, for whoever goes
 * on with it. */
#ifndef PL_RUNTIME_PLTRAIN_TRIAL_CHECKPOINTS_H
#define PL_RUNTIME_PLTRAIN_TRIAL_CHECKPOINTS_H

#include "common/base/error.h"

#include <stdbool.h>

/* TRIAL/checkpoints/ID; the caller frees. NULL when out of memory. */
char *
pl_trial_checkpoints(const char *trial, const char *module, const char *const *hparams, size_t n);

/* On rank 0 alone. The folder of the next run with this one's `first` folder: the first that no run
 * of this attempt has finished with. goes_on: the one before, whose last.ckpt the run asks for. The
 * caller frees. -ENOMEM, -E2BIG. */
int pl_trial_checkpoints_next(const char *first, bool goes_on, char **ret, struct pl_error *err);

/* On rank 0 alone, at the end of a run that is done: the next one of this attempt has another
 * folder. Without a checkpoint there is no folder, and nothing to do. */
int pl_trial_checkpoints_done(const char *dir, struct pl_error *err);

#endif
