/* SPDX-License-Identifier: MIT */
#include "runtime/engine/optim/scaler.h"

#include <math.h>

void pl_scaler_init(struct pl_scaler *scaler, bool enabled)
{
    *scaler = (struct pl_scaler){
        .enabled = enabled,
        .scale = enabled ? 65536 : 1,
        .growth = 2,
        .backoff = 0.5f,
        .interval = 2000,
    };
}

void pl_scaler_update(struct pl_scaler *scaler, bool overflow)
{
    float grown = scaler->scale * scaler->growth;

    if (!scaler->enabled)
        return;
    if (overflow) {
        scaler->scale *= scaler->backoff;
        scaler->good_steps = 0;
        scaler->skipped++;
    } else if (++scaler->good_steps == scaler->interval) {
        if (isfinite(grown))
            scaler->scale = grown;
        scaler->good_steps = 0;
    }
}
