/* SPDX-License-Identifier: MIT */
/* Asks the controller, with a time limit, for its limits for arrays, or only whether it answers. */
#ifndef PL_LAUNCHER_SLURM_SLURM_LIMITS_H
#define PL_LAUNCHER_SLURM_SLURM_LIMITS_H

#include "launcher/slurm/slurm_conf.h"

#define PL_SLURM_LIMITS_MS 10000

/* Asks through libslurm if a slurm.conf is readable, else through scontrol(1).
 * 0
 * -EHOSTUNREACH, -ETIMEDOUT  no controller answered: try again later
 * -ENOENT                    no Slurm on this machine: SLURM_CONF names no file, or no scontrol */
int pl_slurm_limits_get(struct pl_slurm_limits *ret, struct pl_error *err);

/* Asks only whether a controller answers, in half the time; errors as above. */
int pl_slurm_limits_ping(struct pl_error *err);

#endif
