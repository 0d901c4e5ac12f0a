/* SPDX-License-Identifier: MIT */
/* Convolutions with few windows per image, as in the last layers of a ResNet: the windows of many
 * images are the columns of one product. With one image at a time the product had a handful of
 * columns, and all weights were read again for each image. */
#include "kernels/cpu/conv2d.h"
#include "kernels/cpu/scratch.h"
#include "kernels/pool/pool.h"

#include <math.h>

#define COLUMNS_FLOATS ((size_t)4 << 20) /* limit of the columns of a group of images */

struct group {
    const struct pl_conv2d_args *a;
    size_t oh, ow, windows, k;
    size_t first, n, columns; /* images; n * windows */
    float *x;                 /* [k, columns], and their gradient */
    float *y;                 /* [out, columns], or dz */
    bool first_group;
};

static struct group group_of(const struct pl_conv2d_args *a)
{
    struct group g = {.a = a,
                      .oh = pl_conv_size(a->height, a->kernel_h, a->stride_h, a->pad_h),
                      .ow = pl_conv_size(a->width, a->kernel_w, a->stride_w, a->pad_w),
                      .k = a->in * a->kernel_h * a->kernel_w};

    g.windows = g.oh * g.ow;
    g.n = PL_MIN(PL_MAX(COLUMNS_FLOATS / (g.k * g.windows), (size_t)1), a->batch);
    g.x = pl_scratch(PL_SCRATCH_CONV_SHARED, (g.k + a->out) * g.n * g.windows * sizeof(float));
    g.y = g.x ? g.x + g.k * g.n * g.windows : NULL;
    return g;
}

/* The windows [ret[0], ret[1]) along an axis whose tap t is inside it. */
static void inside(size_t size, size_t windows, size_t stride, size_t pad, size_t t, size_t ret[2])
{
    size_t first = t >= pad ? 0 : (pad - t + stride - 1) / stride;
    size_t last = size + pad > t ? (size + pad - t - 1) / stride + 1 : 0;

    ret[1] = PL_MIN(last, windows);
    ret[0] = PL_MIN(first, ret[1]);
}

static void read_rows(void *ctx, size_t begin, size_t end)
{
    const struct group *g = ctx;
    const struct pl_conv2d_args *a = g->a;
    size_t taps = a->kernel_h * a->kernel_w;

    for (size_t k = begin; k < end; k++) {
        size_t u = k / a->kernel_w % a->kernel_h, v = k % a->kernel_w, rows[2], cols[2];
        float *to = g->x + k * g->columns;

        inside(a->height, g->oh, a->stride_h, a->pad_h, u, rows);
        inside(a->width, g->ow, a->stride_w, a->pad_w, v, cols);
        memset(to, 0, g->columns * sizeof(*to));
        for (size_t n = g->first; n < g->first + g->n; n++, to += g->windows) {
            const float *plane =
                (const float *)a->x + (n * a->in + k / taps) * a->height * a->width;

            for (size_t i = rows[0]; i < rows[1]; i++)
                for (size_t j = cols[0]; j < cols[1]; j++)
                    to[i * g->ow + j] = plane[(i * a->stride_h + u - a->pad_h) * a->width +
                                              j * a->stride_w + v - a->pad_w];
        }
    }
}

/* Adds the columns' gradients up to dx, by channels. */
static void add_channels(void *ctx, size_t begin, size_t end)
{
    const struct group *g = ctx;
    const struct pl_conv2d_args *a = g->a;
    size_t taps = a->kernel_h * a->kernel_w, size = a->height * a->width;

    for (size_t c = begin; c < end; c++) {
        for (size_t n = g->first; n < g->first + g->n && !a->dx_add; n++)
            memset((float *)a->dx + (n * a->in + c) * size, 0, size * sizeof(float));
        for (size_t t = 0; t < taps; t++) {
            size_t u = t / a->kernel_w, v = t % a->kernel_w, rows[2], cols[2];
            const float *from = g->x + (c * taps + t) * g->columns;

            inside(a->height, g->oh, a->stride_h, a->pad_h, u, rows);
            inside(a->width, g->ow, a->stride_w, a->pad_w, v, cols);
            for (size_t n = g->first; n < g->first + g->n; n++, from += g->windows) {
                float *plane = (float *)a->dx + (n * a->in + c) * size;

                for (size_t i = rows[0]; i < rows[1]; i++)
                    for (size_t j = cols[0]; j < cols[1]; j++)
                        plane[(i * a->stride_h + u - a->pad_h) * a->width + j * a->stride_w + v -
                              a->pad_w] += from[i * g->ow + j];
            }
        }
    }
}

static void write_channels(void *ctx, size_t begin, size_t end)
{
    const struct group *g = ctx;

    for (size_t o = begin; o < end; o++)
        for (size_t n = 0; n < g->n; n++)
            memcpy((float *)g->a->y + ((g->first + n) * g->a->out + o) * g->windows,
                   g->y + o * g->columns + n * g->windows, g->windows * sizeof(float));
}

/* dz = dy behind the relu, as [out, columns]; db is its sum. */
static void mask_channels(void *ctx, size_t begin, size_t end)
{
    const struct group *g = ctx;
    const struct pl_conv2d_args *a = g->a;

    for (size_t o = begin; o < end; o++) {
        float *to = g->y + o * g->columns, sum = 0;

        for (size_t n = g->first; n < g->first + g->n; n++)
            for (size_t p = 0; p < g->windows; p++) {
                size_t at = (n * a->out + o) * g->windows + p;
                float d = ((const float *)a->dy)[at];

                *to = a->relu && ((const float *)a->y)[at] <= 0 ? 0 : d;
                sum += *to++;
            }
        if (a->db)
            ((float *)a->db)[o] = (g->first_group && !a->db_add ? 0 : ((float *)a->db)[o]) + sum;
    }
}

static void product_y(const struct group *g)
{
    PL_CPU(gemm)
    (&(struct pl_gemm){.m = g->a->out,
                       .n = g->columns,
                       .k = g->k,
                       .a = g->a->w,
                       .a_row = g->k,
                       .a_col = 1,
                       .b = g->x,
                       .b_row = g->columns,
                       .b_col = 1,
                       .c = g->y,
                       .ldc = g->columns,
                       .row_bias = g->a->b,
                       .relu = g->a->relu});
}

static void product_dw(const struct group *g)
{
    PL_CPU(gemm)
    (&(struct pl_gemm){.m = g->a->out,
                       .n = g->k,
                       .k = g->columns,
                       .a = g->y,
                       .a_row = g->columns,
                       .a_col = 1,
                       .b = g->x,
                       .b_row = 1,
                       .b_col = g->columns,
                       .c = g->a->dw,
                       .ldc = g->k,
                       .add = g->a->dw_add || !g->first_group});
}

static void product_dx(const struct group *g)
{
    PL_CPU(gemm)
    (&(struct pl_gemm){.m = g->k,
                       .n = g->columns,
                       .k = g->a->out,
                       .a = g->a->w,
                       .a_row = 1,
                       .a_col = g->k,
                       .b = g->y,
                       .b_row = g->columns,
                       .b_col = 1,
                       .c = g->x,
                       .ldc = g->columns});
}

static bool next_group(struct group *g, size_t *done)
{
    g->first = *done;
    g->first_group = *done == 0;
    g->n = PL_MIN(g->n, g->a->batch - *done);
    g->columns = g->n * g->windows;
    *done += g->n;
    return g->n > 0;
}

bool PL_CPU(batch_forward)(const struct pl_conv2d_args *a)
{
    struct group g = group_of(a);

    if (!g.x)
        return false;
    for (size_t done = 0; next_group(&g, &done);) {
        pl_pool_parallel(g.k, 64, read_rows, &g);
        product_y(&g);
        pl_pool_parallel(a->out, 64, write_channels, &g);
    }
    return true;
}

bool PL_CPU(batch_backward)(const struct pl_conv2d_args *a)
{
    struct group g = group_of(a);

    if (!g.x)
        return false;
    for (size_t done = 0; next_group(&g, &done);) {
        pl_pool_parallel(a->out, 64, mask_channels, &g);
        if (a->dw) {
            pl_pool_parallel(g.k, 64, read_rows, &g);
            product_dw(&g);
        }
        if (a->dx) {
            product_dx(&g); /* in place of the columns */
            pl_pool_parallel(a->in, 16, add_channels, &g);
        }
    }
    return true;
}
