/* SPDX-License-Identifier: MIT */
/* Shared by trial.c, trial_finish.c and trial_result.c. */
#ifndef PL_RUNTIME_PLRUN_TRIAL_PRIVATE_H
#define PL_RUNTIME_PLRUN_TRIAL_PRIVATE_H

#include "common/base/env.h"
#include "runtime/plrun/trial.h"

/* Reads a number of 0 or more from the environment. Without it: `fallback`, or -ENOENT if that is
 * negative. -EINVAL, -ERANGE for a bad one. */
int pl_trial_env_number(enum pl_env_id id, int64_t fallback, unsigned *ret, struct pl_error *err);

/* Opens PLUME_RUN_DIR, the caller's own, and reads PLUME_TRIAL. The caller closes *ret with
 * pl_run_close(), also after an error. */
int pl_trial_open_run(struct pl_run **ret, unsigned *ret_trial, struct pl_error *err);

/* The byte of our stderr at which the attempt's part begins, by its claim: a requeued job appends
 * to the file of the attempt before, and trials may share one. -1: not known, or it is another
 * file. */
int64_t pl_trial_stderr_start(const char *attempt_dir);

/* The last lines of our stderr from a byte on, if that is a file (Slurm's output file). */
char *pl_trial_stderr_tail(int64_t from);

/* All that our stderr has from a byte on, the last MiB at most: srun writes a line for each node
 * after Slurm's. NULL where that byte is not known. */
char *pl_trial_stderr_said(int64_t from);

/* The verdict of a hub that could not write its result, and has said so on the attempt's stderr
 * (said; NULL = not known) in the words of say_result() in hub/result.c. True if there is one that
 * agrees with srun's code; *ret_cause: a new reference, inferred, as a program may print such a
 * line, too; NULL = nothing failed. */
bool pl_trial_hub_said(const char *said, int code, json_t **ret_cause);

/* The result of this attempt. A new reference; NULL if there is none. */
json_t *pl_trial_result_of(const struct pl_run *run, unsigned trial, unsigned attempt);

/* The same, waiting for it. Under the plugin srun ends with the last rank, and the job script may
 * come here before the hub, on another process's time, has written the result. A hub that still
 * writes keeps its log young; one that waits for a file system listens.
 * code      of srun: where it was killed, its step may run on, and is ended
 * ret_left  true if that was so */
json_t *pl_trial_await_result(const struct pl_run *run,
                              unsigned trial,
                              unsigned attempt,
                              const char *attempt_dir,
                              int code,
                              bool *ret_left);

/* Its state; without a result PL_TRIAL_DONE. */
enum pl_trial_state pl_trial_result_state(const json_t *result);

/* Writes a result again that the hub has written; warns if that fails. */
void pl_trial_write_changed(const struct pl_run *run,
                            unsigned trial,
                            enum pl_trial_state state,
                            const json_t *result);

/* Ends the step of the attempt's log if Slurm says that it runs, after the end of its srun: both
 * processes of srun were killed, so nobody else ends the step. True if it has done so. */
bool pl_trial_end_left_step(const char *attempt_dir);

/* Corrects the result of an attempt, and writes it: Slurm's record of a job that it has requeued
 * does not say why. Its words in the job's output do, which is our stderr. True if it was a lost
 * node. */
bool pl_trial_settle_requeue(const struct pl_run *run,
                             unsigned trial,
                             json_t *result,
                             enum pl_trial_state *state);

#endif
