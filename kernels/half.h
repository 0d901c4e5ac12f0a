/* SPDX-License-Identifier: MIT */
/* The two 16-bit floating-point formats that are stored: bf16 (the upper half of an f32) and f16
 * (IEEE 754 binary16). Conversions round to nearest, ties to even, and are integer arithmetic
 * without branches, so that they give the same bits everywhere and loops of them vectorise. */
#ifndef PL_KERNELS_HALF_H
#define PL_KERNELS_HALF_H

#include "kernels/anywhere.h"

#include <stdint.h>
#include <string.h>

enum pl_half {
    PL_HALF_NONE,
    PL_HALF_BF16,
    PL_HALF_F16,
};

PL_ANYWHERE static inline uint32_t pl_f32_bits(float x)
{
    uint32_t bits;

    memcpy(&bits, &x, sizeof(bits));
    return bits;
}

PL_ANYWHERE static inline float pl_f32_of_bits(uint32_t bits)
{
    float x;

    memcpy(&x, &bits, sizeof(x));
    return x;
}

PL_ANYWHERE static inline float pl_f32_of_bf16(uint16_t h)
{
    return pl_f32_of_bits((uint32_t)h << 16);
}

/* A NaN stays a (quiet) NaN. */
PL_ANYWHERE static inline uint16_t pl_bf16_of_f32(float x)
{
    uint32_t bits = pl_f32_bits(x), round = 0x7fff + (bits >> 16 & 1);
    uint32_t nan = (bits & 0x7fffffff) > 0x7f800000 ? 0xffffffff : 0;

    return (uint16_t)((((bits + round) >> 16) & ~nan) | (((bits >> 16) | 0x40) & nan));
}

/* Normal and denormal numbers are scaled by 2^112, which is exact; infinities and NaNs get the
 * largest exponent. */
PL_ANYWHERE static inline float pl_f32_of_f16(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000) << 16, rest = h & 0x7fffu;
    uint32_t special = rest >= 0x7c00 ? 0x7f800000 : 0;
    float magnitude = pl_f32_of_bits(rest << 13) * 0x1p112f;

    return pl_f32_of_bits(pl_f32_bits(magnitude) | special | sign);
}

/* Magnitudes from 65520 on become infinite. A denormal result is rounded by adding a number whose
 * last place is the result's. */
PL_ANYWHERE static inline uint16_t pl_f16_of_f32(float x)
{
    uint32_t bits = pl_f32_bits(x), sign = bits >> 16 & 0x8000, a = bits & 0x7fffffff;
    uint32_t normal = (a + 0xfff + (a >> 13 & 1) - (112u << 23)) >> 13;
    uint32_t tiny = pl_f32_bits(pl_f32_of_bits(a) + 0.5f) - 0x3f000000;
    uint32_t is_tiny = a < 0x38800000 ? 0xffffffff : 0; /* below 2^-14 */
    uint32_t is_inf = a >= 0x477ff000 ? 0xffffffff : 0; /* 65520 */
    uint32_t is_nan = a > 0x7f800000 ? 0x0200 | (a >> 13 & 0x3ff) : 0;
    uint32_t h = (tiny & is_tiny) | (normal & ~is_tiny);

    return (uint16_t)((((h & ~is_inf) | (0x7c00 & is_inf)) | is_nan) | sign);
}

PL_ANYWHERE static inline float pl_f32_of_half(enum pl_half type, uint16_t h)
{
    return type == PL_HALF_F16 ? pl_f32_of_f16(h) : pl_f32_of_bf16(h);
}

PL_ANYWHERE static inline uint16_t pl_half_of_f32(enum pl_half type, float x)
{
    return type == PL_HALF_F16 ? pl_f16_of_f32(x) : pl_bf16_of_f32(x);
}

#endif
