/* SPDX-License-Identifier: MIT */
/* Parts of conv2d.c: images of one batch, on the calling thread unless noted.
 *
 * Strides of 1 are computed in place ("direct"): an image is copied into a padded one with rows of
 * `row` floats. At positions p = i * row + j each tap of the kernel is the same image shifted by a
 * constant, so the product's inner loop needs no packed columns; results at positions past a row's
 * end are dropped. For other strides the columns of all windows are written out (im2col) and
 * multiplied. */
#ifndef PL_KERNELS_CPU_CONV2D_H
#define PL_KERNELS_CPU_CONV2D_H

#include "kernels/cpu/micro.h"

/* An image with a border of zeros. */
struct pl_padded {
    size_t channels, height, width, pad_h, pad_w;
    size_t row;   /* floats from one row to the next */
    size_t plane; /* floats from one channel to the next */
};

/* One stride-1 correlation: out [m, height, width] (+)= act(w image + bias). */
struct pl_direct {
    struct pl_padded image;
    size_t m, k; /* output channels; channels * kernel_h * kernel_w */
    size_t height, width;
    const float *packed;  /* panels of PL_MR rows of w */
    const uint32_t *rows; /* [k] first element of each tap in the image */
    const float *bias;    /* [m] or NULL */
    bool relu, add;
};

static inline struct pl_padded
pl_padded(size_t channels, size_t height, size_t width, size_t pad_h, size_t pad_w)
{
    return (struct pl_padded){.channels = channels,
                              .height = height,
                              .width = width,
                              .pad_h = pad_h,
                              .pad_w = pad_w,
                              .row = width + 2 * pad_w,
                              .plane = (height + 2 * pad_h) * (width + 2 * pad_w)};
}

/* Floats of a padded image, including those that vectors read past its end. */
static inline size_t pl_padded_size(const struct pl_padded *p)
{
    return p->channels * p->plane + 2 * PL_NR;
}

/* Floats of m rows of k packed into panels. */
static inline size_t pl_panels_size(size_t m, size_t k)
{
    return (m + PL_MR - 1) / PL_MR * PL_MR * k + PL_LANES;
}

/* Copies [channels, height, width] into a padded image. If y is given, values whose y is <= 0
 * become 0 (relu's backward). */
void PL_CPU(pad)(const struct pl_padded *p, const float *from, const float *y, float *to);

/* Writes the first element of each tap of the kernel: to [channels * kernel_h * kernel_w]. */
void PL_CPU(taps)(const struct pl_padded *p, size_t kernel_h, size_t kernel_w, uint32_t *to);

void PL_CPU(direct)(const struct pl_direct *d, const float *image, float *out);

/* dw [out, in, kernel_h, kernel_w] += the correlation of an image with dz [out, height, width],
 * which is padded to the image's rows, with zeros past each row's end. */
void PL_CPU(direct_dw)(const struct pl_padded *image,
                       size_t kernel_h,
                       size_t kernel_w,
                       size_t out,
                       const struct pl_padded *dz_shape,
                       const float *x,
                       const float *dz,
                       float *dw);

/* dz of the channels [first, first + count) of image n, dense; their sums are added to db. */
void PL_CPU(conv_dz)(
    const struct pl_conv2d_args *a, size_t n, size_t first, size_t count, float *dz, float *db);

/* columns [in * kernel_h * kernel_w, windows] of an image, and the inverse, which adds to dx. */
void PL_CPU(to_columns)(const struct pl_conv2d_args *a, const float *x, float *columns);
void PL_CPU(from_columns)(const struct pl_conv2d_args *a, const float *columns, float *dx);

/* True if an image has so few windows that those of several images belong into one product. */
static inline bool pl_conv_batch_fits(const struct pl_conv2d_args *a)
{
    size_t windows = pl_conv_size(a->height, a->kernel_h, a->stride_h, a->pad_h) *
                     pl_conv_size(a->width, a->kernel_w, a->stride_w, a->pad_w);

    return a->batch > 1 && windows > 0 && windows <= 16;
}

/* The whole batch, on all threads. False: out of memory, nothing is written. */
bool PL_CPU(batch_forward)(const struct pl_conv2d_args *a);
bool PL_CPU(batch_backward)(const struct pl_conv2d_args *a);

#endif
