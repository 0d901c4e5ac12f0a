/* SPDX-License-Identifier: MIT */
/* More ops on images [batch, channels, height, width] and on signals [batch, channels, time];
 * include it after plume/module.h. Values and gradients are PyTorch's. plume_conv2d() and the pools
 * of windows are in plume/ops.h. */
#ifndef PL_OPS_IMAGE_H
#define PL_OPS_IMAGE_H

#include "plume/ops.h"
#include "plume/ops_shape.h"

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
    struct plume_op_args args = {{0}, {0}};

    if (!how)
        return plume_refuse_null(pl, "a convolution: how is NULL");
    args = (struct plume_op_args){
        {plume_window_pair(how->stride, 1), plume_window_pair(how->pad, 0),
         plume_window_pair(how->dilation, 1), plume_window_pair(how->output_pad, 0),
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
        return plume_refuse_null(pl, "conv1d: x or w is NULL");
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

/* The positions of the elements in `size` ranges that cover n elements: range i begins at i n /
 * size, rounded down, and ends before (i + 1) n / size, rounded up. PLUME_I32 [size *ret_longest],
 * no gradient; a shorter range has its last position twice. Neither n nor size is 0. */
static inline plume_tensor *
plume_range_positions(struct plume_context *pl, size_t n, size_t size, size_t *ret_longest)
{
    size_t whole = n / size, rest = n % size, longest = 1;
    plume_tensor *count, *i, *j, *parts, *low, *high, *less;

    for (size_t k = 0; k < size; k++) {
        size_t length = whole + ((k + 1) * rest + size - 1) / size - k * rest / size;

        longest = length > longest ? length : longest;
    }
    *ret_longest = longest;
    count = plume_range(pl, size * longest, 0, 1);
    i = plume_whole_div(pl, count, plume_whole_number(pl, (int32_t)longest));
    j = plume_whole_mod(pl, count, plume_whole_number(pl, (int32_t)longest));
    count = plume_whole_number(pl, (int32_t)size);
    parts = plume_whole_mul(pl, i, plume_whole_number(pl, (int32_t)rest));
    low = plume_whole_div(pl, parts, count);
    i = plume_whole_mul(pl, i, plume_whole_number(pl, (int32_t)whole));
    i = plume_whole_add(pl, plume_whole_add(pl, i, low), j);
    if (longest == 1)
        return i;
    /* 0, or -1 for ranges that are one shorter, to the last position of the range */
    high = plume_whole_add(pl, parts, plume_whole_number(pl, (int32_t)(rest + size - 1)));
    less = plume_whole_sub(pl, plume_whole_div(pl, high, count), low);
    less = plume_whole_sub(pl, less, plume_whole_number(pl, (int32_t)(longest - whole)));
    j = plume_whole_div(pl, j, plume_whole_number(pl, (int32_t)(longest - 1)));
    return plume_whole_add(pl, i, plume_whole_mul(pl, j, less));
}

/* The maxima of `size` ranges that cover dimension dim, as PLUME_AREA's means: of signals [batch,
 * channels, time] along 2 torch's adaptive_max_pool1d. A NaN is the largest; the gradient goes to
 * the first of equal elements. Ranges that overlap are copied first. */
static inline plume_tensor *
plume_adaptive_max_pool(struct plume_context *pl, plume_tensor *x, size_t dim, size_t size)
{
    size_t shape[PLUME_RANK_MAX] = {1}, rank = x ? pl->api->shape(x, shape) : 0;
    size_t n = dim < rank ? shape[dim] : 0, parted[4] = {1, size, 1, 1};

    if (!x)
        return plume_refuse_null(pl, "adaptive max pool: x is NULL");
    if (dim >= rank)
        return plume_refuse_dims(pl, "adaptive max pool", dim, rank);
    if (size == 0 || n > 0x7fffffff || n % size >= 0x7fffffff / size) {
        pl->api->fail(pl, -EINVAL, "adaptive max pool: the size is 0, or exceeds 32 bits");
        return NULL;
    }
    for (size_t d = 0; d < rank; d++)
        parted[d < dim ? 0 : 3] *= d == dim ? 1 : shape[d];
    parted[2] = n / size;
    if (n % size != 0)
        x = plume_index_select(pl, x, dim, plume_range_positions(pl, n, size, &parted[2]));
    if (parted[2] == 1)
        return x;
    shape[dim] = size;
    return plume_reshape(pl, plume_max(pl, plume_reshape(pl, x, 4, parted), 2), rank, shape);
}

/* The same of the height x width ranges of an image [batch, channels, height, width]: torch's
 * adaptive_max_pool2d. It is plume_max_pool2d() if these divide the image into squares. */
static inline plume_tensor *
plume_adaptive_max_pool2d(struct plume_context *pl, plume_tensor *x, size_t height, size_t width)
{
    size_t shape[PLUME_RANK_MAX] = {0}, rank = x ? pl->api->shape(x, shape) : 0, square;

    square = rank == 4 && height ? shape[2] / height : 0;
    if (square > 1 && square <= 16 && square * height == shape[2] && square * width == shape[3])
        return plume_max_pool2d(pl, x, square, square, 0);
    /* Along the width first: of equal elements the first by rows is found. */
    return plume_adaptive_max_pool(pl, plume_adaptive_max_pool(pl, x, 3, width), 2, height);
}

#endif
