/* SPDX-License-Identifier: MIT */
/* The default folder of checkpoints of a run in a trial of plsubmit --requeue-on.
 *
 * A trial's job script may start several runs, and starts them again in each attempt. Those of one
 * module with one set of hyper-parameters, which give ID, have the folders checkpoints/ID,
 * checkpoints/ID-2, and so on. A run takes the first folder of a run with the same options (the
 * digest `run`) with which none is done in this attempt: so runs with equal options are told apart
 * by their order, and one that fails or is interrupted keeps its folder, for whoever tries it
 * again. A run whose options no folder has gets a new one. */
#ifndef PL_RUNTIME_PLTRAIN_TRIAL_CHECKPOINTS_H
#define PL_RUNTIME_PLTRAIN_TRIAL_CHECKPOINTS_H

#include "common/base/error.h"

#include <stdbool.h>

/* TRIAL/checkpoints/ID; the caller frees. NULL when out of memory. */
char *
pl_trial_checkpoints(const char *trial, const char *module, const char *const *hparams, size_t n);

/* On rank 0 alone.
 * first    the folder of the first run with these hyper-parameters
 * run      a digest of the options that say what the run trains: a word
 * goes_on  the run asks for `last`
 * takes    false: the folder stays free for the next run
 * *ret     the run's folder
 * *from    set if the run asks for `last`, and has no last.ckpt of its own: that of the run before
 *          it. If that one has none either, but itself went on from the run before it: of that one,
 *          and so on. NULL: none, or the run began anew in an earlier attempt.
 * The caller frees both. Warns if the run is new, and another one waits to go on. -ENOMEM, -E2BIG,
 * or the error of reading or making a folder. */
int pl_trial_checkpoints_next(const char *first,
                              const char *run,
                              bool goes_on,
                              bool takes,
                              char **ret,
                              char **from,
                              struct pl_error *err);

/* On rank 0 alone, at the end of a run that is done: the next one of this attempt has another
 * folder. */
int pl_trial_checkpoints_done(const char *dir, struct pl_error *err);

#endif
