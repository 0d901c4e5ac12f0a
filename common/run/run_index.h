/* SPDX-License-Identifier: MIT */
/* ~/.plume/runs.jsonl (see pl_home_dir()): where the runs of this user are, so that they are found
 * from any folder. One line a submission:
 * {"sweep":"lr-x3k2ab","folder":"/abs/runs/lr-x3k2ab","jobs":["123"], "time":1700000000}. Append
 * only; lines that are no such object are skipped. */
#ifndef PL_COMMON_RUN_RUN_INDEX_H
#define PL_COMMON_RUN_RUN_INDEX_H

#include "common/run/run_folder.h"

/* Appends the run with all its submissions so far. */
int pl_run_index_add(const struct pl_run *run, struct pl_error *err);

/* What a person may write for JOB. */
struct pl_run_ref {
    char *folder;  /* absolute */
    int64_t trial; /* -1: the whole sweep */
};
void pl_run_ref_finish(struct pl_run_ref *ref);

/* Finds a run by SWEEP, SWEEP/TRIAL, an array's job id ("123"), "123_4", a run folder, or
 * FOLDER/TRIAL, in this order; the newest line wins. A folder need not be in the index.
 * Returns 0, -ENOENT (none known: `what` may still be a job of Slurm's), -EINVAL. */
int pl_run_index_find(const char *what, struct pl_run_ref *ret, struct pl_error *err);

/* Calls `each` for every run of the index, newest first, each folder once; stops where it does not
 * return 0 and returns that. `line` is borrowed. */
int pl_run_index_each(int (*each)(void *ctx, const char *sweep, const char *folder, json_t *line),
                      void *ctx,
                      struct pl_error *err);

#endif
