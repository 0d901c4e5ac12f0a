/* SPDX-License-Identifier: MIT */
/* A program that has saved and left at a signal of Slurm (plume.should_stop(), pltrain) is not
 * done, whatever its exit code. The hub, which writes the result first, does not ask Slurm why the
 * signal came: its result says that the trial is cancelled, so that nobody takes it for done. The
 * job script's end asks, and changes the result if the disk takes it. */
#ifndef PL_COMMON_RUN_RUN_STOPPED_H
#define PL_COMMON_RUN_RUN_STOPPED_H

#include "common/run/cause.h"
#include "common/run/run_folder.h"

/* The number of a signal at which programs stop: SIGUSR1, SIGUSR2 or SIGTERM; 0: `name`, of `len`
 * characters, is none of them. As sbatch takes them: "USR1", "sigusr1", "10". */
int pl_run_stop_signal(const char *name, size_t len);

/* The number of the signal at which the program says that it has stopped before its work was done;
 * 0: it has not, or has failed by itself meanwhile, or the run is local. Also of a result that
 * pl_run_set_stopped() has changed before with a cause that is inferred. */
int pl_run_stopped_at(const struct pl_run *run, const json_t *result, enum pl_trial_state state);

/* The same of a program that exits with 130 or 143, as one ended by a signal does, after a SIGTERM
 * that the step got from outside. The hub has called this cancelled, and Slurm has not said why it
 * came: `--signal TERM@S` may have sent it. */
bool pl_run_stopped_at_term(const struct pl_run *run, const json_t *result);

/* Gives the result of such a program its cause, and its exit code if that is 0. Returns 0, or
 * -ENOMEM: nothing has changed. */
int pl_run_set_stopped(json_t *result,
                       int number,
                       enum pl_cause_kind kind,
                       enum pl_confidence confidence,
                       enum pl_trial_state *ret_state);

#endif
