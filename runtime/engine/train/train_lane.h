/* SPDX-License-Identifier: MIT */
/* One batch of training in one lane, and its parts, which manual.c drives itself. */
#ifndef PL_RUNTIME_ENGINE_TRAIN_TRAIN_LANE_H
#define PL_RUNTIME_ENGINE_TRAIN_TRAIN_LANE_H

#include "runtime/engine/train/trainer.h"

#include <math.h>

#define PL_NO_LOSS (-HUGE_VAL) /* an infinite loss ends the run, or its step is skipped */

/* Forward and backward of one batch in a lane; adds to the gradients if t->accumulated is above 1.
 * `reduces` them while backward runs. Sets *ret_loss if the module gave a loss. */
int pl_train_lane_backward(struct pl_trainer *t,
                           unsigned optimizer_idx,
                           const struct plume_batch *batch,
                           bool reduces,
                           double *ret_loss,
                           struct pl_error *err);

/* Reduces what is not reduced yet and steps the lane's optimizer, or all if there is one lane. */
int pl_train_lane_optimize(struct pl_trainer *t, unsigned optimizer_idx, struct pl_error *err);

/* Both, if the step is due; else forward and backward only. batch NULL: this rank takes part with
 * zeros. Sets *ret_loss if the module gave a loss. Collective. */
int pl_train_lane(struct pl_trainer *t,
                  unsigned optimizer_idx,
                  const struct plume_batch *batch,
                  bool due,
                  double *ret_loss,
                  struct pl_error *err);

#endif
