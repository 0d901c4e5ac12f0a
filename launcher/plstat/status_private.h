/* SPDX-License-Identifier: MIT */
/* Shared by status.c, trial_read.c, trial_status.c and their tests. */
#ifndef PL_LAUNCHER_PLSTAT_STATUS_PRIVATE_H
#define PL_LAUNCHER_PLSTAT_STATUS_PRIVATE_H

#include "launcher/plstat/status.h"

/* Reads the files of ts->trial. 0, -ENOMEM. */
int pl_trial_status_read(struct pl_run *run, struct pl_trial_status *ts, struct pl_notes *notes);
void pl_trial_status_finish(struct pl_trial_status *ts);

/* Call where the newest start of the trial, by a retry or a requeue, has no attempt yet: what the
 * folder has is of the attempt before. known_s: an answer of Slurm from before says nothing about
 * that start. */
void pl_trial_status_set_aside(struct pl_trial_status *ts, double known_s);

/* Sets the job, as numbers and as text; task -1: it is no array. */
void pl_trial_status_set_job(struct pl_trial_status *ts, int64_t array, int64_t task);

/* A number of a trial's file, or the one given where the file has none. */
double pl_trial_number(const json_t *o, const char *key, double otherwise);
int64_t pl_trial_int(const json_t *o, const char *key, int64_t otherwise);

/* The time of the end of a result's attempt; 0: not known. */
double pl_trial_result_end(const json_t *result);

/* True if only Slurm can complete the status from the folder and the hub. */
bool pl_trial_status_needs_slurm(const struct pl_trial_status *ts);

/* Sets the state and the cause.
 * jobs         Slurm's answer; NULL: Slurm cannot be asked
 * submitted_s  time of the newest submission: an older answer does not prove that a job is lost */
void pl_trial_status_resolve(struct pl_trial_status *ts,
                             const struct pl_slurm_jobs *jobs,
                             double submitted_s);

/* After pl_trial_status_resolve() without Slurm, for a trial of --local. alive: its executor runs.
 */
void pl_trial_status_apply_local(struct pl_trial_status *ts, bool alive);

/* True if the trial's program named another objective than the sweep's: the result's value is of
 * that one. objective may be NULL. */
bool pl_trial_status_has_other_objective(const struct pl_trial_status *ts, const char *objective);

/* Sets step, objective and times. objective may be NULL. */
void pl_trial_status_values(struct pl_trial_status *ts, const char *objective);

/* A sweep's state from those of its trials. */
enum pl_sweep_state pl_sweep_state_of(const struct pl_trial_status *trials, size_t n);

#endif
