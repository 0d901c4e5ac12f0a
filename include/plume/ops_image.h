/* SPDX-License-Identifier: MIT */
/* More ops on images [batch, channels, height, width] and on signals [batch, channels, time];
 * include it after plume/module.h. Values and gradients are PyTorch's. plume_conv2d() and the pools
 * of windows are in plume/ops.h. */
#ifndef PL_OPS_IMAGE_H
#define PL_OPS_IMAGE_H

#include "plume/ops.h"

#include <errno.h>

/* Along height and width. A 0 in stride, dilation and groups means 1, so that {0} is the plain
 * convolution. */
struct plume_window {
    size_t stride[2], pad[2], dilation[2];
    size_t groups;        /* of input channels, each with its own part of the output channels */
    size_t output_pad[2]; /* of plume_conv_transpose(): more rows and columns at the end */
};

static inline int64_t plume_window_pair(const size_t two[2], size_t least)
{
    size_t h = two[0] ? two[0] : least, w = two[1] ? two[1] : least;

    return h > 0x7fffffff || w > 0x7fffffff ? -1 : (int64_t)(h | (uint64_t)w << 32);
}

static inline plume_tensor *plume_conv_call(struct plume_context *pl,
                                            enum plume_op op,
                                            plume_tensor *x,
                                            plume_tensor *w,
                                            plume_tensor *b,
                                            const struct plume_window *how,
                                            enum plume_activation act)
{
    plume_tensor *in[] = {x, w, b};
    struct plume_op_args args = {{plume_window_pair(how->stride, 1), plume_window_pair(how->pad, 0),
                                  plume_window_pair(how->dilation, 1),
                                  plume_window_pair(how->output_pad, 0),
                                  how->groups ? (int64_t)how->groups : 1, (int64_t)act},
                                 {0}};

    return plume_op_call(pl, op, in, b ? 3 : 2, &args);
}

/* act(x * w + b), as plume_conv2d(): w [out, in / groups, kernel_h, kernel_w], any activation. One
 * group without dilation is fastest; others make the windows of x in memory. */
static inline plume_tensor *plume_conv(struct plume_context *pl,
                                       plume_tensor *x,
                                       plume_tensor *w,
                                       plume_tensor *b,
                                       const struct plume_window *how,
                                       enum plume_activation act)
{
    return plume_conv_call(pl, PLUME_OP_CONV, x, w, b, how, act);
}

/* The transposed convolution, whose result has the size (size - 1) stride - 2 pad + dilation
 * (kernel - 1) + output_pad + 1: w [in, out / groups, kernel_h, kernel_w]. output_pad is smaller
 * than stride. */
static inline plume_tensor *plume_conv_transpose(struct plume_context *pl,
                                                 plume_tensor *x,
                                                 plume_tensor *w,
                                                 plume_tensor *b,
                                                 const struct plume_window *how,
                                                 enum plume_activation act)
{
    return plume_conv_call(pl, PLUME_OP_CONV_TRANSPOSE, x, w, b, how, act);
}

/* x with a dimension of 1 before the last one; [..., n] to [..., 1, n], or back. */
static inline plume_tensor *plume_with_height(struct plume_context *pl, plume_tensor *x, int with)
{
    size_t shape[PLUME_RANK_MAX + 1] = {1, 1, 1, 1}, rank = x ? pl->api->shape(x, shape) : 0;

    if (!x)
        return NULL;
    if (rank != (with ? 3u : 4u)) {
        pl->api->fail(pl, -EINVAL,
                      "plume_conv1d: wanted: x [batch, in, time], w [out, in / groups, kernel]");
        return NULL;
    }
    shape[with ? 3 : 2] = shape[with ? 2 : 3];
    if (with)
        shape[2] = 1;
    return plume_reshape(pl, x, with ? 4 : 3, shape);
}

/* The same along time: x [batch, in, time], w [out, in / groups, kernel], b [out] or NULL. */
static inline plume_tensor *plume_conv1d(struct plume_context *pl,
                                         plume_tensor *x,
                                         plume_tensor *w,
                                         plume_tensor *b,
                                         size_t stride,
                                         size_t pad,
                                         size_t dilation,
                                         size_t groups,
                                         enum plume_activation act)
{
    const struct plume_window how = {{1, stride}, {0, pad}, {1, dilation}, groups, {0, 0}};
    plume_tensor *y =
        plume_conv(pl, plume_with_height(pl, x, 1), plume_with_height(pl, w, 1), b, &how, act);

    return plume_with_height(pl, y, 0);
}

/* By number: new ones are appended. */
enum plume_resample {
    PLUME_NEAREST = 0,    /* at PyTorch's places for f32, also of f64 */
    PLUME_LINEAR,         /* bilinear, of images */
    PLUME_LINEAR_CORNERS, /* the same with PyTorch's align_corners */
    PLUME_AREA,           /* means of ranges, which cover all of x */
};

/* x with `size` elements along dimension dim instead of what it has. */
static inline plume_tensor *plume_resample(
    struct plume_context *pl, plume_tensor *x, size_t dim, size_t size, enum plume_resample how)
{
    struct plume_op_args args = {{(int64_t)dim, (int64_t)size, (int64_t)how}, {0}};

    return plume_op_call(pl, PLUME_OP_RESAMPLE, &x, 1, &args);
}

/* An image [batch, channels, height, width] of another size. */
static inline plume_tensor *plume_upsample(
    struct plume_context *pl, plume_tensor *x, size_t height, size_t width, enum plume_resample how)
{
    return plume_resample(pl, plume_resample(pl, x, 2, height, how), 3, width, how);
}

/* Means of height x width ranges that cover the image, whatever its size. */
static inline plume_tensor *
plume_adaptive_avg_pool2d(struct plume_context *pl, plume_tensor *x, size_t height, size_t width)
{
    return plume_upsample(pl, x, height, width, PLUME_AREA);
}

#endif
