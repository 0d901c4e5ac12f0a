/* SPDX-License-Identifier: MIT */
/* Shared by batch norm's forward and backward.
 *
 * One thread handles a channel and sums in a fixed order. If a channel of an image is shorter than
 * a vector, a thread handles neighbouring channels together ("flat"): their values are contiguous,
 * and each value of an image has sums of its own. Arrays of 16 bits are converted by blocks, so
 * that the numbers are those of f32 arrays. */
#ifndef PL_KERNELS_CPU_BATCHNORM_H
#define PL_KERNELS_CPU_BATCHNORM_H

#include "kernels/cpu/halves.h"
#include "kernels/pool/pool.h"

#include <string.h>

#define PL_BN_LANES 8  /* parallel sums */
#define PL_BN_FLAT 256 /* the most values of an image that are handled together */
/* Values of a channel that are converted together: whole groups of PL_BN_LANES. */
#define PL_BN_BLOCK 512

static inline bool pl_bn_is_flat(const struct pl_batchnorm_args *a)
{
    return a->inner < PL_BN_LANES;
}

/* Calls body for each channel, or for the channels of PL_BN_FLAT values. */
static inline void pl_bn_run(const struct pl_batchnorm_args *a,
                             void (*each)(void *ctx, size_t begin, size_t end),
                             void (*flat)(void *ctx, size_t begin, size_t end))
{
    if (pl_bn_is_flat(a))
        pl_pool_parallel(a->channels, PL_BN_FLAT / PL_MAX(a->inner, (size_t)1), flat, (void *)a);
    else
        pl_pool_parallel(a->channels, 1, each, (void *)a);
}

typedef float pl_bn_floats __attribute__((vector_size(PL_BN_LANES * sizeof(float))));
typedef int32_t pl_bn_bits __attribute__((vector_size(PL_BN_LANES * sizeof(int32_t))));
typedef double pl_bn_doubles __attribute__((vector_size(PL_BN_LANES * sizeof(double))));

struct pl_bn_pair {
    pl_bn_doubles lanes[2];
};

static inline void pl_bn_finish(const struct pl_bn_pair *p, double *ret_a, double *ret_b)
{
    *ret_a = *ret_b = 0;
    for (size_t l = 0; l < PL_BN_LANES; l++) {
        *ret_a += p->lanes[0][l];
        *ret_b += p->lanes[1][l];
    }
}

/* n values from `at` on: in place, or converted into `block`. type is that of x_half and y_half. */
PL_INLINE const float *
pl_bn_get(const enum pl_half type, bool half, const void *p, size_t at, size_t n, float *block)
{
    if (type == PL_HALF_NONE || !half)
        return (const float *)p + at;
    pl_widen_row(type, (const uint16_t *)p + at, block, n);
    return block;
}

/* Values of a channel in an image that are handled at once. */
PL_INLINE size_t pl_bn_block_of(const struct pl_batchnorm_args *a, const enum pl_half type)
{
    return type == PL_HALF_NONE ? a->inner : PL_MIN(a->inner, (size_t)PL_BN_BLOCK);
}

/* Defines each(), with a constant type for each of the three. */
#define PL_BN_FOR_TYPES(each)                                                                      \
    static void each(void *ctx, size_t begin, size_t end)                                          \
    {                                                                                              \
        const struct pl_batchnorm_args *a = ctx;                                                   \
                                                                                                   \
        if (!a->x_half && !a->y_half)                                                              \
            each##_of(a, begin, end, PL_HALF_NONE);                                                \
        else if (a->half == PL_HALF_F16)                                                           \
            each##_of(a, begin, end, PL_HALF_F16);                                                 \
        else                                                                                       \
            each##_of(a, begin, end, PL_HALF_BF16);                                                \
    }

/* The n values of `channel` in image `image`, from its value `from` on. */
PL_INLINE size_t pl_bn_place(const struct pl_batchnorm_args *a,
                             size_t image,
                             size_t channel,
                             size_t from)
{
    return (image * a->channels + channel) * a->inner + from;
}

struct pl_bn_flat_sums {
    double of[2][PL_BN_FLAT];
};

/* Channel c of the block that begins with channel `begin`. */
static inline void pl_bn_finish_flat(
    const struct pl_bn_flat_sums *f, size_t c, size_t inner, double *ret_a, double *ret_b)
{
    *ret_a = *ret_b = 0;
    for (size_t k = c * inner; k < (c + 1) * inner; k++) {
        *ret_a += f->of[0][k];
        *ret_b += f->of[1][k];
    }
}

/* No tape asks for a sum here. */
static inline bool pl_bn_is_for_ref(const struct pl_batchnorm_args *a)
{
    return a->r || a->dr;
}

/* Backward, which may compute y again, has the same bits. */
PL_INLINE void pl_bn_norm(const float *restrict x,
                          float *restrict y,
                          size_t n,
                          float mean,
                          float scale,
                          float shift,
                          bool relu)
{
    if (relu)
        for (size_t k = 0; k < n; k++) {
            float v = (x[k] - mean) * scale + shift;

            y[k] = v <= 0 ? 0 : v;
        }
    else
        for (size_t k = 0; k < n; k++)
            y[k] = (x[k] - mean) * scale + shift;
}

/* The same for values of several channels. */
PL_INLINE void pl_bn_norm_flat(const float *restrict x,
                               float *restrict y,
                               size_t n,
                               const float *restrict means,
                               const float *restrict scales,
                               const float *restrict shifts,
                               bool relu)
{
    if (relu)
        for (size_t k = 0; k < n; k++) {
            float v = (x[k] - means[k]) * scales[k] + shifts[k];

            y[k] = v <= 0 ? 0 : v;
        }
    else
        for (size_t k = 0; k < n; k++)
            y[k] = (x[k] - means[k]) * scales[k] + shifts[k];
}

static inline float pl_bn_mean_of(const struct pl_batchnorm_args *a, size_t c)
{
    return ((const float *)a->mean)[c];
}

static inline float pl_bn_scale_of(const struct pl_batchnorm_args *a, size_t c)
{
    return ((const float *)a->inv_std)[c] * (a->w ? ((const float *)a->w)[c] : 1);
}

static inline float pl_bn_shift_of(const struct pl_batchnorm_args *a, size_t c)
{
    return a->b ? ((const float *)a->b)[c] : 0;
}

/* Writes a channel's value for each of its values in an image. */
static inline void pl_bn_repeat(float *to, float value, size_t n)
{
    for (size_t k = 0; k < n; k++)
        to[k] = value;
}

struct pl_bn_flat_norm {
    float means[PL_BN_FLAT], scales[PL_BN_FLAT], shifts[PL_BN_FLAT];
};

static inline void pl_bn_fill_flat(struct pl_bn_flat_norm *f,
                                   const struct pl_batchnorm_args *a,
                                   size_t begin,
                                   size_t end)
{
    for (size_t c = begin; c < end; c++) {
        size_t at = (c - begin) * a->inner;

        pl_bn_repeat(f->means + at, pl_bn_mean_of(a, c), a->inner);
        pl_bn_repeat(f->scales + at, pl_bn_scale_of(a, c), a->inner);
        pl_bn_repeat(f->shifts + at, pl_bn_shift_of(a, c), a->inner);
    }
}

#endif
