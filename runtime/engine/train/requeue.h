/* SPDX-License-Identifier: MIT */
/* Asks Slurm to run this job again from its start (doc/semantics.md 4.5). */
#ifndef PL_RUNTIME_ENGINE_TRAIN_REQUEUE_H
#define PL_RUNTIME_ENGINE_TRAIN_REQUEUE_H

#include "common/base/error.h"

/* Runs `scontrol requeue` on $SLURM_JOB_ID, or on the array's task. Returns 1, 0 outside a job and
 * where plsubmit --requeue-on decides, -errno if scontrol cannot be run or fails. */
int pl_requeue(struct pl_error *err);

#endif
