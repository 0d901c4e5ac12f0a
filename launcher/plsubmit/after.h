/* SPDX-License-Identifier: MIT */
/* --after SWEEP[:ok|any]: the trials of a sweep start after those of another one. plstat tells the
 * states of these, so that a trial that failed and then succeeded in a retry counts as done. */
#ifndef PL_LAUNCHER_PLSUBMIT_AFTER_H
#define PL_LAUNCHER_PLSUBMIT_AFTER_H

#include "common/base/error.h"
#include "common/run/run_folder.h"

/* Replaces each word by its run folder and condition, "/abs/runs/prep-abc234:ok", because "last"
 * does not stay the same sweep. -ENOENT (no such sweep), -ENOMEM. */
int pl_after_resolve(char **words, struct pl_error *err);

/* The dependency of sbatch for resolved words, "afterok:12,afterany:15"; *ret is NULL if all these
 * trials have ended. The caller frees it.
 * clusters  of which sbatch is to choose one; NULL: it takes this host's
 * bin_dir   folder of plstat
 * -EXDEV (a job of another cluster cannot wait for these), -EREMOTEIO (ok, and a trial has ended
 * otherwise; or a trial is not submitted), -EAGAIN, ... */
int pl_after_dependency(char *const *words,
                        const char *clusters,
                        const char *bin_dir,
                        char **ret,
                        struct pl_error *err);

/* The words of --after that a run was created with; free *ret with pl_strv_free(), NULL: none.
 * -ENOMEM. */
int pl_after_of_run(const struct pl_run *run, char ***ret);

#endif
