/* SPDX-License-Identifier: MIT */
/* The controller's limits for arrays, asked for a bounded time; also the answer to whether there is
 * a controller at all. */
#ifndef PL_LAUNCHER_SLURM_SLURM_LIMITS_H
#define PL_LAUNCHER_SLURM_SLURM_LIMITS_H

#include "launcher/slurm/slurm_conf.h"

#define PL_SLURM_LIMITS_MS 10000

/* Through libslurm where it may be called, else through scontrol(1).
 * 0, -EHOSTUNREACH or -ETIMEDOUT (no controller: try again later), -ENOENT (no such configuration
 * as SLURM_CONF names, or no scontrol: no Slurm
 * on this machine). */
int pl_slurm_limits_get(struct pl_slurm_limits *ret, struct pl_error *err);

/* Only whether there is a controller, at half the price; errors as above. */
int pl_slurm_limits_ping(struct pl_error *err);

#endif
