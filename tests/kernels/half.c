/* SPDX-License-Identifier: MIT */
/* The 16-bit formats: no backends, so checked against their definition. The nearest of all 2^16
 * numbers, by bisection, is the truth. */
#include "tests/kernels/check.h"

#include <math.h>

/* |value| of a positive pattern, from the format's definition. */
static double value(enum pl_half type, unsigned h)
{
    unsigned digits = type == PL_HALF_F16 ? 10 : 7, bias = type == PL_HALF_F16 ? 15 : 127;
    unsigned exponent = h >> digits, rest = h & ((1u << digits) - 1);
    int power = (int)(exponent ? exponent : 1) - (int)bias - (int)digits;

    return ldexp((exponent ? 1u << digits : 0) + rest, power);
}

static unsigned nearest(enum pl_half type, double x)
{
    unsigned low = 0, high = type == PL_HALF_F16 ? 0x7c00 : 0x7f80; /* infinity, as a number */

    while (high - low > 1) {
        unsigned middle = (low + high) / 2;

        if (value(type, middle) <= x)
            low = middle;
        else
            high = middle;
    }
    if (x - value(type, low) != value(type, high) - x)
        return x - value(type, low) < value(type, high) - x ? low : high;
    return low & 1 ? high : low;
}

static void one(enum pl_half type, float x)
{
    unsigned h = pl_half_of_f32(type, x), infinity = type == PL_HALF_F16 ? 0x7c00 : 0x7f80;
    double inf_value = value(type, infinity), a = fabs((double)x);
    unsigned want = a >= inf_value ? infinity : nearest(type, a);

    check_case("half %d of %a", (int)type, (double)x);
    if (isnan(x))
        check_close("NaN", 0, (h & 0x7fff) > infinity, 1, 0);
    else
        check_close("bits", 0, h, want | (signbit(x) ? 0x8000u : 0), 0);
}

void check_op(const struct pl_kernels *ref, const struct pl_kernels *got)
{
    static const float edges[] = {65504,    65519.99f, 65520,    65536,   0x1p-14f,
                                  0x1p-24f, 0x1p-25f,  3.39e38f, 3.4e38f, 0x1p-133f,
                                  INFINITY, -INFINITY, NAN};

    (void)ref;
    (void)got;
    for (int type = PL_HALF_BF16; type <= PL_HALF_F16; type++) {
        unsigned infinity = type == PL_HALF_F16 ? 0x7c00 : 0x7f80;

        for (unsigned h = 0; h <= infinity; h++) {
            float x = pl_f32_of_half((enum pl_half)type, (uint16_t)h);

            check_case("half %d %x", type, h);
            if (h < infinity)
                check_close("value", h, (double)x, value((enum pl_half)type, h), 0);
            else
                check_close("infinity", h, (double)x, INFINITY, 0);
            check_close("back", h, pl_half_of_f32((enum pl_half)type, -x), h | 0x8000, 0);
        }
        for (size_t i = 0; i < PL_COUNT(edges); i++)
            one((enum pl_half)type, edges[i]);
        for (int i = 0; i < 200000; i++)
            one((enum pl_half)type, pl_f32_of_bits((uint32_t)check_random(UINT32_MAX)));
    }
}
