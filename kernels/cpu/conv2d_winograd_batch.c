/* SPDX-License-Identifier: MIT */
/* Winograd's convolutions of images with few windows, as in the middle of a ResNet: the tiles of
 * all images are the rows of each product, so its weights are read once, and not for each image.
 * Every step is shared out to the threads, by images or by products. Bits of y and dx are those of
 * single images. */
#include "kernels/cpu/conv2d.h"
#include "kernels/cpu/conv2d_winograd.h"
#include "kernels/cpu/scratch.h"
#include "kernels/pool/pool.h"

#include <math.h>

#define BLOCK_FLOATS ((size_t)1 << 20)   /* limit of the transforms of a group of images */
#define WEIGHTS_FLOATS ((size_t)2 << 20) /* above it the batch's columns need less memory */
#define IMAGES 4                         /* of a chunk */
#define COLUMNS (4 * PL_NR)              /* of a chunk of a product */

struct group {
    const struct pl_conv2d_args *a;
    struct pl_winograd w;
    size_t tiles, first, n; /* of an image; the group's images */
    size_t x_pixels, y_pixels;
    float *weights, *v, *m; /* V, and then dx's M; Z or M */
    float *sums, *db;       /* of dw's products; [n, out] */
    bool lost;              /* some thread got no scratch memory */
};

/* True if tiles need fewer multiplications than windows. */
static bool fits(const struct pl_conv2d_args *a, const struct pl_winograd *w)
{
    return PL_MIN(w->oh, w->ow) >= 2 && PL_MIN(a->height, a->width) >= 2 &&
           5 * w->products * w->th * w->tw <= 4 * 9 * w->oh * w->ow &&
           PL_MAX(w->w_size, w->turned_size) <= WEIGHTS_FLOATS;
}

static bool group_init(struct group *g, const struct pl_conv2d_args *a, bool backward)
{
    size_t per_image, weights, v, m, sums;

    if (!pl_winograd_fits(a))
        return false;
    *g = (struct group){.a = a, .w = PL_CPU(winograd)(a, 1, true)};
    if (!fits(a, &g->w))
        return false;
    g->tiles = g->w.th * g->w.tw;
    per_image = g->w.products * g->tiles * (g->w.in + g->w.out);
    g->n = PL_MIN(PL_MAX(BLOCK_FLOATS / per_image, (size_t)1), a->batch);
    g->w = PL_CPU(winograd)(a, g->n, true);
    g->x_pixels = a->in * a->height * a->width;
    g->y_pixels = a->out * g->w.oh * g->w.ow;
    weights = backward ? g->w.turned_size : g->w.w_size;
    v = g->w.products * g->w.x_step;
    m = g->w.products * g->w.y_step;
    sums = backward ? g->w.dw_size + g->n * a->out : 0;
    g->weights =
        pl_scratch(PL_SCRATCH_CONV_SHARED, (weights + v + m + sums + PL_NR) * sizeof(float));
    if (!g->weights)
        return false;
    g->v = g->weights + weights;
    g->m = g->v + v;
    g->sums = g->m + m;
    g->db = g->sums + g->w.dw_size;
    return true;
}

/* A transposed image, of x or y, and dz of some channels. NULL without memory: the group is lost.
 */
static float *image_scratch(struct group *g)
{
    size_t pixels = PL_MAX(g->w.x_size, g->w.y_size) + PL_NR;
    float *ret =
        pl_scratch(PL_SCRATCH_CONV, (pixels + PL_LANES * g->w.oh * g->w.ow) * sizeof(float));

    if (!ret)
        __atomic_store_n(&g->lost, true, __ATOMIC_RELAXED);
    return ret;
}

static void read_x(void *ctx, size_t begin, size_t end)
{
    struct group *g = ctx;
    float *pixels = image_scratch(g);

    if (!pixels)
        return;
    memset(pixels, 0, g->w.x_size * sizeof(*pixels));
    for (size_t n = begin; n < end; n++)
        PL_CPU(winograd_read_x)
    (&g->w, (const float *)g->a->x + (g->first + n) * g->x_pixels, pixels,
     g->v + n * g->tiles * g->w.in);
}

static void read_dz(void *ctx, size_t begin, size_t end)
{
    struct group *g = ctx;
    const struct pl_winograd *w = &g->w;
    float *pixels = image_scratch(g), *dz;

    memset(g->db + begin * g->a->out, 0, (end - begin) * g->a->out * sizeof(float));
    if (!pixels)
        return;
    dz = pixels + PL_MAX(w->x_size, w->y_size) + PL_NR;
    memset(pixels, 0, w->y_size * sizeof(*pixels));
    for (size_t n = begin; n < end; n++) {
        for (size_t o = 0; o < g->a->out; o += PL_LANES) {
            size_t count = PL_MIN(g->a->out - o, (size_t)PL_LANES);

            PL_CPU(conv_dz)(g->a, g->first + n, o, count, dz, g->db + n * g->a->out);
            PL_CPU(winograd_turn_dz)(w, o, count, dz, pixels);
        }
        PL_CPU(winograd_read_dz)(w, pixels, g->m + n * g->tiles * w->out);
    }
}

static void write_y(void *ctx, size_t begin, size_t end)
{
    struct group *g = ctx;
    float *pixels = image_scratch(g);

    if (!pixels)
        return;
    for (size_t n = begin; n < end; n++)
        PL_CPU(winograd_write_y)
    (&g->w, g->m + n * g->tiles * g->w.out, pixels,
     (float *)g->a->y + (g->first + n) * g->y_pixels);
}

static void write_dx(void *ctx, size_t begin, size_t end)
{
    struct group *g = ctx;
    float *pixels = image_scratch(g);

    if (!pixels)
        return;
    for (size_t n = begin; n < end; n++)
        PL_CPU(winograd_write_dx)
    (&g->w, g->v + n * g->tiles * g->w.in, pixels,
     (float *)g->a->dx + (g->first + n) * g->x_pixels);
}

static size_t chunks_of(size_t columns)
{
    return (columns + COLUMNS - 1) / COLUMNS;
}

/* A chunk is COLUMNS columns of one of the products. */
static void multiply(const struct group *g, bool back, size_t chunk)
{
    const struct pl_winograd *w = &g->w;
    size_t columns = back ? g->a->in : g->a->out, k = back ? g->a->out : g->a->in;
    size_t e = chunk / chunks_of(columns), j = chunk % chunks_of(columns) * COLUMNS;
    size_t a_row = back ? w->out : w->in, c_row = back ? w->in : w->out;
    size_t a_step = back ? w->y_step : w->x_step, c_step = back ? w->x_step : w->y_step;
    size_t b_step = (back ? w->turned_size : w->w_size) / w->products;

    PL_CPU(winograd_multiply)
    (&(struct pl_winograd_product){.m = g->n * g->tiles,
                                   .n = PL_MIN(columns - j, (size_t)COLUMNS),
                                   .k = k,
                                   .a = (back ? g->m : g->v) + e * a_step,
                                   .a_row = a_row,
                                   .a_col = 1,
                                   .b = g->weights + e * b_step + j * k,
                                   .b_row = PL_NR,
                                   .b_panel = k * PL_NR,
                                   .c = (back ? g->v : g->m) + e * c_step + j,
                                   .c_row = c_row});
}

static void products_y(void *ctx, size_t begin, size_t end)
{
    for (size_t chunk = begin; chunk < end; chunk++)
        multiply(ctx, false, chunk);
}

static void products_dx(void *ctx, size_t begin, size_t end)
{
    for (size_t chunk = begin; chunk < end; chunk++)
        multiply(ctx, true, chunk);
}

static void products_dw(void *ctx, size_t begin, size_t end)
{
    const struct group *g = ctx;
    const struct pl_winograd *w = &g->w;

    for (size_t chunk = begin; chunk < end; chunk++) {
        size_t e = chunk / chunks_of(g->a->in), j = chunk % chunks_of(g->a->in) * COLUMNS;

        PL_CPU(winograd_multiply)
        (&(struct pl_winograd_product){.m = g->a->out,
                                       .n = PL_MIN(g->a->in - j, (size_t)COLUMNS),
                                       .k = g->n * g->tiles,
                                       .a = g->m + e * w->y_step,
                                       .a_row = 1,
                                       .a_col = w->out,
                                       .b = g->v + e * w->x_step + j,
                                       .b_row = w->in,
                                       .b_panel = PL_NR,
                                       .c = g->sums + e * (w->dw_size / w->products) + j,
                                       .c_row = w->in,
                                       .add = g->first > 0});
    }
}

static void add_dw(void *ctx, size_t begin, size_t end)
{
    const struct group *g = ctx;
    size_t row = g->a->in * 9;
    float *dw = g->a->dw;

    if (!g->a->dw_add)
        memset(dw + begin * row, 0, (end - begin) * row * sizeof(*dw));
    PL_CPU(winograd_dw_rows)(&g->w, begin, end, g->sums, dw);
}

static void add_db(const struct group *g)
{
    float *db = g->a->db;

    if (!db)
        return;
    if (g->first == 0 && !g->a->db_add)
        memset(db, 0, g->a->out * sizeof(*db));
    for (size_t n = 0; n < g->n; n++)
        for (size_t o = 0; o < g->a->out; o++)
            db[o] += g->db[n * g->a->out + o];
}

/* The next images; false after the last ones. */
static bool next(struct group *g, size_t *done)
{
    g->first = *done;
    g->n = PL_MIN(g->n, g->a->batch - *done);
    *done += g->n;
    return g->n > 0;
}

static void lose(const struct group *g, float *to, size_t n)
{
    if (!g->lost)
        return;
    pl_scratch_lost();
    for (size_t i = 0; to && i < n; i++)
        to[i] = NAN;
}

bool PL_CPU(winograd_batch_forward)(const struct pl_conv2d_args *a)
{
    struct group g;

    if (!group_init(&g, a, false))
        return false;
    PL_CPU(winograd_weights)(&g.w, false, g.weights);
    for (size_t done = 0; next(&g, &done);) {
        pl_pool_parallel(g.n, IMAGES, read_x, &g);
        pl_pool_parallel(g.w.products * chunks_of(a->out), 1, products_y, &g);
        pl_pool_parallel(g.n, IMAGES, write_y, &g);
    }
    lose(&g, a->y, a->batch * g.y_pixels);
    return true;
}

bool PL_CPU(winograd_batch_backward)(const struct pl_conv2d_args *a)
{
    struct group g;

    if (!group_init(&g, a, true))
        return false;
    if (a->dx)
        PL_CPU(winograd_weights)(&g.w, true, g.weights);
    for (size_t done = 0; next(&g, &done);) {
        pl_pool_parallel(g.n, IMAGES, read_dz, &g);
        add_db(&g);
        if (a->dw) {
            pl_pool_parallel(g.n, IMAGES, read_x, &g);
            pl_pool_parallel(g.w.products * chunks_of(a->in), 1, products_dw, &g);
        }
        if (a->dx) {
            pl_pool_parallel(g.w.products * chunks_of(a->in), 1, products_dx, &g);
            pl_pool_parallel(g.n, IMAGES, write_dx, &g);
        }
    }
    if (a->dw)
        pl_pool_parallel(a->out, 16, add_dw, &g);
    lose(&g, a->dw, a->out * a->in * 9);
    lose(&g, a->db, a->out);
    lose(&g, a->dx, a->batch * g.x_pixels);
    return true;
}
