/* SPDX-License-Identifier: MIT */
/* Shared by the updates, see struct pl_update. They work block by block: gradients into a buffer
 * that stays in L1, the update itself, and the copies. */
#ifndef PL_KERNELS_CPU_UPDATE_H
#define PL_KERNELS_CPU_UPDATE_H

#include "kernels/cpu/level.h"
#include "kernels/pool/pool.h"

#include <math.h>
#include <string.h>

#define UPDATE_BLOCK 1024            /* elements */
#define UPDATE_GRAIN ((size_t)32768) /* elements per chunk */

/* The effective gradients [begin, begin + n): the originals if nothing changes them, else in buf.
 */
static inline const float *
update_grads(const struct pl_update *u, size_t begin, size_t n, float *restrict buf)
{
    const float *restrict grad = (const float *)u->grad + begin;
    float factor = (float)(u->factor_at ? *u->factor_at : u->factor), clip = (float)u->clip;

    if (factor == 1 && isinf(clip))
        return grad;
    for (size_t k = 0; k < n; k++) {
        float g = grad[k] * factor;

        g = g > clip ? clip : g;
        buf[k] = g < -clip ? -clip : g;
    }
    return buf;
}

/* Call after the update of [begin, begin + n). */
static inline void update_copy(const struct pl_update *u, size_t begin, size_t n)
{
    float *restrict param = (float *)u->param + begin;
    uint16_t *restrict copy = u->copy + begin;

    if (u->half == PL_HALF_F16)
        for (size_t k = 0; k < n; k++)
            copy[k] = pl_f16_of_f32(param[k]);
    else if (u->half == PL_HALF_BF16)
        for (size_t k = 0; k < n; k++)
            copy[k] = pl_bf16_of_f32(param[k]);
    if (u->half == PL_HALF_F16 && u->rounded)
        for (size_t k = 0; k < n; k++)
            param[k] = pl_f32_of_f16(copy[k]);
    else if (u->half == PL_HALF_BF16 && u->rounded)
        for (size_t k = 0; k < n; k++)
            param[k] = pl_f32_of_bf16(copy[k]);
    for (unsigned i = 0; i < u->n_mirrors; i++)
        memcpy((float *)u->mirrors[i] + begin, param, n * sizeof(*param));
}

#endif
