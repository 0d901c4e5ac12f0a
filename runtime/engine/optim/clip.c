/* SPDX-License-Identifier: MIT */
#include "runtime/engine/optim/clip.h"
#include "kernels/kernels.h"

#include <math.h>

bool pl_clip_wants_norm(const struct pl_clip_rule *clip)
{
    return clip->by == PL_CLIP_NORM && clip->limit > 0;
}

double pl_clip_factor(const struct pl_clip_rule *clip, double norm)
{
    return pl_clip_wants_norm(clip) ? pl_clip_to(clip->limit, norm) : 1;
}

double pl_clip_value(const struct pl_clip_rule *clip)
{
    return clip->by == PL_CLIP_VALUE && clip->limit > 0 ? clip->limit : INFINITY;
}
