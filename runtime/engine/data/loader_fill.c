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

#define CONVERT(from, to)                                                                          \
    do {                                                                                           \
        for (size_t k_ = 0; k_ < n; k_++) {                                                        \
            from value_;                                                                           \
            memcpy(&value_, (const char *)src + k_ * sizeof(from), sizeof(from));                  \
            ((to *)dst)[k_] = (to)((to)value_ * (to)scale + (to)shift);                            \
        }                                                                                          \
        return;                                                                                    \
    } while (0)

static void
convert_f32(void *dst, const void *src, enum plume_dtype from, size_t n, double scale, double shift)
{
    if (from == PLUME_U8)
        CONVERT(uint8_t, float);
    if (from == PLUME_U16)
        CONVERT(uint16_t, float);
    if (from == PLUME_I32)
        CONVERT(int32_t, float);
    if (from == PLUME_F64)
        CONVERT(double, float);
    CONVERT(float, float);
}

static void
convert_f64(void *dst, const void *src, enum plume_dtype from, size_t n, double scale, double shift)
{
    if (from == PLUME_U8)
        CONVERT(uint8_t, double);
    if (from == PLUME_U16)
        CONVERT(uint16_t, double);
    if (from == PLUME_I32)
        CONVERT(int32_t, double);
    if (from == PLUME_F64)
        CONVERT(double, double);
    CONVERT(float, double);
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
