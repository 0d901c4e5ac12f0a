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

#endif
