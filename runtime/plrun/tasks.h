/* SPDX-License-Identifier: MIT */
/* The step of a local trial: what srun does elsewhere. */
#ifndef PL_RUNTIME_PLRUN_TASKS_H
#define PL_RUNTIME_PLRUN_TASKS_H

#include "common/base/error.h"

/* Starts the program n times, as the tasks of a step on this machine, with the variables that Slurm
 * would set, and waits for all. Signals go to the whole process group: this process only waits.
 * Returns the highest exit code (128 + N after a signal), or a negative errno. */
int pl_tasks_run(char *const *argv, unsigned n, struct pl_error *err);

#endif
