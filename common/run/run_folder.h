/* SPDX-License-Identifier: MIT */
/* The run folder (plume-run(5)): its paths and the contents of its files.
 *
 *   RUN/sweep.json          plsubmit writes it before submission; later only "submissions" grows
 *   RUN/trials.jsonl        line N is trial N; never changes
 *   RUN/job.sh  RUN/key     the script as submitted; 32 random bytes, mode 0600
 *   RUN/trial-0007/         the trial creates it: result.json, status.json, checkpoints/
 *   RUN/trial-0007/attempt-0/   events.jsonl, metrics.jsonl, rank-R.out, rank-R.err
 *
 * These functions do not log. Several threads may read an open struct pl_run; functions that take
 * it without const need exclusive access. */
#ifndef PL_COMMON_RUN_RUN_FOLDER_H
#define PL_COMMON_RUN_RUN_FOLDER_H

#include "common/base/buf.h"
#include "common/base/error.h"
#include "common/base/strv.h"

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#define PL_RUN_SCHEMA "plume-run/1"
#define PL_RESULT_SCHEMA "plume-result/1"
#define PL_RUN_KEY_BYTES 32
#define PL_RUN_SNAPSHOT "snapshot"     /* the folder of copied files */
#define PL_RUN_SWEEP_MAX (16u << 20)   /* bytes of sweep.json */
#define PL_RUN_TRIALS_MAX (512u << 20) /* bytes of trials.jsonl */
#define PL_RUN_RESULT_MAX (1u << 20)   /* bytes of result.json and status.json */
#define PL_RUN_TRIAL_LIMIT 1000000u    /* trials of one sweep */

/* States of a trial:
 *
 *   waiting -> running -> done | failed | cancelled | pruned | lost
 *      ^          |
 *      |          v                      (a requeue starts the next attempt; without one the state
 * is final)
 *      +---- preempted | timed-out | node-failed
 */
enum pl_trial_state {
    PL_TRIAL_WAITING,
    PL_TRIAL_RUNNING,
    PL_TRIAL_DONE,
    PL_TRIAL_FAILED,
    PL_TRIAL_CANCELLED,
    PL_TRIAL_PRUNED,
    PL_TRIAL_LOST,
    PL_TRIAL_PREEMPTED,
    PL_TRIAL_TIMED_OUT,
    PL_TRIAL_NODE_FAILED,
};

/* "waiting", ..., "timed-out", "node-failed". */
const char *pl_trial_state_name(enum pl_trial_state state);

/* 0 or -EINVAL. */
int pl_trial_state_parse(const char *s, enum pl_trial_state *ret);

/* True for a state that no requeue changes: done, failed, cancelled, pruned, lost. */
bool pl_trial_state_final(enum pl_trial_state state);

/* The objective "max:acc.best" is the best value of the metric acc so far, not the last one. */
#define PL_RUN_BEST ".best"

enum pl_objective {
    PL_OBJECTIVE_NONE, /* not given: the module may have its own */
    PL_OBJECTIVE_MAX,
    PL_OBJECTIVE_MIN,
};

/* ---- reading ---- */

struct pl_run; /* an open run folder */

/* Opens RUN: reads sweep.json and checks its schema and types. The first use of a trial reads
 * trials.jsonl. dir may be relative.
 * Returns 0, -ENOENT (no such folder, or it has no sweep.json), -EINVAL (damaged, or another
 * schema), -EACCES, ... */
int pl_run_open(const char *dir, struct pl_run **ret, struct pl_error *err);

/* The same for whoever runs the sweep's program or writes to RUN: the folder and the files that are
 * read must belong to the caller, and nobody else may write to them (common/base/own.h). Later
 * calls reach RUN by its descriptor. -EPERM with the folder, its owner and its mode in err. */
int pl_run_open_own(const char *dir, struct pl_run **ret, struct pl_error *err);
void pl_run_close(struct pl_run *run);
PL_DEFINE_CLEANUP(struct pl_run *, pl_run_close)

/* The run owns all strings. */
const char *pl_run_sweep(const struct pl_run *run); /* the id, NAME-xxxxxx */
const char *pl_run_name(const struct pl_run *run);
const char *pl_run_dir(const struct pl_run *run); /* absolute */
unsigned pl_run_n_trials(const struct pl_run *run);
double pl_run_created_s(const struct pl_run *run); /* seconds since 1970 */

/* The program with its {NAME} placeholders; NULL-terminated. */
const char *const *pl_run_argv(const struct pl_run *run, size_t *ret_n);

/* The program's file: $PLUME_PROGRAM, which the job script sets after the set-up, else the first
 * word of pl_run_argv(). Borrowed. */
const char *pl_run_program_file(const struct pl_run *run);

/* Axes in the order of the command line. */
size_t pl_run_n_axes(const struct pl_run *run);
const char *pl_run_axis(const struct pl_run *run, size_t i);

/* --metric NAME=REGEX, in the order of the command line. */
size_t pl_run_n_metrics(const struct pl_run *run);
void pl_run_metric(const struct pl_run *run,
                   size_t i,
                   const char **ret_name,
                   const char **ret_regex);

/* *ret_metric is NULL for PL_OBJECTIVE_NONE. */
enum pl_objective pl_run_objective(const struct pl_run *run, const char **ret_metric);

/* A submitted array: index K of the array `job` is trial first_trial + K. */
struct pl_run_submission {
    const char *job; /* NULL: planned only */
    unsigned first_trial, n_trials;
    const char *tasks; /* the array's indices, "0,3-8"; NULL: all below n_trials */
    unsigned retry;    /* number of the retry that submitted it; 0: the first submission */
};
/* The name of the cluster whose Slurm gets the trials; NULL: not known. "a,b" or "all" where sbatch
 * has chosen one of these clusters, and its answer did not name it. */
const char *pl_run_cluster(const struct pl_run *run);
size_t pl_run_n_submissions(const struct pl_run *run);
struct pl_run_submission pl_run_submission(const struct pl_run *run, size_t i);

/* True if the array has an index for this trial. */
bool pl_run_submission_has(const struct pl_run_submission *sub, unsigned trial);

/* True if a newer array has the trial than the job of this number: what that job has written is of
 * an attempt before. */
bool pl_run_job_is_older(const struct pl_run *run, unsigned trial, int64_t job);

/* True if plsubmit --cancel cancelled this task of the array. Slurm keeps no record of a task that
 * scancel took from a pending array. */
bool pl_run_is_cancelled(const struct pl_run *run, int64_t array, int64_t task);

/* Arrays of a retry that are recorded, but not known to be submitted. */
size_t pl_run_n_planned(const struct pl_run *run);
struct pl_run_submission pl_run_planned(const struct pl_run *run, size_t i);

/* Finds the trial of an index of the array `job` (a decimal job id without "_K"). -ENOENT. */
int pl_run_find_trial(const struct pl_run *run,
                      const char *job,
                      unsigned array_index,
                      unsigned *ret_trial);

/* sbatch's options as submitted, without --array and the script; NULL-terminated. */
const char *const *pl_run_sbatch_args(const struct pl_run *run);

/* plsubmit's options, each {"value":...,"origin":"command line"}; borrowed. */
const json_t *pl_run_options(const struct pl_run *run);

/* ---- a trial ---- */

/* Reads the trial's parameters: an object with strings as given, in the order of the axes; a new
 * reference. -ENOENT (no such trial), -EINVAL (trials.jsonl is damaged). */
int pl_run_trial_params(struct pl_run *run, unsigned trial, json_t **ret, struct pl_error *err);

/* The same for one trial of a folder from pl_run_open_own(): reads a few lines of the file, not all
 * as pl_run_trial_params() does at its first call. */
int pl_run_one_trial_params(struct pl_run *run, unsigned trial, json_t **ret, struct pl_error *err);

/* Makes the program's arguments with the trial's values: replaces every {NAME} of an axis in
 * argv[1...] in one pass and keeps all other braces. If no argument has a {NAME}, appends "--NAME"
 * "VALUE" for each axis. Free *ret with pl_strv_free(). -ENOMEM, -EINVAL (a parameter is missing).
 */
int pl_run_trial_argv(const struct pl_run *run,
                      const json_t *params,
                      char ***ret,
                      struct pl_error *err);

/* Makes "PLUME_PARAM_NAME=VALUE" for each parameter (`_` replaces `.` and `-`) and
 * "PLUME_PARAMS={...}". Free *ret with pl_strv_free(). -ENOMEM. */
int pl_run_trial_env(const json_t *params, char ***ret, struct pl_error *err);

/* ---- paths; the caller frees, NULL when out of memory ---- */

char *pl_run_key_path(const struct pl_run *run);
/* RUN/trial-0007 or, with a name, RUN/trial-0007/NAME. */
char *pl_run_trial_path(const struct pl_run *run, unsigned trial, const char *name);
/* RUN/trial-0007/attempt-0 or, with a name, RUN/trial-0007/attempt-0/NAME. */
char *
pl_run_attempt_path(const struct pl_run *run, unsigned trial, unsigned attempt, const char *name);

/* The most bytes of an attempt's file "claim", which says which job the attempt is of. */
#define PL_RUN_CLAIM_MAX 4096

/* Opens the trial's folder, or that of an attempt, of a run of ours (pl_run_open_own()), and makes
 * it if it does not exist. Errors as pl_own_folder_make(). */
int pl_run_make_trial(const struct pl_run *run, unsigned trial, int *ret_fd, struct pl_error *err);
int pl_run_make_attempt(
    const struct pl_run *run, unsigned trial, unsigned attempt, int *ret_fd, struct pl_error *err);

/* Replaces a file of RUN whole, `name` is relative to RUN. sync: also to the disk. bits: 0666, or
 * 0777 for a script; who may not read the folder may not read the file. -EACCES if the run is not
 * from pl_run_open_own(). */
int pl_run_write_file(const struct pl_run *run,
                      const char *name,
                      const void *data,
                      size_t len,
                      mode_t bits,
                      bool sync,
                      struct pl_error *err);

/* Counts the attempts that have a folder (attempt-0 ... attempt-N-1). -errno. */
int pl_run_n_attempts(const struct pl_run *run, unsigned trial, unsigned *ret);

/* ---- result.json ---- */

/* Reads the result, a new reference, and checks "schema", "trial" and "state". -ENOENT (no result),
 * -EINVAL (damaged). ret_state may be NULL. */
int pl_run_result_read(const struct pl_run *run,
                       unsigned trial,
                       json_t **ret,
                       enum pl_trial_state *ret_state,
                       struct pl_error *err);

/* Takes room for a result of so many bytes, at most PL_RUN_RESULT_MAX: result.json.tmp, full of
 * spaces, which the next pl_run_result_write() overwrites. A disk that is full by then does not
 * matter, except where the file system copies on write. */
int pl_run_result_reserve(const struct pl_run *run,
                          unsigned trial,
                          size_t size,
                          struct pl_error *err);

/* Writes the result atomically: "schema", "trial" and "state", then the keys of `more` (borrowed;
 * may be NULL). plume-run(5) lists the keys. The trial's folder must exist. A result of an attempt
 * after which another one has claimed the trial is not written: 0. */
int pl_run_result_write(const struct pl_run *run,
                        unsigned trial,
                        enum pl_trial_state state,
                        const json_t *more,
                        struct pl_error *err);

/* ---- creation, by plsubmit (run_new.c) ---- */

struct pl_run_desc {
    const char *sweep, *name;
    unsigned n_trials;
    const char *const *argv; /* NULL-terminated */
    const char *const *axes; /* names; NULL-terminated */
    const char *const *metric_names, *const *metric_regexes;
    size_t n_metrics;
    enum pl_objective objective;
    const char *objective_metric;
    const char *const *sbatch_args; /* NULL-terminated; may be NULL */
    json_t *options;                /* see pl_run_options(); borrowed */
    const char *cluster;            /* whose Slurm gets the trials; NULL: not known */
    const char *script;             /* text of job.sh; NULL: none */
    json_t *snapshot;               /* the record of --snapshot; borrowed; NULL: none */
    /* Makes folders of the caller's own in the new run folder: PL_RUN_SNAPSHOT; may be NULL. */
    int (*add_files)(void *files, int dir_fd, struct pl_error *err);
    void *files;
    bool secret; /* nobody but the user may read the folder */
    /* Sets values[axis] of a trial; the strings must stay valid until the next call. */
    int (*values)(void *ctx, unsigned trial, const char **values);
    void *ctx;
};

/* Appends the line of trials.jsonl with these values, by axes. -ENOMEM. */
int pl_run_add_trial_line(struct pl_buf *out,
                          const char *const *axes,
                          unsigned trial,
                          const char **values);

/* Creates the folder `dir`, which must not exist or be empty, and missing parents. All files are
 * written, with a script also to the disk, before the folder gets its name: a client that is killed
 * leaves all of it or a hidden folder, which a later call removes. -EEXIST, -EACCES, ... */
int pl_run_create(const char *dir, const struct pl_run_desc *desc, struct pl_error *err);

/* Checks that the job script is the caller's alone: sbatch is about to read it. */
int pl_run_check_script(const struct pl_run *run, struct pl_error *err);

/* Removes plsubmit's files, and the folder if it is empty then. Closes the run. For a run without
 * submissions. */
void pl_run_discard(struct pl_run *run);

/* Adds an array to the next retry; pl_run_plan_write() records it. tasks as in struct
 * pl_run_submission. -ENOMEM. */
int pl_run_plan_add(struct pl_run *run, unsigned first_trial, unsigned n_trials, const char *tasks);

/* Records the retry that pl_run_plan_add() made, so that it can be completed after a crash. A
 * failure drops it. One writer at a time. */
int pl_run_plan_write(struct pl_run *run, struct pl_error *err);

/* Adds n trials to the sweep, whose lines of trials.jsonl are `lines`. A client that is killed in
 * between leaves the sweep as it was. -E2BIG (more than PL_RUN_TRIAL_LIMIT), ... One writer at a
 * time. */
int pl_run_extend(struct pl_run *run, const char *lines, unsigned n, struct pl_error *err);

/* Records that the first planned array is submitted as `job`; NULL drops all that are planned. One
 * writer at a time. */
int pl_run_plan_done(struct pl_run *run, const char *job, struct pl_error *err);

/* Records jobs that are about to be cancelled, "123_[0,3-8]" each. One writer at a time. */
int pl_run_add_cancelled(struct pl_run *run, char *const *jobs, struct pl_error *err);

/* All set another value in memory: the cluster, an option of sbatch, or one of plsubmit. The next
 * call that records something writes it. -ENOMEM. */
int pl_run_set_cluster(struct pl_run *run, const char *cluster);
int pl_run_set_sbatch(struct pl_run *run, const char *option, const char *value);
int pl_run_set_option(struct pl_run *run,
                      const char *option,
                      const char *value,
                      const char *origin);

/* Records the options, for arrays that are submitted later: all of them or, where it fails, none.
 * One writer at a time. */
int pl_run_save_options(struct pl_run *run, struct pl_error *err);

/* Records a submitted array in sweep.json. One writer at a time. */
int pl_run_add_submission(struct pl_run *run,
                          const char *job,
                          unsigned first_trial,
                          unsigned n_trials,
                          struct pl_error *err);

#endif
