/* SPDX-License-Identifier: MIT */
#include "kernels/cpu/conv2d.h"
#include "kernels/cpu/conv2d_winograd.h"
#include "kernels/cpu/pack.h"
#include "kernels/cpu/scratch.h"
#include "kernels/pool/pool.h"

#include <math.h>

#define PARTS 16                       /* dw and db are summed per part of the batch */
#define PARTS_FLOATS ((size_t)4 << 20) /* limit of their memory: above it, fewer parts */

struct conv {
    const struct pl_conv2d_args *a;
    size_t oh, ow, k; /* k = in * kernel_h * kernel_w */
    bool winograd, direct, direct_dx, direct_dw;
    struct pl_winograd tiles;
    const float *weights;   /* of tiles: transformed */
    struct pl_padded x, dz; /* dz: padded as dw's input, see conv2d.h */
    struct pl_direct product;
    size_t part;  /* images per part of the batch */
    float *parts; /* [parts, out * k + out]: dw, db */
};

static struct conv conv_of(const struct pl_conv2d_args *a, size_t images)
{
    struct conv c = {.a = a,
                     .oh = pl_conv_size(a->height, a->kernel_h, a->stride_h, a->pad_h),
                     .ow = pl_conv_size(a->width, a->kernel_w, a->stride_w, a->pad_w),
                     .k = a->in * a->kernel_h * a->kernel_w};

    c.winograd = pl_winograd_fits(a);
    if (c.winograd)
        c.tiles = PL_CPU(winograd)(a, images, false);
    c.x = pl_padded(a->in, a->height, a->width, a->pad_h, a->pad_w);
    c.direct = a->stride_h == 1 && a->stride_w == 1 && c.x.plane * a->in < UINT32_MAX;
    c.direct_dx = c.direct && a->pad_h < a->kernel_h && a->pad_w < a->kernel_w;
    c.direct_dw = c.direct && a->kernel_w > 1;
    c.dz = (struct pl_padded){.channels = a->out,
                              .height = c.oh,
                              .width = c.ow,
                              .row = c.x.row,
                              .plane = c.oh * c.x.row + PL_LANES};
    return c;
}

/* Without memory the result is NaNs. */
static void nan_fill(float *p, size_t n)
{
    pl_scratch_lost();
    for (size_t i = 0; p && i < n; i++)
        p[i] = NAN;
}

static void forward_images(void *ctx, size_t begin, size_t end)
{
    const struct conv *c = ctx;
    const struct pl_conv2d_args *a = c->a;
    size_t x_size = a->in * a->height * a->width, y_size = a->out * c->oh * c->ow;
    size_t columns = c->k * c->oh * c->ow;
    float *scratch =
        pl_scratch(PL_SCRATCH_CONV, (c->direct ? pl_padded_size(&c->x) : columns) * sizeof(float));

    for (size_t n = begin; n < end; n++) {
        const float *x = (const float *)a->x + n * x_size;
        float *y = (float *)a->y + n * y_size;

        if (!scratch) {
            nan_fill(y, y_size);
        } else if (c->direct) {
            PL_CPU(pad)(&c->x, x, NULL, scratch);
            PL_CPU(direct)(&c->product, scratch, y);
        } else {
            PL_CPU(to_columns)(a, x, scratch);
            PL_CPU(gemm)
            (&(struct pl_gemm){.m = a->out,
                               .n = c->oh * c->ow,
                               .k = c->k,
                               .a = a->w,
                               .a_row = c->k,
                               .a_col = 1,
                               .b = scratch,
                               .b_row = c->oh * c->ow,
                               .b_col = 1,
                               .c = y,
                               .ldc = c->oh * c->ow,
                               .row_bias = a->b,
                               .relu = a->relu});
        }
    }
}

#define IMAGES 4 /* that share the work done once for several images */

static void winograd_images(void *ctx, size_t begin, size_t end)
{
    const struct conv *c = ctx;
    const struct pl_conv2d_args *a = c->a;
    size_t x_size = a->in * a->height * a->width, y_size = a->out * c->oh * c->ow;
    float *scratch =
        pl_scratch(PL_SCRATCH_CONV, PL_CPU(winograd_scratch)(&c->tiles, false) * sizeof(float));

    if (!scratch) {
        nan_fill((float *)a->y + begin * y_size, (end - begin) * y_size);
        return;
    }
    PL_CPU(winograd_clear)(&c->tiles, false, scratch);
    for (size_t n = begin; n < end; n += c->tiles.images)
        PL_CPU(winograd_forward)
    (&c->tiles, c->weights, (const float *)a->x + n * x_size, PL_MIN(c->tiles.images, end - n),
     scratch, (float *)a->y + n * y_size);
}

void PL_CPU(conv2d_mend)(const struct pl_conv2d_args *a)
{
    pl_kernels_ref(PL_REAL_F32)->conv2d_mend(a); /* no tape asks for it here */
}

void PL_CPU(conv2d_forward)(const struct pl_conv2d_args *a)
{
    struct conv c = conv_of(a, IMAGES);

    if (a->last) { /* no tape asks for it here */
        pl_kernels_ref(PL_REAL_F32)->conv2d_forward(a);
        return;
    }
    if (c.oh == 0 || c.ow == 0)
        return;
    if (pl_conv_batch_fits(a)) {
        if (!PL_CPU(winograd_batch_forward)(a) && !PL_CPU(batch_forward)(a))
            nan_fill(a->y, a->batch * a->out * c.oh * c.ow);
        return;
    }
    if (c.winograd) {
        float *weights = pl_scratch(PL_SCRATCH_CONV_SHARED, c.tiles.w_size * sizeof(float));

        if (!weights) {
            nan_fill(a->y, a->batch * a->out * c.oh * c.ow);
            return;
        }
        PL_CPU(winograd_weights)(&c.tiles, false, weights);
        c.weights = weights;
        pl_pool_parallel(a->batch, IMAGES, winograd_images, &c);
        return;
    }
    if (c.direct) {
        size_t panels = pl_panels_size(a->out, c.k);
        float *shared = pl_scratch(PL_SCRATCH_CONV_SHARED, (panels + c.k) * sizeof(float));

        if (!shared) {
            nan_fill(a->y, a->batch * a->out * c.oh * c.ow);
            return;
        }
        for (size_t m = 0; m < a->out; m += PL_MR)
            pl_pack_rows((const float *)a->w + m * c.k, c.k, PL_MIN(a->out - m, (size_t)PL_MR), c.k,
                         shared + m * c.k, PL_MR);
        PL_CPU(taps)(&c.x, a->kernel_h, a->kernel_w, (void *)(shared + panels));
        c.product = (struct pl_direct){.image = c.x,
                                       .m = a->out,
                                       .k = c.k,
                                       .height = c.oh,
                                       .width = c.ow,
                                       .packed = shared,
                                       .rows = (const void *)(shared + panels),
                                       .bias = a->b,
                                       .relu = a->relu};
    }
    pl_pool_parallel(a->batch, 1, forward_images, &c);
}

/* Panels of w rotated: row c, column (o, u, v) is w[o, c, kernel_h - 1 - u, ...]. */
static void pack_turned(const struct pl_conv2d_args *a, float *to)
{
    const float *w = a->w;
    size_t taps = a->kernel_h * a->kernel_w, k = a->out * taps;

    memset(to, 0, pl_panels_size(a->in, k) * sizeof(*to));
    for (size_t o = 0; o < a->out; o++)
        for (size_t c = 0; c < a->in; c++)
            for (size_t t = 0; t < taps; t++)
                to[c / PL_MR * PL_MR * k + (o * taps + t) * PL_MR + c % PL_MR] =
                    w[(o * a->in + c) * taps + taps - 1 - t];
}

/* Offsets in a thread's scratch, in floats; tiles, sums: of winograd. */
struct layout {
    size_t x, dz_dense, dz, dz_dx, tiles, sums, total;
};

static struct layout layout_of(const struct conv *c)
{
    size_t columns = c->k * c->oh * c->ow;
    struct layout l = {.x = 0};

    if (c->winograd) {
        l.tiles = PL_MIN(c->a->out, (size_t)PL_LANES) * c->oh * c->ow; /* after dz_dense */
        l.sums = l.tiles + PL_CPU(winograd_scratch)(&c->tiles, true);
        l.total = l.sums + c->tiles.dw_size;
        return l;
    }
    l.dz_dense = PL_MAX(pl_padded_size(&c->x), columns);
    l.dz = l.dz_dense + c->a->out * c->oh * c->ow;
    l.dz_dx = l.dz + pl_padded_size(&c->dz);
    l.total = l.dz_dx + (c->direct_dx ? pl_padded_size(&c->product.image) : columns);
    return l;
}

static void image_dw(const struct conv *c, const struct layout *l, size_t n, float *at, float *dw)
{
    const struct pl_conv2d_args *a = c->a;
    const float *x = (const float *)a->x + n * a->in * a->height * a->width;
    size_t windows = c->oh * c->ow;

    if (c->direct_dw) {
        PL_CPU(pad)(&c->x, x, NULL, at + l->x);
        PL_CPU(pad)(&c->dz, at + l->dz_dense, NULL, at + l->dz);
        PL_CPU(direct_dw)
        (&c->x, a->kernel_h, a->kernel_w, a->out, &c->dz, at + l->x, at + l->dz, dw);
        return;
    }
    PL_CPU(to_columns)(a, x, at + l->x);
    PL_CPU(gemm)
    (&(struct pl_gemm){.m = a->out,
                       .n = c->k,
                       .k = windows,
                       .a = at + l->dz_dense,
                       .a_row = windows,
                       .a_col = 1,
                       .b = at + l->x,
                       .b_row = 1,
                       .b_col = windows,
                       .c = dw,
                       .ldc = c->k,
                       .add = true});
}

static void image_dx(const struct conv *c, const struct layout *l, size_t n, float *at)
{
    const struct pl_conv2d_args *a = c->a;
    size_t windows = c->oh * c->ow, size = a->in * a->height * a->width;
    float *dx = (float *)a->dx + n * size;

    if (c->direct_dx) {
        PL_CPU(pad)(&c->product.image, at + l->dz_dense, NULL, at + l->dz_dx);
        PL_CPU(direct)(&c->product, at + l->dz_dx, dx);
        return;
    }
    PL_CPU(gemm)
    (&(struct pl_gemm){.m = c->k,
                       .n = windows,
                       .k = a->out,
                       .a = a->w,
                       .a_row = 1,
                       .a_col = c->k,
                       .b = at + l->dz_dense,
                       .b_row = windows,
                       .b_col = 1,
                       .c = at + l->dz_dx,
                       .ldc = windows});
    if (!a->dx_add)
        memset(dx, 0, size * sizeof(*dx));
    PL_CPU(from_columns)(a, at + l->dz_dx, dx);
}

static void winograd_group(
    const struct conv *c, const struct layout *l, size_t begin, size_t n, float *at, float *db)
{
    const struct pl_conv2d_args *a = c->a;
    size_t x_size = a->in * a->height * a->width;

    for (size_t i = 0; i < n; i++)
        for (size_t o = 0; o < a->out; o += PL_LANES) {
            size_t count = PL_MIN(a->out - o, (size_t)PL_LANES);

            PL_CPU(conv_dz)(a, begin + i, o, count, at + l->dz_dense, db);
            PL_CPU(winograd_take_dz)(&c->tiles, i, o, count, at + l->dz_dense, at + l->tiles);
        }
    PL_CPU(winograd_backward)
    (&c->tiles, c->weights, (const float *)a->x + begin * x_size, n, at + l->tiles,
     a->dx ? (float *)a->dx + begin * x_size : NULL, a->dw ? at + l->sums : NULL);
}

/* Images [begin, end) are one part. */
static void backward_images(void *ctx, size_t begin, size_t end)
{
    const struct conv *c = ctx;
    const struct pl_conv2d_args *a = c->a;
    struct layout l = layout_of(c);
    float *at = pl_scratch(PL_SCRATCH_CONV, l.total * sizeof(float));
    float *dw = c->parts + begin / c->part * (c->k + 1) * a->out, *db = dw + c->k * a->out;

    memset(dw, 0, (c->k + 1) * a->out * sizeof(*dw));
    if (!at) {
        nan_fill(dw, (c->k + 1) * a->out);
        if (a->dx)
            nan_fill((float *)a->dx + begin * a->in * a->height * a->width,
                     (end - begin) * a->in * a->height * a->width);
        return;
    }
    if (c->winograd) {
        PL_CPU(winograd_clear)(&c->tiles, true, at + l.tiles);
        memset(at + l.sums, 0, c->tiles.dw_size * sizeof(*at));
        for (size_t n = begin; n < end; n += c->tiles.images)
            winograd_group(c, &l, n, PL_MIN(c->tiles.images, end - n), at, db);
        if (a->dw)
            PL_CPU(winograd_dw)(&c->tiles, at + l.sums, dw);
        return;
    }
    for (size_t n = begin; n < end; n++) {
        PL_CPU(conv_dz)(a, n, 0, a->out, at + l.dz_dense, db);
        if (a->dw)
            image_dw(c, &l, n, at, dw);
        if (a->dx)
            image_dx(c, &l, n, at);
    }
}

static void
add_parts(float *to, bool add, const float *parts, size_t n_parts, size_t stride, size_t n)
{
    if (!to)
        return;
    if (!add)
        memset(to, 0, n * sizeof(*to));
    for (size_t p = 0; p < n_parts; p++)
        for (size_t i = 0; i < n; i++)
            to[i] += parts[p * stride + i];
}

void PL_CPU(conv2d_backward)(const struct pl_conv2d_args *a)
{
    size_t taps = a->kernel_h * a->kernel_w, sums = (a->in * taps + 1) * a->out;
    size_t parts = PL_MAX(PL_MIN(PARTS_FLOATS / sums, (size_t)PARTS), (size_t)2);
    size_t part = PL_MAX((a->batch + parts - 1) / parts, (size_t)1), panels;
    struct conv c = conv_of(a, part);
    float *shared;

    if (a->last) {
        pl_kernels_ref(PL_REAL_F32)->conv2d_backward(a);
        return;
    }
    if (pl_conv_batch_fits(a) && (PL_CPU(winograd_batch_backward)(a) || PL_CPU(batch_backward)(a)))
        return;
    c.part = part;
    parts = (a->batch + part - 1) / part;
    panels = c.winograd    ? c.tiles.turned_size
             : c.direct_dx ? pl_panels_size(a->in, a->out * taps)
                           : 0;
    shared =
        pl_scratch(PL_SCRATCH_CONV_SHARED, (panels + a->out * taps + parts * sums) * sizeof(float));
    if (!shared) {
        nan_fill(a->dw, c.k * a->out);
        nan_fill(a->db, a->out);
        nan_fill(a->dx, a->batch * a->in * a->height * a->width);
        return;
    }
    c.parts = shared + panels + a->out * taps;
    if (c.winograd && a->dx) {
        PL_CPU(winograd_weights)(&c.tiles, true, shared);
        c.weights = shared;
    } else if (c.direct_dx && a->dx) {
        struct pl_padded dz =
            pl_padded(a->out, c.oh, c.ow, a->kernel_h - 1 - a->pad_h, a->kernel_w - 1 - a->pad_w);

        pack_turned(a, shared);
        PL_CPU(taps)(&dz, a->kernel_h, a->kernel_w, (void *)(shared + panels));
        c.product = (struct pl_direct){.image = dz,
                                       .m = a->in,
                                       .k = a->out * taps,
                                       .height = a->height,
                                       .width = a->width,
                                       .packed = shared,
                                       .rows = (const void *)(shared + panels),
                                       .add = a->dx_add};
    }
    if (c.oh > 0 && c.ow > 0)
        pl_pool_parallel(a->batch, part, backward_images, &c);
    else
        parts = 0;
    add_parts(a->dw, a->dw_add, c.parts, parts, sums, c.k * a->out);
    add_parts(a->db, a->db_add, c.parts + c.k * a->out, parts, sums, a->out);
}
