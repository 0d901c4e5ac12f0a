/* SPDX-License-Identifier: MIT */
/* Data that plsubmit and plstat read through libslurm. Differences between Slurm's releases stay in
 * slurm_compat.c, which compiles against 20.11 to 26.05; doc/slurm-notes.md says what was tried
 * with which. A build without libslurm has slurm_compat_none.c, and asks scontrol. */
#ifndef PL_LAUNCHER_SLURM_SLURM_COMPAT_H
#define PL_LAUNCHER_SLURM_SLURM_COMPAT_H

#include "launcher/slurm/slurm_conf.h"

#include <jansson.h>
#include <sys/types.h>

/* Asks slurmctld whether it is there at all, which is quick. May block as long as libslurm likes,
 * print, and end the process: call it in a child (pl_child_call()).
 * 0, -EHOSTUNREACH (no answer), -ENOTSUP (built without libslurm). */
int pl_slurm_query_ping(struct pl_error *err);

/* Asks slurmctld for its limits, after a ping; as above. */
int pl_slurm_query_limits(struct pl_slurm_limits *ret, struct pl_error *err);

/* All jobs of a user that slurmctld still knows, as an array of objects (slurm_jobs.h says what is
 * in them). As pl_slurm_query_limits(): for a child. -EHOSTUNREACH, -ENOTSUP, -ENOMEM. */
int pl_slurm_load_jobs(uid_t uid, json_t **ret, struct pl_error *err);

#endif
