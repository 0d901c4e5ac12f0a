/* SPDX-License-Identifier: MIT */
/* The run folder (plume-run(5)) in one place: its names, what its files hold, who writes what.
 *
 *   RUN/sweep.json          written by plsubmit, complete before submission; later only its
 *                           "submissions" grow
 *   RUN/trials.jsonl        one line a trial, line N is trial N, never changed
 *   RUN/job.sh  RUN/key     the script as submitted; 32 random bytes, 0600
 *   RUN/trial-0007/         made by the trial: result.json, status.json, checkpoints/
 *   RUN/trial-0007/attempt-0/   events.jsonl, metrics.jsonl, rank-R.out, rank-R.err
 *
 * Nothing here logs. A struct pl_run may be read by several threads once it is open; functions that
 * take it without const need it alone. */
#ifndef PL_COMMON_RUN_RUN_FOLDER_H
#define PL_COMMON_RUN_RUN_FOLDER_H

#include "common/base/error.h"
#include "common/base/strv.h"

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#define PL_RUN_SCHEMA "plume-run/1"
#define PL_RESULT_SCHEMA "plume-result/1"
#define PL_RUN_KEY_BYTES 32
#define PL_RUN_SWEEP_MAX (16u << 20)   /* bytes of sweep.json */
#define PL_RUN_TRIALS_MAX (512u << 20) /* bytes of trials.jsonl */
#define PL_RUN_RESULT_MAX (1u << 20)   /* bytes of result.json and status.json */
#define PL_RUN_TRIAL_LIMIT 1000000u    /* trials of one sweep */

/* States of a trial:
 *
 *   waiting -> running -> done | failed | cancelled | pruned | lost
 *      ^          |
 *      |          v                      (requeued: attempt + 1; a state that stays is an end)
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

enum pl_objective {
    PL_OBJECTIVE_NONE, /* none given: the module's own, if it names one */
    PL_OBJECTIVE_MAX,
    PL_OBJECTIVE_MIN,
};

/* ---- reading ---- */

struct pl_run; /* an open run folder */

/* Opens RUN: sweep.json is read and its schema and types are checked; of trials.jsonl only on
 * first use of a trial. dir may be relative.
 * Returns 0, -ENOENT (no such folder or no sweep.json in it), -EINVAL (not ours, or a newer
 * schema), -EACCES, ... */
int pl_run_open(const char *dir, struct pl_run **ret, struct pl_error *err);
void pl_run_close(struct pl_run *run);
PL_DEFINE_CLEANUP(struct pl_run *, pl_run_close)

/* All strings are borrowed and live as long as the run. */
const char *pl_run_sweep(const struct pl_run *run); /* id, NAME-xxxxxx */
const char *pl_run_name(const struct pl_run *run);
const char *pl_run_dir(const struct pl_run *run); /* absolute */
unsigned pl_run_n_trials(const struct pl_run *run);
double pl_run_created_s(const struct pl_run *run); /* seconds since 1970 */

/* The program with its {NAME} placeholders; NULL behind the last. */
const char *const *pl_run_argv(const struct pl_run *run, size_t *ret_n);

/* The program's file in this process: $PLUME_PROGRAM, which the job script sets after the set-up,
 * else the first word of pl_run_argv(). Borrowed. */
const char *pl_run_program_file(const struct pl_run *run);

/* Axes in the order given. */
size_t pl_run_n_axes(const struct pl_run *run);
const char *pl_run_axis(const struct pl_run *run, size_t i);

/* --metric NAME=REGEX, in the order given. */
size_t pl_run_n_metrics(const struct pl_run *run);
void pl_run_metric(const struct pl_run *run,
                   size_t i,
                   const char **ret_name,
                   const char **ret_regex);

/* *ret_metric is NULL for PL_OBJECTIVE_NONE. */
enum pl_objective pl_run_objective(const struct pl_run *run, const char **ret_metric);

/* Arrays submitted: index K of the array `job` is trial first_trial + K. */
struct pl_run_submission {
    const char *job;
    unsigned first_trial, n_trials;
};
size_t pl_run_n_submissions(const struct pl_run *run);
struct pl_run_submission pl_run_submission(const struct pl_run *run, size_t i);

/* The trial of an array's index (decimal job id without "_K"). -ENOENT. */
int pl_run_find_trial(const struct pl_run *run,
                      const char *job,
                      unsigned array_index,
                      unsigned *ret_trial);

/* sbatch's options as submitted, but for --array and the script; NULL behind the last. */
const char *const *pl_run_sbatch_args(const struct pl_run *run);

/* The options as resolved, each {"value":...,"origin":"command line"}; borrowed. */
const json_t *pl_run_options(const struct pl_run *run);

/* ---- a trial ---- */

/* The trial's parameters: an object of strings as given, in the order of the axes; a new
 * reference. -ENOENT (no such trial), -EINVAL (trials.jsonl is damaged). */
int pl_run_trial_params(struct pl_run *run, unsigned trial, json_t **ret, struct pl_error *err);

/* The program's arguments with the trial's values: every {NAME} of an axis in argv[1...] is
 * replaced in one pass, all other braces stay; where no argument uses any axis, "--NAME" "VALUE" is
 * appended for each. *ret ends in NULL; freed with pl_strv_free(). -ENOMEM, -EINVAL (a parameter
 * is missing). */
int pl_run_trial_argv(const struct pl_run *run,
                      const json_t *params,
                      char ***ret,
                      struct pl_error *err);

/* "PLUME_PARAM_NAME=VALUE" for each (`.` and `-` become `_`) and "PLUME_PARAMS={...}". */
int pl_run_trial_env(const json_t *params, char ***ret, struct pl_error *err);

/* ---- paths; the caller frees, NULL when out of memory ---- */

char *pl_run_key_path(const struct pl_run *run);
/* RUN/trial-0007 or, with a name, RUN/trial-0007/NAME. */
char *pl_run_trial_path(const struct pl_run *run, unsigned trial, const char *name);
/* RUN/trial-0007/attempt-0 or, with a name, RUN/trial-0007/attempt-0/NAME. */
char *
pl_run_attempt_path(const struct pl_run *run, unsigned trial, unsigned attempt, const char *name);

/* How many attempts have a folder (attempt-0 ... attempt-N-1). -errno. */
int pl_run_n_attempts(const struct pl_run *run, unsigned trial, unsigned *ret);

/* ---- result.json ---- */

/* A new reference to the result; "schema", "trial" and "state" are checked. -ENOENT where there is
 * none, -EINVAL where it is damaged. ret_state may be NULL. */
int pl_run_result_read(const struct pl_run *run,
                       unsigned trial,
                       json_t **ret,
                       enum pl_trial_state *ret_state,
                       struct pl_error *err);

/* Writes it whole or not at all, with "schema", "trial" and "state" set here in front of the keys
 * of `more` (borrowed; may be NULL). Keys that all agree on: "exit_code" (number), "attempts",
 * "objective" (number), "cause" (object), "time" (seconds since 1970). The trial's folder must be
 * there. */
int pl_run_result_write(const struct pl_run *run,
                        unsigned trial,
                        enum pl_trial_state state,
                        const json_t *more,
                        struct pl_error *err);

/* ---- making one (plsubmit) ---- */

struct pl_run_new {
    const char *sweep, *name;
    unsigned n_trials;
    const char *const *argv; /* NULL behind the last */
    const char *const *axes; /* names; NULL behind the last */
    const char *const *metric_names, *const *metric_regexes;
    size_t n_metrics;
    enum pl_objective objective;
    const char *objective_metric;
    const char *const *sbatch_args; /* NULL behind the last; may be NULL */
    json_t *options;                /* see pl_run_options(); borrowed */
    /* Fills values[axis] of a trial; the strings must last until the next call. */
    int (*values)(void *ctx, unsigned trial, const char **values);
    void *ctx;
};

/* Makes the folder `dir`, which must not be there yet (its parents may), with key, trials.jsonl
 * and, last, sweep.json. On failure what was made is removed. -EEXIST, -EACCES, ... */
int pl_run_create(const char *dir, const struct pl_run_new *desc, struct pl_error *err);

/* Has what plsubmit wrote, the script included, written to the disk: before it is submitted. */
int pl_run_sync(const struct pl_run *run, struct pl_error *err);

/* Removes the folder of a run of which nothing was submitted: what plsubmit wrote, and the folder
 * where then nothing is left in it. Closes the run. */
void pl_run_discard(struct pl_run *run);

/* Records an array in sweep.json. One writer at a time. */
int pl_run_add_submission(struct pl_run *run,
                          const char *job,
                          unsigned first_trial,
                          unsigned n_trials,
                          struct pl_error *err);

#endif
