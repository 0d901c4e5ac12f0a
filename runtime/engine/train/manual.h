/* SPDX-License-Identifier: MIT */
/* Manual optimization: the module's manual_step drives backward passes and optimizer steps. Each
 * optimizer has a lane (stage.h). Its gradients stay with this rank until its step, which reduces
 * them: the engine cannot know before which backward pass is the last. */
#ifndef PL_RUNTIME_ENGINE_TRAIN_MANUAL_H
#define PL_RUNTIME_ENGINE_TRAIN_MANUAL_H

#include "runtime/engine/train/trainer.h"

/* -EINVAL names the option that a module with manual_step excludes. */
int pl_manual_check(const struct pl_trainer *t, struct pl_error *err);

/* Calls manual_step on a batch. losses: by optimizer, the last one of each or PL_NO_LOSS.
 * *ret_stepped: an optimizer has made a step. Collective. */
int pl_manual_batch(struct pl_trainer *t,
                    const struct plume_batch *batch,
                    double *losses,
                    bool *ret_stepped,
                    struct pl_error *err);

#endif
