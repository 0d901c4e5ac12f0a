/* SPDX-License-Identifier: MIT */
#include "kernels/cpu/conv2d.h"

/* The windows [first, last) along an axis whose tap t is inside it. */
static void inside(size_t size,
                   size_t windows,
                   size_t stride,
                   size_t pad,
                   size_t t,
                   size_t *ret_first,
                   size_t *ret_last)
{
    size_t first = t >= pad ? 0 : (pad - t + stride - 1) / stride;
    size_t last = size + pad > t ? (size + pad - t - 1) / stride + 1 : 0;

    *ret_last = PL_MIN(last, windows);
    *ret_first = PL_MIN(first, *ret_last);
}

void PL_CPU(to_columns)(const struct pl_conv2d_args *a, const float *x, float *columns)
{
    size_t oh = pl_conv_size(a->height, a->kernel_h, a->stride_h, a->pad_h);
    size_t ow = pl_conv_size(a->width, a->kernel_w, a->stride_w, a->pad_w);
    size_t taps = a->kernel_h * a->kernel_w;

    for (size_t k = 0; k < a->in * taps; k++, columns += oh * ow) {
        const float *plane = x + k / taps * a->height * a->width;
        size_t u = k / a->kernel_w % a->kernel_h, v = k % a->kernel_w;
        size_t i0, i1, j0, j1;

        inside(a->height, oh, a->stride_h, a->pad_h, u, &i0, &i1);
        inside(a->width, ow, a->stride_w, a->pad_w, v, &j0, &j1);
        memset(columns, 0, oh * ow * sizeof(*columns));
        for (size_t i = i0; i < i1; i++)
            for (size_t j = j0; j < j1; j++)
                columns[i * ow + j] = plane[(i * a->stride_h + u - a->pad_h) * a->width +
                                            j * a->stride_w + v - a->pad_w];
    }
}

void PL_CPU(from_columns)(const struct pl_conv2d_args *a, const float *columns, float *dx)
{
    size_t oh = pl_conv_size(a->height, a->kernel_h, a->stride_h, a->pad_h);
    size_t ow = pl_conv_size(a->width, a->kernel_w, a->stride_w, a->pad_w);
    size_t taps = a->kernel_h * a->kernel_w;

    for (size_t k = 0; k < a->in * taps; k++, columns += oh * ow) {
        float *plane = dx + k / taps * a->height * a->width;
        size_t u = k / a->kernel_w % a->kernel_h, v = k % a->kernel_w;
        size_t i0, i1, j0, j1;

        inside(a->height, oh, a->stride_h, a->pad_h, u, &i0, &i1);
        inside(a->width, ow, a->stride_w, a->pad_w, v, &j0, &j1);
        for (size_t i = i0; i < i1; i++)
            for (size_t j = j0; j < j1; j++)
                plane[(i * a->stride_h + u - a->pad_h) * a->width + j * a->stride_w + v -
                      a->pad_w] += columns[i * ow + j];
    }
}
