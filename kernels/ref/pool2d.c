/* SPDX-License-Identifier: MIT */
#include "kernels/ref/real.h"

#include <string.h>

static size_t windows(const struct pl_pool2d_args *a, size_t *ret_h, size_t *ret_w)
{
    *ret_h = pl_conv_size(a->height, a->kernel_h, a->stride_h, a->pad_h);
    *ret_w = pl_conv_size(a->width, a->kernel_w, a->stride_w, a->pad_w);
    return a->planes * *ret_h * *ret_w * a->inner;
}

/* Index into x of tap t of window k; false in the padding. */
static bool tap(const struct pl_pool2d_args *a, size_t k, size_t t, size_t *ret)
{
    size_t h, w, i, j, c = k % a->inner;

    windows(a, &h, &w);
    k /= a->inner;
    i = k / w % h * a->stride_h + t / a->kernel_w - a->pad_h;
    j = k % w * a->stride_w + t % a->kernel_w - a->pad_w;
    *ret = ((k / w / h * a->height + i) * a->width + j) * a->inner + c;
    return i < a->height && j < a->width; /* below 0 it wraps around */
}

void PL_REF(max_pool2d_forward)(const struct pl_pool2d_args *a)
{
    const real *x = a->x;
    real *y = a->y;
    size_t h, w, at;

    for (size_t k = 0; k < windows(a, &h, &w); k++) {
        bool first = true;

        for (size_t t = 0; t < a->kernel_h * a->kernel_w; t++) {
            if (!tap(a, k, t, &at) ||
                (!first && !(x[at] > y[k]) && !(isnan(x[at]) && !isnan(y[k]))))
                continue;
            first = false;
            y[k] = x[at];
            a->which[k] = (uint8_t)t;
        }
    }
}

void PL_REF(max_pool2d_backward)(const struct pl_pool2d_args *a)
{
    const real *dy = a->dy;
    real *dx = a->dx;
    size_t h, w, at;

    if (!a->dx_add)
        memset(dx, 0, a->planes * a->height * a->width * a->inner * sizeof(*dx));
    for (size_t k = 0; k < windows(a, &h, &w); k++)
        if (tap(a, k, a->which[k], &at))
            dx[at] += dy[k];
}

void PL_REF(avg_pool2d_forward)(const struct pl_pool2d_args *a)
{
    const real *x = a->x;
    real *y = a->y;
    size_t h, w, at, taps = a->kernel_h * a->kernel_w;

    for (size_t k = 0; k < windows(a, &h, &w); k++) {
        double sum = 0;

        for (size_t t = 0; t < taps; t++)
            sum += tap(a, k, t, &at) ? x[at] : 0;
        y[k] = (real)(sum / (double)taps);
    }
}

void PL_REF(avg_pool2d_backward)(const struct pl_pool2d_args *a)
{
    const real *dy = a->dy;
    real *dx = a->dx;
    size_t h, w, at, taps = a->kernel_h * a->kernel_w;

    if (!a->dx_add)
        memset(dx, 0, a->planes * a->height * a->width * a->inner * sizeof(*dx));
    for (size_t k = 0; k < windows(a, &h, &w); k++)
        for (size_t t = 0; t < taps; t++)
            if (tap(a, k, t, &at))
                dx[at] += dy[k] / (real)taps;
}
