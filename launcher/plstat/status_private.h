/* SPDX-License-Identifier: MIT */
/* Shared by status.c, trial_status.c and their tests. */
#ifndef PL_LAUNCHER_PLSTAT_STATUS_PRIVATE_H
#define PL_LAUNCHER_PLSTAT_STATUS_PRIVATE_H

#include "launcher/plstat/status.h"

/* Reads what the run folder says about ts->trial. 0, -ENOMEM. */
int pl_trial_status_read(struct pl_run *run, struct pl_trial_status *ts, struct pl_notes *notes);
void pl_trial_status_finish(struct pl_trial_status *ts);

/* True where the folder and the hub leave something that only Slurm knows. */
bool pl_trial_status_needs_slurm(const struct pl_trial_status *ts);

/* Decides the state and the cause.
 * jobs         what Slurm knows; NULL where it cannot be asked
 * submitted_s  when the newest array was submitted: an older answer of Slurm's proves nothing */
void pl_trial_status_settle(struct pl_trial_status *ts,
                            const struct pl_slurm_jobs *jobs,
                            double submitted_s);

/* Takes step, objective and times from what was found. name may be NULL. */
void pl_trial_status_values(struct pl_trial_status *ts, const char *objective);

/* A sweep's state from those of its trials. */
enum pl_sweep_state pl_sweep_state_of(const struct pl_trial_status *trials, size_t n);

#endif
