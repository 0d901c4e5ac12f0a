/* SPDX-License-Identifier: MIT */
#include "kernels/cpu/level.h"
#include "kernels/pool.h"

#include <math.h>
#include <string.h>

#define GRAIN 16384 /* elements of x for a thread at a time */

struct pool2d {
    const struct pl_pool2d_args *a;
    size_t oh, ow;
};

/* The taps [from, to) of a window that lie inside an axis, whose first tap is at start - pad. */
static inline void
clip(size_t start, size_t pad, size_t kernel, size_t size, size_t *ret_from, size_t *ret_to)
{
    *ret_from = start < pad ? pad - start : 0;
    *ret_to = PL_MIN(kernel, size + pad - start);
}

/* Whether windows are 2 x 2 and do not overlap: by far the most common, and without branches. */
static bool halves(const struct pl_pool2d_args *a)
{
    return a->kernel_h == 2 && a->kernel_w == 2 && a->stride_h == 2 && a->stride_w == 2 &&
           a->pad_h == 0 && a->pad_w == 0;
}

static inline bool beats(float x, float best)
{
    return x > best || (x != x && best == best);
}

static void max_halves(
    const float *restrict x, size_t width, float *restrict y, uint8_t *restrict which, size_t n)
{
    for (size_t j = 0; j < n; j++) {
        const float *at = x + 2 * j;
        float best = at[0];
        uint8_t place = 0;

        place = beats(at[1], best) ? 1 : place;
        best = beats(at[1], best) ? at[1] : best;
        place = beats(at[width], best) ? 2 : place;
        best = beats(at[width], best) ? at[width] : best;
        place = beats(at[width + 1], best) ? 3 : place;
        best = beats(at[width + 1], best) ? at[width + 1] : best;
        y[j] = best;
        which[j] = place;
    }
}

static void max_window(
    const struct pl_pool2d_args *a, const float *x, size_t i, size_t j, float *y, uint8_t *which)
{
    size_t u0, u1, v0, v1;
    float best = 0;
    bool first = true;

    clip(i * a->stride_h, a->pad_h, a->kernel_h, a->height, &u0, &u1);
    clip(j * a->stride_w, a->pad_w, a->kernel_w, a->width, &v0, &v1);
    for (size_t u = u0; u < u1; u++) {
        const float *row = x + (i * a->stride_h + u - a->pad_h) * a->width;

        for (size_t v = v0; v < v1; v++) {
            float value = row[j * a->stride_w + v - a->pad_w];

            if (first || beats(value, best)) {
                best = value;
                *which = (uint8_t)(u * a->kernel_w + v);
                first = false;
            }
        }
    }
    *y = best;
}

static void max_forward(void *ctx, size_t begin, size_t end)
{
    const struct pool2d *p = ctx;
    const struct pl_pool2d_args *a = p->a;

    for (size_t n = begin; n < end; n++) {
        const float *x = (const float *)a->x + n * a->height * a->width;

        for (size_t i = 0; i < p->oh; i++) {
            float *y = (float *)a->y + (n * p->oh + i) * p->ow;
            uint8_t *which = a->which + (n * p->oh + i) * p->ow;

            if (halves(a))
                max_halves(x + 2 * i * a->width, a->width, y, which, p->ow);
            else
                for (size_t j = 0; j < p->ow; j++)
                    max_window(a, x, i, j, &y[j], &which[j]);
        }
    }
}

static void max_backward_halves(const struct pool2d *p,
                                const float *restrict dy,
                                const uint8_t *restrict which,
                                float *restrict dx)
{
    size_t width = p->a->width;

    if (!p->a->dx_add && (width % 2 || p->a->height % 2)) /* no window has the last ones */
        memset(dx, 0, p->a->height * width * sizeof(*dx));
    for (size_t i = 0; i < p->oh; i++, dy += p->ow, which += p->ow, dx += 2 * width) {
        for (size_t j = 0; j < p->ow; j++) {
            float d[4];

            for (int t = 0; t < 4; t++)
                d[t] = which[j] == t ? dy[j] : 0;
            if (p->a->dx_add)
                for (int t = 0; t < 4; t++)
                    d[t] += dx[t / 2 * width + 2 * j + t % 2];
            for (int t = 0; t < 4; t++)
                dx[t / 2 * width + 2 * j + t % 2] = d[t];
        }
    }
}

static void max_backward(void *ctx, size_t begin, size_t end)
{
    const struct pool2d *p = ctx;
    const struct pl_pool2d_args *a = p->a;

    for (size_t n = begin; n < end; n++) {
        const float *dy = (const float *)a->dy + n * p->oh * p->ow;
        const uint8_t *which = a->which + n * p->oh * p->ow;
        float *dx = (float *)a->dx + n * a->height * a->width;

        if (halves(a)) {
            max_backward_halves(p, dy, which, dx);
            continue;
        }
        if (!a->dx_add)
            memset(dx, 0, a->height * a->width * sizeof(*dx));
        for (size_t i = 0; i < p->oh; i++)
            for (size_t j = 0; j < p->ow; j++) {
                size_t k = i * p->ow + j;
                size_t row = i * a->stride_h + which[k] / a->kernel_w - a->pad_h;

                dx[row * a->width + j * a->stride_w + which[k] % a->kernel_w - a->pad_w] += dy[k];
            }
    }
}

/* Forward and backward visit the same windows: y is the sum of x's, or dx gets a share of dy. */
static void average(const struct pool2d *p, size_t n, bool back)
{
    const struct pl_pool2d_args *a = p->a;
    size_t size = a->height * a->width, y_size = p->oh * p->ow;
    const float *x = back ? NULL : (const float *)a->x + n * size;
    float *dx = back ? (float *)a->dx + n * size : NULL;
    float share = 1 / (float)(a->kernel_h * a->kernel_w);

    if (back && !a->dx_add)
        memset(dx, 0, size * sizeof(*dx));
    for (size_t k = 0; k < y_size; k++) {
        size_t i = k / p->ow, j = k % p->ow, u0, u1, v0, v1;
        float sum = 0, d = back ? ((const float *)a->dy)[n * y_size + k] * share : 0;

        clip(i * a->stride_h, a->pad_h, a->kernel_h, a->height, &u0, &u1);
        clip(j * a->stride_w, a->pad_w, a->kernel_w, a->width, &v0, &v1);
        for (size_t u = u0; u < u1; u++) {
            size_t row = (i * a->stride_h + u - a->pad_h) * a->width + j * a->stride_w - a->pad_w;

            for (size_t v = v0; v < v1; v++) {
                if (back)
                    dx[row + v] += d;
                else
                    sum += x[row + v];
            }
        }
        if (!back)
            ((float *)a->y)[n * y_size + k] = sum * share;
    }
}

static void avg_forward(void *ctx, size_t begin, size_t end)
{
    for (size_t n = begin; n < end; n++)
        average(ctx, n, false);
}

static void avg_backward(void *ctx, size_t begin, size_t end)
{
    for (size_t n = begin; n < end; n++)
        average(ctx, n, true);
}

static void run(const struct pl_pool2d_args *a, void (*body)(void *ctx, size_t begin, size_t end))
{
    struct pool2d p = {.a = a,
                       .oh = pl_conv_size(a->height, a->kernel_h, a->stride_h, a->pad_h),
                       .ow = pl_conv_size(a->width, a->kernel_w, a->stride_w, a->pad_w)};

    pl_pool_parallel(a->planes, GRAIN / (a->height * a->width + 1) + 1, body, &p);
}

void PL_CPU(max_pool2d_forward)(const struct pl_pool2d_args *a)
{
    run(a, max_forward);
}

void PL_CPU(max_pool2d_backward)(const struct pl_pool2d_args *a)
{
    run(a, max_backward);
}

void PL_CPU(avg_pool2d_forward)(const struct pl_pool2d_args *a)
{
    run(a, avg_forward);
}

void PL_CPU(avg_pool2d_backward)(const struct pl_pool2d_args *a)
{
    run(a, avg_backward);
}
