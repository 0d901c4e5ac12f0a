/* SPDX-License-Identifier: MIT */
/* Of slurm_jobs.c, for its test. */
#ifndef PL_LAUNCHER_SLURM_SLURM_JOBS_PRIVATE_H
#define PL_LAUNCHER_SLURM_SLURM_JOBS_PRIVATE_H

#include "launcher/slurm/slurm_jobs.h"

/* Carries ends of array tasks that Slurm's new answer `doc` has no more over from the document
 * before it (NULL: none) into its "past". -EINVAL for a damaged answer, -ENOMEM. */
int pl_slurm_jobs_remember(json_t *doc, const json_t *before, struct pl_error *err);

#endif
