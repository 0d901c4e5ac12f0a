/* SPDX-License-Identifier: MIT */
/* The local executor: the process that runs the trials of --local. */
#ifndef PL_LAUNCHER_PLSUBMIT_LOCAL_RUN_H
#define PL_LAUNCHER_PLSUBMIT_LOCAL_RUN_H

#include "launcher/plsubmit/shape.h"

#define PL_LOCAL_ARRAYS 1000u /* of one executor: their numbers follow each other */

/* Ranks and GPUs of a trial, on all of its nodes. */
unsigned pl_local_ranks_of(const struct pl_shape *shape);
unsigned pl_local_gpus_of(const struct pl_shape *shape);

/* GPUs of this machine: those of CUDA_VISIBLE_DEVICES, else all. */
unsigned pl_local_count_gpus(void);

/* Runs the trials of the arrays from number `job` on until all have ended. A trial is a job script,
 * a session of its own, with the environment `env` and the variables of a Slurm job.
 *   SIGUSR1  trials that sweep.json has as cancelled do not start, or end by SIGTERM
 *   SIGTERM  all trials end; the executor follows
 * lock: of pl_run_local_lock(). Messages go to stderr. Returns an exit code. */
int pl_executor_run(const char *dir, const char *job, char *const *env, int lock);

#endif
