/* SPDX-License-Identifier: MIT */
/* A user's jobs by squeue(1): for sites whose slurm.conf is nowhere that our libslurm looks
 * (configless, or in a folder of its own), and for builds without libslurm. The site's squeue knows
 * where its configuration is. */
#ifndef PL_LAUNCHER_SLURM_SLURM_SQUEUE_H
#define PL_LAUNCHER_SLURM_SLURM_SQUEUE_H

#include "common/base/error.h"

#include <jansson.h>
#include <sys/types.h>

/* Asks for all jobs of a user that slurmctld knows, as an array of objects with the keys of struct
 * pl_slurm_job, except "exit", "signal" and "restarts", which squeue's fields do not have in all
 * releases. A new reference.
 * -ENOENT (no squeue), -EHOSTUNREACH, -ETIMEDOUT, -ENOMEM. */
int pl_slurm_squeue_jobs(uid_t uid, unsigned limit_ms, json_t **ret, struct pl_error *err);

/* Reads squeue's lines, "ID|ARRAY|TASKS|STATE|NODES|SUBMIT|START|END|LIMIT|REASON|NODELIST|NAME".
 * A line that is none (the rest of a job's name with a line break) counts as absent. Public for its
 * test. -ENOMEM. */
int pl_slurm_squeue_parse(const char *text, json_t **ret);

#endif
