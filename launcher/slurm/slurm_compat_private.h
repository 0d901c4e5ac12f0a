/* SPDX-License-Identifier: MIT */
/* A function of slurm_compat.c, public for its test. */
#ifndef PL_LAUNCHER_SLURM_SLURM_COMPAT_PRIVATE_H
#define PL_LAUNCHER_SLURM_SLURM_COMPAT_PRIVATE_H

#include <stdint.h>

/* squeue(1)'s name of why a job waits or has ended (enum job_state_reason). NULL: no reason.
 * "Other": neither we nor this libslurm know the name. It must not be freed. */
const char *pl_slurm_reason_name(uint32_t reason);

#endif
