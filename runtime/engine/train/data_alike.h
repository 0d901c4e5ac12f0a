/* SPDX-License-Identifier: MIT */
/* Checks that all ranks give the same samples to divide: each rank takes its part of the same list,
 * so ranks whose lists differ would train some samples twice and others never. */
#ifndef PL_RUNTIME_ENGINE_TRAIN_DATA_ALIKE_H
#define PL_RUNTIME_ENGINE_TRAIN_DATA_ALIKE_H

#include "runtime/engine/train/trainer.h"

/* Compares --seed, and of each stage the number of samples and the module's own list (order), with
 * rank 0's; under horovod, whose ranks may have unequal data, not those of the training. Samples
 * themselves are not compared. Collective; a world of one does nothing. -EINVAL names the first
 * rank that differs, on all ranks; -ENOMEM. */
int pl_data_alike(const struct pl_trainer *t, struct pl_error *err);

#endif
