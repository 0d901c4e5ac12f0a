/* SPDX-License-Identifier: MIT */
/* Bound by memory. unfold is parallel over windows, fold over the planes of x, each of which adds
 * its windows in order. */
#include "kernels/cpu/level.h"
#include "kernels/pool/pool.h"

#include <string.h>

#define GRAIN 8192

struct shape {
    const struct pl_unfold_args *a;
    size_t oh, ow, each, taps; /* each: channels of a group */
};

static struct shape shape_of(const struct pl_unfold_args *a)
{
    return (struct shape){
        .a = a,
        .oh = pl_window_count(a->height, a->kernel_h, a->stride_h, a->pad_h, a->dilation_h),
        .ow = pl_window_count(a->width, a->kernel_w, a->stride_w, a->pad_w, a->dilation_w),
        .each = a->channels / a->groups,
        .taps = a->kernel_h * a->kernel_w};
}

/* One window of one plane; cols has its `taps`. Positions before the plane wrap to large ones. */
static void plane_out(const struct pl_unfold_args *a,
                      size_t i,
                      size_t j,
                      const float *restrict x,
                      float *restrict cols)
{
    for (size_t u = 0; u < a->kernel_h; u++) {
        size_t row = i * a->stride_h + u * a->dilation_h - a->pad_h;

        for (size_t v = 0; v < a->kernel_w; v++, cols++) {
            size_t col = j * a->stride_w + v * a->dilation_w - a->pad_w;
            float value = row < a->height && col < a->width ? x[row * a->width + col] : 0;

            *cols = a->add ? *cols + value : value;
        }
    }
}

static void plane_in(const struct pl_unfold_args *a,
                     size_t i,
                     size_t j,
                     float *restrict x,
                     const float *restrict cols)
{
    for (size_t u = 0; u < a->kernel_h; u++) {
        size_t row = i * a->stride_h + u * a->dilation_h - a->pad_h;

        for (size_t v = 0; v < a->kernel_w; v++, cols++) {
            size_t col = j * a->stride_w + v * a->dilation_w - a->pad_w;

            if (row < a->height && col < a->width)
                x[row * a->width + col] += *cols;
        }
    }
}

/* Window r of [groups, batch, oh, ow]. */
static void unfold(void *ctx, size_t begin, size_t end)
{
    const struct shape *s = ctx;
    const struct pl_unfold_args *a = s->a;

    for (size_t r = begin; r < end; r++) {
        size_t j = r % s->ow, i = r / s->ow % s->oh, n = r / (s->ow * s->oh) % a->batch;
        size_t g = r / (s->ow * s->oh * a->batch);

        for (size_t c = 0; c < s->each; c++)
            plane_out(a, i, j,
                      (const float *)a->src +
                          (n * a->channels + g * s->each + c) * a->height * a->width,
                      (float *)a->dst + (r * s->each + c) * s->taps);
    }
}

/* Plane p of [batch, channels]. */
static void fold(void *ctx, size_t begin, size_t end)
{
    const struct shape *s = ctx;
    const struct pl_unfold_args *a = s->a;

    for (size_t p = begin; p < end; p++) {
        size_t c = p % a->channels, n = p / a->channels, g = c / s->each;
        float *x = (float *)a->dst + p * a->height * a->width;
        const float *cols = (const float *)a->src +
                            ((g * a->batch + n) * s->oh * s->ow * s->each + c % s->each) * s->taps;

        if (!a->add)
            memset(x, 0, a->height * a->width * sizeof(*x));
        for (size_t w = 0; w < s->oh * s->ow; w++)
            plane_in(a, w / s->ow, w % s->ow, x, cols + w * s->each * s->taps);
    }
}

void PL_CPU(unfold)(const struct pl_unfold_args *a)
{
    struct shape s = shape_of(a);

    pl_pool_parallel(a->groups * a->batch * s.oh * s.ow, 1 + GRAIN / (s.each * s.taps + 1), unfold,
                     &s);
}

void PL_CPU(fold)(const struct pl_unfold_args *a)
{
    struct shape s = shape_of(a);

    pl_pool_parallel(a->batch * a->channels, 1 + GRAIN / (s.oh * s.ow * s.taps + 1), fold, &s);
}
