/* SPDX-License-Identifier: MIT */
/* Dynamic loss scale for 16-bit floats, as torch.amp.GradScaler: the loss is multiplied by the
 * scale and gradients are divided by it. If a gradient is not finite, the step is skipped and the
 * scale halves; after `interval` good steps in a row it doubles. Plain data; a checkpoint keeps
 * scale, good_steps and skipped. */
#ifndef PL_RUNTIME_ENGINE_OPTIM_SCALER_H
#define PL_RUNTIME_ENGINE_OPTIM_SCALER_H

#include <stdbool.h>
#include <stdint.h>

struct pl_scaler {
    bool enabled; /* else the scale stays 1 and no step is skipped */
    float scale;
    float growth, backoff;
    uint32_t interval;   /* good steps between two growths; > 0 */
    uint32_t good_steps; /* since the last change of the scale */
    uint64_t skipped;    /* skipped steps so far */
};

/* 65536, 2, 0.5, 2000: GradScaler's defaults. */
void pl_scaler_init(struct pl_scaler *scaler, bool enabled);

/* Call once per optimizer step, when the gradients of all optimizers are checked. */
void pl_scaler_update(struct pl_scaler *scaler, bool overflow);

#endif
