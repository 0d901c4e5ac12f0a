/* SPDX-License-Identifier: MIT */
/* Functions for the bodies of vectorised loops: no branches, no calls. A NaN gives a NaN. */
#ifndef PL_KERNELS_CPU_VMATH_H
#define PL_KERNELS_CPU_VMATH_H

#include "kernels/cpu/level.h"

#include <math.h>
#include <string.h>

#define PL_INLINE static inline __attribute__((always_inline))

/* Cody and Waite's reduction for x in [-87, 88]: x = n ln(2) + r, |r| <= ln(2)/2. Returns (e^r - 1)
 * / r, by the Taylor polynomial of e^r of degree 7, and sets r and 2^n. */
PL_INLINE float pl_exp_parts(float x, float *ret_r, float *ret_power)
{
    const float magic = 12582912.0f; /* 1.5 * 2^23: adding it rounds to an integer */
    float shifted = x * 1.44269504f + magic;
    float n = shifted - magic;
    float r = x - n * 0.693359375f + n * 2.12194440e-4f;
    float p = 1.98412698e-4f;
    uint32_t bits;

    p = p * r + 1.38888889e-3f;
    p = p * r + 8.33333333e-3f;
    p = p * r + 4.16666667e-2f;
    p = p * r + 1.66666667e-1f;
    p = p * r + 0.5f;
    p = p * r + 1.0f;
    memcpy(&bits, &shifted, sizeof(bits));
    bits = (bits + 127u) << 23; /* the integer is in the low bits of shifted */
    memcpy(ret_power, &bits, sizeof(*ret_power));
    *ret_r = r;
    return p;
}

/* e^x for x in [-87, 88], relative error below 2e-7. */
PL_INLINE float pl_exp_in_range(float x)
{
    float r, power, p = pl_exp_parts(x, &r, &power);

    return (p * r + 1.0f) * power;
}

/* e^x, clamped to e^-87 below and e^88 above. */
PL_INLINE float pl_exp(float x)
{
    float low = x < -87.0f ? -87.0f : x;

    return pl_exp_in_range(low > 88.0f ? 88.0f : low);
}

/* e^x for x <= 0, without the upper clamp. Below -87 it stays at e^-87. */
PL_INLINE float pl_exp_nonpositive(float x)
{
    return pl_exp_in_range(x < -87.0f ? -87.0f : x);
}

PL_INLINE float pl_sigmoid(float x)
{
    return 1 / (1 + pl_exp(-x));
}

/* e^x - 1 for x <= 0; relative error below 3e-7, also where x is small. */
PL_INLINE float pl_expm1_nonpositive(float x)
{
    float r, power, p = pl_exp_parts(x < -87.0f ? -87.0f : x, &r, &power);

    return p * r * power + (power - 1);
}

/* The relative error is below 4e-7. */
PL_INLINE float pl_tanh(float x)
{
    float less = pl_expm1_nonpositive(-2 * fabsf(x));

    return copysignf(less / (2 + less), x);
}

PL_INLINE float pl_at_least(float x, float low)
{
    return x < low ? low : x;
}

PL_INLINE float pl_at_most(float x, float high)
{
    return x > high ? high : x;
}

/* Bounds of the arguments below. At a bound the exponential is nearly 0, but not 0. A huge x times
 * such a number is large. So x is bounded, too, where the product must be nearly 0. */
#define PL_SIGMOID_MAX 87.0f
#define PL_PHI_MAX 13.0f       /* 13^2 / 2 < 87 */
#define PL_GELU_TANH_MAX 9.97f /* pl_gelu_tanh_inner(9.97) < 87 */

/* For |x| <= PL_SIGMOID_MAX. */
PL_INLINE float pl_sigmoid_in_range(float x)
{
    return 1 / (1 + pl_exp_in_range(-x));
}

/* The normal distribution's Phi(x), absolute error below 2e-7 (Abramowitz and Stegun 7.1.26), and
 * e^(-x^2/2), which its derivative needs. */
PL_INLINE float pl_phi(float x, float *ret_exp)
{
    float z = pl_at_most(fabsf(x), PL_PHI_MAX) * 0.707106781f;
    float t = 1 / (1 + 0.3275911f * z), e = pl_exp_in_range(-z * z), tail;

    tail = 1.061405429f;
    tail = tail * t - 1.453152027f;
    tail = tail * t + 1.421413741f;
    tail = tail * t - 0.284496736f;
    tail = tail * t + 0.254829592f;
    tail = 0.5f * tail * t * e;
    *ret_exp = e;
    return x < 0 ? tail : 1 - tail;
}

PL_INLINE float pl_gelu_tanh_inner(float x)
{
    return 1.59576912f * (x + 0.044715f * x * x * x);
}

/* act(x). The activation is a constant at each call. */
PL_INLINE float pl_activate(const enum pl_activation act, float x)
{
    float e, low;

    switch (act) {
    case PL_ACT_RELU:
        return x <= 0 ? 0 : x;
    case PL_ACT_GELU:
        return pl_at_least(x, -PL_PHI_MAX) * pl_phi(x, &e);
    case PL_ACT_GELU_TANH:
        low = pl_at_least(x, -PL_GELU_TANH_MAX);
        return low * pl_sigmoid_in_range(pl_gelu_tanh_inner(pl_at_most(low, PL_GELU_TANH_MAX)));
    case PL_ACT_SILU:
        low = pl_at_least(x, -PL_SIGMOID_MAX);
        return low * pl_sigmoid_in_range(pl_at_most(low, PL_SIGMOID_MAX));
    case PL_ACT_TANH:
        return pl_tanh(x);
    case PL_ACT_SIGMOID:
        return pl_sigmoid(x);
    default:
        return x;
    }
}

/* act'(x). */
PL_INLINE float pl_activate_slope(const enum pl_activation act, float x)
{
    float e, s;

    switch (act) {
    case PL_ACT_RELU:
        return x <= 0 ? 0 : 1;
    case PL_ACT_GELU:
        s = pl_phi(x, &e);
        x = copysignf(pl_at_most(fabsf(x), PL_PHI_MAX), x);
        return s + x * 0.398942280f * e;
    case PL_ACT_GELU_TANH:
        x = pl_at_most(pl_at_least(x, -PL_GELU_TANH_MAX), PL_GELU_TANH_MAX);
        s = pl_sigmoid_in_range(pl_gelu_tanh_inner(x));
        return s + x * s * (1 - s) * 1.59576912f * (1 + 0.134145f * x * x);
    case PL_ACT_SILU:
        x = pl_at_most(pl_at_least(x, -PL_SIGMOID_MAX), PL_SIGMOID_MAX);
        s = pl_sigmoid_in_range(x);
        return s + x * s * (1 - s);
    case PL_ACT_TANH:
        s = pl_tanh(x);
        return 1 - s * s;
    case PL_ACT_SIGMOID:
        s = pl_sigmoid(x);
        return s * (1 - s);
    default:
        return 1;
    }
}

#endif
