/* SPDX-License-Identifier: MIT */
/* Conversions of short rows of 16-bit numbers, with the bits of half.h. `type` is a constant in
 * each call, so that the loops have no branches. */
#ifndef PL_KERNELS_CPU_HALVES_H
#define PL_KERNELS_CPU_HALVES_H

#include "kernels/cpu/vmath.h"

#ifdef __F16C__
#include <immintrin.h>
#define HALVES 8 /* f16 numbers that one instruction converts */
#endif

PL_INLINE void
pl_widen_row(const enum pl_half type, const uint16_t *restrict half, float *restrict to, size_t n)
{
    size_t k = 0;

#ifdef __F16C__
    for (; type == PL_HALF_F16 && k + HALVES <= n; k += HALVES)
        _mm256_storeu_ps(to + k, _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(half + k))));
#endif
    for (; k < n; k++)
        to[k] = pl_f32_of_half(type, half[k]);
}

PL_INLINE void pl_narrow_row(const enum pl_half type,
                             const float *restrict from,
                             uint16_t *restrict half,
                             size_t n)
{
    size_t k = 0;

#ifdef __F16C__
    for (; type == PL_HALF_F16 && k + HALVES <= n; k += HALVES)
        _mm_storeu_si128((__m128i *)(half + k),
                         _mm256_cvtps_ph(_mm256_loadu_ps(from + k), _MM_FROUND_TO_NEAREST_INT));
#endif
    for (; k < n; k++)
        half[k] = pl_half_of_f32(type, from[k]);
}

#endif
