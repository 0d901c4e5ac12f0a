/* SPDX-License-Identifier: MIT */
/* Queries of plsubmit and plstat through libslurm. slurm_compat.c handles differences between Slurm
 * releases; it compiles against 20.11 to 26.05, and doc/slurm-notes.md says which were tried.
 * Without libslurm, slurm_compat_none.c replaces it, and Plume asks scontrol instead. */
#ifndef PL_LAUNCHER_SLURM_SLURM_COMPAT_H
#define PL_LAUNCHER_SLURM_SLURM_COMPAT_H

#include "launcher/slurm/slurm_conf.h"

#include <jansson.h>
#include <sys/types.h>

/* Pings slurmctld, which is quick. libslurm may block without limit, print, and end the process:
 * call this in a child (pl_child_call()). 0, -EHOSTUNREACH (no answer), -ENOTSUP (built without
 * libslurm). */
int pl_slurm_query_ping(struct pl_error *err);

/* Pings slurmctld and asks for its limits; as above. */
int pl_slurm_query_limits(struct pl_slurm_limits *ret, struct pl_error *err);

/* Loads all jobs of a user that slurmctld still knows, as an array of objects (struct pl_slurm_job
 * has their keys). Call it in a child, too. -EHOSTUNREACH, -ENOTSUP, -ENOMEM. */
int pl_slurm_query_jobs(uid_t uid, json_t **ret, struct pl_error *err);

#endif
