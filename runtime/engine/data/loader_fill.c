/* SPDX-License-Identifier: MIT */
#include "runtime/engine/data/loader_fill.h"

#include <string.h>

static bool is_integer(enum plume_dtype dtype)
{
    return dtype == PLUME_U8 || dtype == PLUME_U16 || dtype == PLUME_I32;
}

bool pl_loader_converts(enum plume_dtype have, enum plume_dtype want)
{
    bool real = have == PLUME_F32 || have == PLUME_F64;

    return (want == PLUME_F32 && (real || is_integer(have))) ||
           (want == PLUME_I32 && is_integer(have));
}

/* by: the type of the arithmetic. */
#define CONVERT(from, to, by)                                                                      \
    do {                                                                                           \
        for (size_t k_ = 0; k_ < n; k_++) {                                                        \
            from value_;                                                                           \
            memcpy(&value_, (const char *)src + k_ * sizeof(from), sizeof(from));                  \
            ((to *)dst)[k_] = (to)((by)value_ * (by)scale + (by)shift);                            \
        }                                                                                          \
        return;                                                                                    \
    } while (0)

/* In f32 a number far from 0, such as a time, would be rounded before the shift. Those of 8 and 16
 * bits are exact there, and take less time. */
static void
convert_f32(void *dst, const void *src, enum plume_dtype from, size_t n, double scale, double shift)
{
    if (from == PLUME_U8)
        CONVERT(uint8_t, float, float);
    if (from == PLUME_U16)
        CONVERT(uint16_t, float, float);
    if (from == PLUME_I32)
        CONVERT(int32_t, float, double);
    if (from == PLUME_F64)
        CONVERT(double, float, double);
    CONVERT(float, float, double);
}

static void
convert_f64(void *dst, const void *src, enum plume_dtype from, size_t n, double scale, double shift)
{
    if (from == PLUME_U8)
        CONVERT(uint8_t, double, double);
    if (from == PLUME_U16)
        CONVERT(uint16_t, double, double);
    if (from == PLUME_I32)
        CONVERT(int32_t, double, double);
    if (from == PLUME_F64)
        CONVERT(double, double, double);
    CONVERT(float, double, double);
}

void pl_loader_convert(void *dst,
                       enum plume_dtype to,
                       const void *src,
                       enum plume_dtype from,
                       size_t n,
                       double scale,
                       double shift)
{
    if (to == PLUME_F32) {
        convert_f32(dst, src, from, n, scale, shift);
    } else if (to == PLUME_F64) {
        convert_f64(dst, src, from, n, scale, shift);
    } else if (from == PLUME_I32) {
        memcpy(dst, src, n * sizeof(int32_t));
    } else if (from == PLUME_U8) {
        for (size_t k = 0; k < n; k++)
            ((int32_t *)dst)[k] = ((const uint8_t *)src)[k];
    } else {
        for (size_t k = 0; k < n; k++) {
            uint16_t value;

            memcpy(&value, (const char *)src + k * sizeof(value), sizeof(value));
            ((int32_t *)dst)[k] = value;
        }
    }
}
