/* SPDX-License-Identifier: MIT */
#include "runtime/engine/optim/clip.h"

#include <math.h>

bool pl_clip_wants_norm(const struct pl_clip_rule *clip)
{
    return clip->by == PL_CLIP_NORM && clip->limit > 0;
}

double pl_clip_factor(const struct pl_clip_rule *clip, double norm)
{
    double factor = clip->limit / (norm + 1e-6);

    /* A NaN norm makes a NaN factor, so that it shows in the parameters. */
    return pl_clip_wants_norm(clip) && !(factor >= 1) ? factor : 1;
}

double pl_clip_value(const struct pl_clip_rule *clip)
{
    return clip->by == PL_CLIP_VALUE && clip->limit > 0 ? clip->limit : INFINITY;
}
