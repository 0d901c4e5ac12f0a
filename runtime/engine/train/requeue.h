/* SPDX-License-Identifier: MIT */
/* Asking Slurm to run this job again from its start (checklist 4.5). */
#ifndef PL_RUNTIME_ENGINE_TRAIN_REQUEUE_H
#define PL_RUNTIME_ENGINE_TRAIN_REQUEUE_H

#include "common/base/error.h"

/* `scontrol requeue` of $SLURM_JOB_ID, or of the array's task. 1 asked, 0 where there is no job,
 * -errno where scontrol cannot be run or fails. */
int pl_requeue(struct pl_error *err);

#endif
