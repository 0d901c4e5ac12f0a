/* SPDX-License-Identifier: MIT */
/* Gradient clipping by norm or by value (doc/semantics.md 4.4), between unscaling and the step. The
 * optimizer applies the factor or limit in its own pass over the gradients. */
#ifndef PL_RUNTIME_ENGINE_OPTIM_CLIP_H
#define PL_RUNTIME_ENGINE_OPTIM_CLIP_H

#include "runtime/engine/config/train_options.h"

struct pl_clip_rule {
    enum pl_clip by;
    double limit; /* 0 = off */
};

/* True if clipping needs the norm. */
bool pl_clip_wants_norm(const struct pl_clip_rule *clip);

/* Factor for gradients of this L2 norm: min(1, limit / (norm + 1e-6)), as in
 * torch.nn.utils.clip_grad_norm_. 1 if clipping is not by norm. */
double pl_clip_factor(const struct pl_clip_rule *clip, double norm);

/* Limit of each element's magnitude; INFINITY if clipping is not by value. */
double pl_clip_value(const struct pl_clip_rule *clip);

#endif
