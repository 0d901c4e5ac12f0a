/* SPDX-License-Identifier: MIT */
/* A function of slurm_jobs.c, public for its test. */
#ifndef PL_LAUNCHER_SLURM_SLURM_JOBS_PRIVATE_H
#define PL_LAUNCHER_SLURM_SLURM_JOBS_PRIVATE_H

#include "launcher/slurm/slurm_jobs.h"

/* Copies to "past" of Slurm's new answer `doc` the ended array tasks that the document before it
 * (NULL: none) has and the answer has not. -EINVAL for a damaged answer, -ENOMEM. */
int pl_slurm_jobs_keep_ended(json_t *doc, const json_t *before, struct pl_error *err);

#endif
