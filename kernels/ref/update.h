/* SPDX-License-Identifier: MIT */
/* Shared by the reference updates, see struct pl_update. */
#ifndef PL_KERNELS_REF_UPDATE_H
#define PL_KERNELS_REF_UPDATE_H

#include "kernels/ref/real.h"

static inline real update_grad(const struct pl_update *u, size_t k)
{
    real factor = (real)(u->factor_at ? *u->factor_at : u->factor), clip = (real)u->clip;
    real g = ((const real *)u->grad)[k] * factor;

    if (g > clip)
        return clip;
    return g < -clip ? -clip : g;
}

static inline void update_param(const struct pl_update *u, size_t k, real value)
{
    if (u->half != PL_HALF_NONE) {
        u->copy[k] = pl_half_of_f32(u->half, (float)value);
        if (u->rounded)
            value = (real)pl_f32_of_half(u->half, u->copy[k]);
    }
    ((real *)u->param)[k] = value;
    for (unsigned i = 0; i < u->n_mirrors; i++)
        ((real *)u->mirrors[i])[k] = value;
}

/* at::lerp: exact at both ends. */
static inline real update_lerp(real from, real to, real weight)
{
    if (weight < (real)0.5)
        return from + weight * (to - from);
    return to - (to - from) * (1 - weight);
}

#endif
