/* SPDX-License-Identifier: MIT */
/* --on-end: the small job that waits for all arrays of a sweep, and then runs the user's command
 * (common/run/run_end.h). */
#ifndef PL_LAUNCHER_PLSUBMIT_ON_END_H
#define PL_LAUNCHER_PLSUBMIT_ON_END_H

#include "common/run/run_folder.h"

/* Asks Slurm, before the arrays are submitted, whether it takes the job. 0 also without an answer;
 * -EREMOTEIO: it refuses.
 * sbatch_args, sweep, dir  of the run, which need not exist yet */
int pl_on_end_test(const char *const *sbatch_args,
                   const char *sweep,
                   const char *dir,
                   const char *bin_dir,
                   struct pl_error *err);

/* Submits the job and records it, unless the recorded job waits for all arrays. Of the sweep's
 * options it has the partition, account and the like, and no GPUs. A job that is submitted twice
 * runs the command once. Errors as pl_submit_run(). */
int pl_on_end_submit(struct pl_run *run,
                     const char *bin_dir,
                     struct pl_buf *messages,
                     struct pl_error *err);

#endif
