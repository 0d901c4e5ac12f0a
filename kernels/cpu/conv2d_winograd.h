/* SPDX-License-Identifier: MIT */
/* Parts of conv2d.c: 3x3 kernels at stride 1, see conv2d_winograd.c. A few images at a time, on the
 * calling thread. */
#ifndef PL_KERNELS_CPU_CONV2D_WINOGRAD_H
#define PL_KERNELS_CPU_CONV2D_WINOGRAD_H

#include "kernels/cpu/micro.h"

/* Sizes, in floats unless noted. */
struct pl_winograd {
    const struct pl_conv2d_args *a;
    size_t m, side, products;   /* outputs of a tile's side, 2 or 4; m + 2, its square */
    size_t oh, ow, th, tw;      /* outputs; tiles */
    size_t images;              /* at a time: few tiles of an image would not fill a product */
    size_t in, out;             /* from one pixel to the next in a transposed image */
    size_t rows;                /* of tiles, in a block */
    size_t x_step, y_step;      /* from one product to the next in a block */
    size_t x_size, y_size;      /* a transposed image with its border, a transposed output */
    size_t w_size, turned_size; /* weights for the output, and for dx */
    size_t dw_size;             /* sums of dw before they are transformed back */
};

/* True if it is faster than the other ways: few channels do not fill the vectors. */
static inline bool pl_winograd_fits(const struct pl_conv2d_args *a)
{
    return a->kernel_h == 3 && a->kernel_w == 3 && a->stride_h == 1 && a->stride_w == 1 &&
           a->pad_h <= 2 && a->pad_w <= 2 && a->in >= PL_LANES && a->out >= PL_LANES &&
           a->height + 2 * a->pad_h > 3 && a->width + 2 * a->pad_w > 3;
}

/* images: the most that are given at a time. whole: all of them are one block, see below. */
struct pl_winograd PL_CPU(winograd)(const struct pl_conv2d_args *a, size_t images, bool whole);

/* The weights' transforms: [w_size] for the output, or rotated [turned_size] for dx. On all
 * threads.
 */
void PL_CPU(winograd_weights)(const struct pl_winograd *w, bool turned, float *to);

/* Scratch of w->images images, forward or backward. winograd_clear() clears its borders once for
 * any number of images. */
size_t PL_CPU(winograd_scratch)(const struct pl_winograd *w, bool backward);
void PL_CPU(winograd_clear)(const struct pl_winograd *w, bool backward, float *scratch);

/* y [n, out, oh, ow] of x [n, in, height, width], for n <= w->images. */
void PL_CPU(winograd_forward)(const struct pl_winograd *w,
                              const float *weights,
                              const float *x,
                              size_t n,
                              float *scratch,
                              float *y);

/* Gives winograd_backward() the channels [o, o + count) of dz of image i, count <= PL_LANES:
 * dz [count, oh, ow]. */
void PL_CPU(winograd_take_dz)(
    const struct pl_winograd *w, size_t i, size_t o, size_t count, const float *dz, float *scratch);

/* The given dz of n <= w->images images to dx [n, in, height, width], written or added to, and to
 * sums [dw_size], added to. Each may be NULL. */
void PL_CPU(winograd_backward)(const struct pl_winograd *w,
                               const float *turned,
                               const float *x,
                               size_t n,
                               float *scratch,
                               float *dx,
                               float *sums);

/* dw [out, in, 3, 3] += the transform of the sums. */
void PL_CPU(winograd_dw)(const struct pl_winograd *w, const float *sums, float *dw);

/* The steps of these, for conv2d_winograd_batch.c: one image each, with `pixels`, a transposed
 * image of x_size or y_size, in between. Transforms are at the image's first tile in a block.
 * winograd_read_x() needs a border of zeros. */
void PL_CPU(winograd_read_x)(const struct pl_winograd *w, const float *x, float *pixels, float *v);
void PL_CPU(winograd_read_dz)(const struct pl_winograd *w, const float *pixels, float *z);
void PL_CPU(winograd_write_y)(const struct pl_winograd *w, const float *m, float *pixels, float *y);
void PL_CPU(winograd_write_dx)(const struct pl_winograd *w,
                               const float *m,
                               float *pixels,
                               float *dx);
/* Channels [o, o + count) of dz, as of winograd_take_dz(), to a transposed image. */
void PL_CPU(winograd_turn_dz)(
    const struct pl_winograd *w, size_t o, size_t count, const float *dz, float *pixels);
/* As winograd_dw(), output channels [begin, end) only. */
void PL_CPU(winograd_dw_rows)(
    const struct pl_winograd *w, size_t begin, size_t end, const float *sums, float *dw);

/* C [m, n] = A [m, k] B, or added to C. Rows and columns of A are a_row and a_col floats apart,
 * rows of B b_row; B may be panels of PL_NR columns, b_panel floats each. Rows of C are written up
 * to a multiple of PL_MR, columns up to one of PL_NR. */
struct pl_winograd_product {
    size_t m, n, k;
    const float *a, *b;
    size_t a_row, a_col, b_row, b_panel, c_row;
    bool add;
    float *c;
};

void PL_CPU(winograd_multiply)(const struct pl_winograd_product *p);

/* The whole batch, on all threads, for few windows per image: the tiles of all images are the rows
 * of one product. False: nothing is written, out of memory or because another way is faster. */
bool PL_CPU(winograd_batch_forward)(const struct pl_conv2d_args *a);
bool PL_CPU(winograd_batch_backward)(const struct pl_conv2d_args *a);

#endif
