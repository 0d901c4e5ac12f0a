/* SPDX-License-Identifier: MIT */
/* Slurm's configuration: whether this machine has one, and its limits for job arrays. */
#ifndef PL_LAUNCHER_SLURM_SLURM_CONF_H
#define PL_LAUNCHER_SLURM_SLURM_CONF_H

#include "common/base/error.h"

#include <stdbool.h>

struct pl_slurm_limits {
    unsigned max_array_size;  /* MaxArraySize: one more than the largest index */
    unsigned max_array_tasks; /* SchedulerParameters max_array_tasks; 0: not set */
};

/* True if libslurm can read a slurm.conf, at SLURM_CONF or at one of its default paths. Call
 * libslurm only then: without a slurm.conf it searches DNS for a controller for a minute and then
 * ends its process. */
bool pl_slurm_conf_readable(void);

/* The ClusterName in that slurm.conf or in a file that it includes, in small letters as Slurm has
 * it; the caller frees it. NULL: not known. */
char *pl_slurm_conf_cluster(void);

/* Returns max_array_tasks of SchedulerParameters, 0 if it is not set. params may be NULL. */
unsigned pl_slurm_max_array_tasks(const char *params);

/* Parses the output of `scontrol show config`. -EINVAL if it has no MaxArraySize. */
int pl_slurm_limits_parse(const char *text, struct pl_slurm_limits *ret);

#endif
