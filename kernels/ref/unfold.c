/* SPDX-License-Identifier: MIT */
#include "kernels/ref/real.h"

/* Visits cols in order, which fixes the order of fold's sums. */
static void windows(const struct pl_unfold_args *a, bool fold)
{
    size_t oh = pl_window_count(a->height, a->kernel_h, a->stride_h, a->pad_h, a->dilation_h);
    size_t ow = pl_window_count(a->width, a->kernel_w, a->stride_w, a->pad_w, a->dilation_w);
    size_t each = a->channels / a->groups, at = 0;
    const real *src = a->src;
    real *dst = a->dst;

    for (size_t g = 0; g < a->groups; g++)
        for (size_t n = 0; n < a->batch; n++)
            for (size_t i = 0; i < oh; i++)
                for (size_t j = 0; j < ow; j++)
                    for (size_t c = g * each; c < (g + 1) * each; c++)
                        for (size_t u = 0; u < a->kernel_h; u++)
                            for (size_t v = 0; v < a->kernel_w; v++, at++) {
                                size_t row = i * a->stride_h + u * a->dilation_h - a->pad_h;
                                size_t col = j * a->stride_w + v * a->dilation_w - a->pad_w;
                                bool inside = row < a->height && col < a->width;
                                size_t x =
                                    ((n * a->channels + c) * a->height + row) * a->width + col;

                                if (fold && inside)
                                    dst[x] += src[at];
                                else if (!fold && a->add)
                                    dst[at] += inside ? src[x] : 0;
                                else if (!fold)
                                    dst[at] = inside ? src[x] : 0;
                            }
}

void PL_REF(unfold)(const struct pl_unfold_args *a)
{
    windows(a, false);
}

void PL_REF(fold)(const struct pl_unfold_args *a)
{
    real *x = a->dst;

    for (size_t i = 0; !a->add && i < a->batch * a->channels * a->height * a->width; i++)
        x[i] = 0;
    windows(a, true);
}
