/* SPDX-License-Identifier: MIT */
/* Windows and lanes of pooling, for pool2d.c and pool2d_max.c. */
#ifndef PL_KERNELS_CPU_POOL2D_H
#define PL_KERNELS_CPU_POOL2D_H

#include "kernels/cpu/pack.h"
#include "kernels/pool/pool.h"

#define PL_POOL2D_GRAIN 16384 /* elements of x per chunk */

/* Of two vectors, for PL_MASK: the elements at even places, and at odd ones. */
#define PL_POOL2D_EVEN(l, s) (2 * (l) + (s))
#define PL_POOL2D_ODD(l, s) (2 * (l) + 1 + (s))

struct pl_pool2d {
    const struct pl_pool2d_args *a;
    size_t oh, ow;
};

/* The taps [from, to) of a window that are inside an axis; its first tap is at start - pad. */
static inline void pl_pool2d_clip(
    size_t start, size_t pad, size_t kernel, size_t size, size_t *ret_from, size_t *ret_to)
{
    *ret_from = start < pad ? pad - start : 0;
    *ret_to = PL_MIN(kernel, size + pad - start);
}

/* True if windows are 2 x 2 and do not overlap: the most common case, computed without branches. */
static inline bool pl_pool2d_halves(const struct pl_pool2d_args *a)
{
    return a->kernel_h == 2 && a->kernel_w == 2 && a->stride_h == 2 && a->stride_w == 2 &&
           a->pad_h == 0 && a->pad_w == 0;
}

static inline void pl_pool2d_run(const struct pl_pool2d_args *a,
                                 void (*body)(void *ctx, size_t begin, size_t end))
{
    struct pl_pool2d p = {.a = a,
                          .oh = pl_conv_size(a->height, a->kernel_h, a->stride_h, a->pad_h),
                          .ow = pl_conv_size(a->width, a->kernel_w, a->stride_w, a->pad_w)};

    pl_pool_parallel(a->planes, PL_POOL2D_GRAIN / (a->height * a->width + 1) + 1, body, &p);
}

#endif
