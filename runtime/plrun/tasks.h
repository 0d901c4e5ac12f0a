/* SPDX-License-Identifier: MIT */
/* The step of a local trial: what srun does elsewhere. */
#ifndef PL_RUNTIME_PLRUN_TASKS_H
#define PL_RUNTIME_PLRUN_TASKS_H

#include "common/base/error.h"

/* Starts the program n times, as the tasks of a step on this machine, with the variables that Slurm
 * would set, and waits for all. Signals go to the whole process group: this process only waits.
 * nodes  above 1: as a step on so many nodes, at most n. Each has its share of the tasks, a name
 *        (HOST-0, HOST-1, ...), its part of the GPUs in CUDA_VISIBLE_DEVICES, and so a daemon.
 * Returns the highest exit code (128 + N after a signal), or a negative errno. */
int pl_tasks_run(char *const *argv, unsigned n, unsigned nodes, struct pl_error *err);

#endif
