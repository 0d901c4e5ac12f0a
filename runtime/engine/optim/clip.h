/* SPDX-License-Identifier: MIT */
/* Gradient clipping, by norm or by value (checklist 4.4), between unscaling and the step. The
 * factor or limit that comes out is applied in the optimizer's own pass over the gradients. */
#ifndef PL_RUNTIME_ENGINE_OPTIM_CLIP_H
#define PL_RUNTIME_ENGINE_OPTIM_CLIP_H

#include "runtime/engine/config/train_options.h"

struct pl_clip_rule {
    enum pl_clip by;
    double limit; /* 0 = off */
};

/* Whether the norm must be known. */
bool pl_clip_wants_norm(const struct pl_clip_rule *clip);

/* What gradients of this L2 norm are multiplied by: min(1, limit / (norm + 1e-6)), as
 * torch.nn.utils.clip_grad_norm_. 1 where clipping is not by norm. */
double pl_clip_factor(const struct pl_clip_rule *clip, double norm);

/* The limit of each element's magnitude; INFINITY where clipping is not by value. */
double pl_clip_value(const struct pl_clip_rule *clip);

#endif
