/* SPDX-License-Identifier: MIT */
/* The index of this user's runs, ~/.plume/runs.jsonl (see pl_home_dir()): with it runs are found
 * from any folder. Each submission appends one line,
 * {"sweep":"lr-x3k2ab","folder":"/abs/runs/lr-x3k2ab","jobs":["123"], "time":1700000000}. Readers
 * skip lines that are no such object. */
#ifndef PL_COMMON_RUN_RUN_INDEX_H
#define PL_COMMON_RUN_RUN_INDEX_H

#include "common/run/run_folder.h"

/* Appends a line for the run with all its present submissions. */
int pl_run_index_add(const struct pl_run *run, struct pl_error *err);

/* As pl_run_index_add(), for a process that a file system which takes no writes must not hold: a
 * child adds the line. -ETIMEDOUT after 10 s. */
int pl_run_index_try(const struct pl_run *run, struct pl_error *err);

/* True if the index has no line of the run with all its present submissions: an earlier plsubmit
 * could not write it. False also if the index cannot be read. */
bool pl_run_index_lacks(const struct pl_run *run);

/* The run and trial that a JOB of the command line names. */
struct pl_run_ref {
    char *folder;  /* absolute */
    int64_t trial; /* -1: the whole sweep */
};
void pl_run_ref_finish(struct pl_run_ref *ref);

/* Stands for the sweep that was submitted last; without any, for the newest step of plain srun. */
#define PL_RUN_INDEX_LAST "last"

/* Finds a run by SWEEP, SWEEP/TRIAL, "last", "last/TRIAL", an array's job id ("123"), "123_4", a
 * run folder, or FOLDER/TRIAL, in this order; of several lines the newest counts. A folder need not
 * be in the index. Returns 0, -ENOENT (no such run; `word` may still be a job of Slurm), -EINVAL.
 * cluster  whose job id is meant, if several have given it; NULL: not known */
int pl_run_index_find(const char *word,
                      const char *cluster,
                      struct pl_run_ref *ret,
                      struct pl_error *err);

/* Calls `each` for every run of the index, newest first, each folder once. Stops when it returns
 * non-zero, and returns that. `line` is borrowed. */
int pl_run_index_each(int (*each)(void *ctx, const char *sweep, const char *folder, json_t *line),
                      void *ctx,
                      struct pl_error *err);

#endif
