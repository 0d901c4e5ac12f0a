/* SPDX-License-Identifier: MIT */
/* The daemon's control group of version 2. slurmstepd is in job_J/step_S/slurm, the tasks are in
 * job_J/step_S/user; Slurm 26.05 calls the job's folder by the SLUID of its run. As soon as the
 * node's tasks have ended, Slurm kills what is in either, and the daemon still has to write the
 * result, or to serve other nodes. So it is in job_J/step_S/plume: the step's limits hold there,
 * too. Elsewhere (version 1, no cgroups) these functions do nothing. */
#ifndef PL_SPANK_PLUGIN_OWN_GROUP_H
#define PL_SPANK_PLUGIN_OWN_GROUP_H

#include <stdbool.h>

/* As root, in a process that is where slurmstepd is: makes the group and enters it.
 * Async-signal-safe. */
void pl_own_group_enter(void);

/* As root, in slurmstepd: removes the group, for which it waits at most 1 s. What is in it after
 * 0.5 s is killed: a user's program can get into it, and Slurm ends nothing there. Where the hub
 * `stays` for other nodes' tasks, all goes to ../plume/job_N instead, next to the job's group. */
void pl_own_group_remove(bool stays);

#endif
