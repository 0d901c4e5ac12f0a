/* SPDX-License-Identifier: MIT */
/* Resolves the JOB of the command line: "123", "123_4", a sweep, SWEEP/TRIAL, "last", a run folder,
 * FOLDER/TRIAL, or the folder of a trial or attempt. */
#ifndef PL_LAUNCHER_PLSTAT_FIND_H
#define PL_LAUNCHER_PLSTAT_FIND_H

#include "common/run/run_folder.h"

struct pl_target {
    struct pl_run *run; /* NULL: only Slurm may know the job */
    int64_t trial;      /* -1: the whole sweep */
    int64_t job, task;  /* of a word 123 or 123_4; else -1 */
    char *unreadable;   /* why the job's run folder cannot be read; NULL: no such error */
    bool elsewhere;     /* that is because another cluster has given the number */
};
void pl_target_finish(struct pl_target *target);

/* Finds the run in ~/.plume/runs.jsonl, then among folders. Does not ask Slurm: if run is NULL, job
 * and task are the job to ask for. -ENOENT: no such run and no job number, or the run has no such
 * trial. -EINVAL: the word is empty. */
int pl_target_find(const char *word, struct pl_target *ret, struct pl_error *err);

#endif
