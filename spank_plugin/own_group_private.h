/* SPDX-License-Identifier: MIT */
/* For the test. */
#ifndef PL_SPANK_PLUGIN_OWN_GROUP_PRIVATE_H
#define PL_SPANK_PLUGIN_OWN_GROUP_PRIVATE_H

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>

/* TEXT: of /proc/self/cgroup in slurmstepd, which it changes. The daemon's group next to
 * slurmstepd's, with room for "/cgroup.procs", and where the job's folder starts in it. False: this
 * is no group of Slurm's of version 2. Async-signal-safe. */
bool pl_own_group_path(char *text, char ret[PATH_MAX], size_t *ret_job);

/* Kills the processes that GROUP/cgroup.procs has, one by one: for kernels before 5.14. */
void pl_own_group_kill_each(const char *group);

#endif
