/* SPDX-License-Identifier: MIT */
/* What a person writes for JOB: "123", "123_4", a sweep, SWEEP/TRIAL, a run folder, FOLDER/TRIAL or
 * a trial's (or attempt's) own folder. */
#ifndef PL_LAUNCHER_PLSTAT_FIND_H
#define PL_LAUNCHER_PLSTAT_FIND_H

#include "common/run/run_folder.h"

struct pl_target {
    struct pl_run *run; /* NULL: at most Slurm knows it */
    int64_t trial;      /* -1: the whole sweep */
    int64_t job, task;  /* where `what` has the form 123 or 123_4; else -1 */
    char *unreadable;   /* why the run folder that was made for it cannot be read; NULL */
};
void pl_target_finish(struct pl_target *target);

/* Finds it in ~/.plume/runs.jsonl, then among folders. Does not ask Slurm: where run is NULL, job
 * says what to ask for. -ENOENT where it is neither; -EINVAL where the run has no such trial. */
int pl_target_find(const char *what, struct pl_target *ret, struct pl_error *err);

#endif
