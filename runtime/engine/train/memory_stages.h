/* SPDX-License-Identifier: MIT */
/* Before the first step: the memory that a pipeline's stages need, a cut that fits, and if there is
 * none, the options that need less. */
#ifndef PL_RUNTIME_ENGINE_TRAIN_MEMORY_STAGES_H
#define PL_RUNTIME_ENGINE_TRAIN_MEMORY_STAGES_H

#include "runtime/engine/train/memory_plan.h"

/* Sets needs and limits of a pipeline's stages, of their copies the largest and the smallest. If a
 * stage needs more than it may take, the cut moves to the best that fits by these plans; if none
 * does, rank 0 warns, and names options whose plans fit. Call before the first step. Collective.
 * -ENOMEM, -EIO, -ECONNRESET, or the error of a hook. */
int pl_memory_stages(struct pl_trainer *trainer, struct pl_error *err);

#endif
