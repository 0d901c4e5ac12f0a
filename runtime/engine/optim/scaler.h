/* SPDX-License-Identifier: MIT */
/* Dynamic loss scale for 16-bit floats, as torch.amp.GradScaler: the loss is multiplied by the
 * scale, gradients are divided by it; where one is not finite the step is skipped and the scale
 * halves, after `interval` good steps in a row it doubles. Plain data; the state that a checkpoint
 * keeps is scale and good_steps. */
#ifndef PL_RUNTIME_ENGINE_OPTIM_SCALER_H
#define PL_RUNTIME_ENGINE_OPTIM_SCALER_H

#include <stdbool.h>
#include <stdint.h>

struct pl_scaler {
    bool enabled; /* else the scale is 1 for ever and no step is skipped */
    float scale;
    float growth, backoff;
    uint32_t interval;   /* good steps between two growths; > 0 */
    uint32_t good_steps; /* since the last change of the scale */
    uint64_t skipped;    /* steps so far that were not made */
};

/* 65536, 2, 0.5, 2000: GradScaler's defaults. */
void pl_scaler_init(struct pl_scaler *scaler, bool enabled);

/* Once an optimizer step, after the gradients of all optimizers were looked at. */
void pl_scaler_update(struct pl_scaler *scaler, bool overflow);

#endif
