/* SPDX-License-Identifier: MIT */
/* Convolutions with few windows per image, as in the last layers of a ResNet: the windows of many
 * images are the columns of one product. With one image at a time the product had a handful of
 * columns, and all weights were read again for each image.
 *
 * Images are transposed first: a pixel of a channel has the values of all images side by side. So
 * the columns are whole vectors, without a loop over the few pixels of an image.
 *
 * Taps that are in the padding in all windows have no part in the product: an image of one pixel
 * meets one of 3 x 3 taps. The other taps' weights are then copied side by side. */
#include "kernels/cpu/conv2d.h"
#include "kernels/cpu/lanes.h"
#include "kernels/cpu/pack.h"
#include "kernels/cpu/scratch.h"
#include "kernels/pool/pool.h"

#include <math.h>

#define COLUMNS_FLOATS ((size_t)4 << 20) /* limit of the columns of a group of images */
#define ROWS 128                         /* of a matrix that is transposed, per chunk */

/* The taps [from, from + n) of an axis. */
struct span {
    size_t from, n;
};

struct group {
    const struct pl_conv2d_args *a;
    struct span u, v;          /* the taps that count */
    size_t oh, ow, windows, k; /* k = in * u.n * v.n */
    size_t first, n, columns;  /* images; windows * n */
    size_t pixels, places;     /* of an image: in * height * width, out * windows */
    float *image;              /* x or dx, [in, height, width, n] */
    float *x;                  /* [k, windows, n], and their gradient */
    float *y;                  /* y or dz, [out, windows, n] */
    float *w;                  /* [out, k], or its gradient; NULL: all taps count */
    bool first_group;
};

/* The windows [ret[0], ret[1]) along an axis whose tap t is inside it. */
static void inside(size_t size, size_t windows, size_t stride, size_t pad, size_t t, size_t ret[2])
{
    size_t first = t >= pad ? 0 : (pad - t + stride - 1) / stride;
    size_t last = size + pad > t ? (size + pad - t - 1) / stride + 1 : 0;

    ret[1] = PL_MIN(last, windows);
    ret[0] = PL_MIN(first, ret[1]);
}

/* From the first to the last tap that is inside the image in a window. */
static struct span span_of(size_t size, size_t windows, size_t stride, size_t pad, size_t kernel)
{
    struct span s = {0};

    for (size_t t = 0; t < kernel; t++) {
        size_t with[2];

        inside(size, windows, stride, pad, t, with);
        if (with[0] == with[1])
            continue;
        if (s.n == 0)
            s.from = t;
        s.n = t + 1 - s.from;
    }
    return s;
}

static struct group group_of(const struct pl_conv2d_args *a)
{
    struct group g = {.a = a,
                      .oh = pl_conv_size(a->height, a->kernel_h, a->stride_h, a->pad_h),
                      .ow = pl_conv_size(a->width, a->kernel_w, a->stride_w, a->pad_w)};
    size_t weights, floats;

    g.u = span_of(a->height, g.oh, a->stride_h, a->pad_h, a->kernel_h);
    g.v = span_of(a->width, g.ow, a->stride_w, a->pad_w, a->kernel_w);
    g.k = a->in * g.u.n * g.v.n;
    weights = g.u.n < a->kernel_h || g.v.n < a->kernel_w ? a->out * g.k : 0;
    g.windows = g.oh * g.ow;
    g.pixels = a->in * a->height * a->width;
    g.places = a->out * g.windows;
    g.n = PL_MIN(PL_MAX(COLUMNS_FLOATS / (g.k * g.windows + 1), (size_t)1), a->batch);
    if (g.n < a->batch && g.n > PL_LANES) /* whole vectors */
        g.n -= g.n % PL_LANES;
    floats = (g.pixels + g.k * g.windows + g.places) * g.n + weights;
    g.image = pl_scratch(PL_SCRATCH_CONV_SHARED, floats * sizeof(float));
    if (g.image) {
        g.x = g.image + g.pixels * g.n;
        g.y = g.x + g.k * g.windows * g.n;
        g.w = weights ? g.y + g.places * g.n : NULL;
    }
    return g;
}

/* A tap of the kernel. */
struct tap {
    size_t c, u, v; /* input channel, row, column */
};

static inline struct tap tap_of(const struct group *g, size_t k)
{
    size_t n = g->u.n * g->v.n;

    return (struct tap){.c = k / n, .u = g->u.from + k % n / g->v.n, .v = g->v.from + k % g->v.n};
}

/* Calls f with the common numbers of taps in a row as constants. */
#define WITH_TAPS(n, f, ...)                                                                       \
    switch (n) {                                                                                   \
    case 1:                                                                                        \
        f(1, __VA_ARGS__);                                                                         \
        break;                                                                                     \
    case 2:                                                                                        \
        f(2, __VA_ARGS__);                                                                         \
        break;                                                                                     \
    default:                                                                                       \
        f(n, __VA_ARGS__);                                                                         \
    }

/* Copies the n taps of a row that count, of all input channels of output channel o. */
static inline __attribute__((always_inline)) void
take_channel(const size_t n, const struct group *g, size_t o)
{
    const struct pl_conv2d_args *a = g->a;
    size_t taps = a->kernel_h * a->kernel_w;
    const float *w = (const float *)a->w + o * a->in * taps + g->u.from * a->kernel_w + g->v.from;
    float *to = g->w + o * g->k;

    for (size_t c = 0; c < a->in; c++, w += taps)
        for (size_t u = 0; u < g->u.n; u++)
            for (size_t v = 0; v < n; v++)
                *to++ = w[u * a->kernel_w + v];
}

/* Output channels [begin, end) of the weights that count. */
static void take_weights(void *ctx, size_t begin, size_t end)
{
    const struct group *g = ctx;

    for (size_t o = begin; o < end; o++)
        WITH_TAPS(g->v.n, take_channel, g, o)
}

/* The gradient's way back. */
static inline __attribute__((always_inline)) void
put_channel(const size_t n, const struct group *g, size_t o)
{
    const struct pl_conv2d_args *a = g->a;
    size_t taps = a->kernel_h * a->kernel_w;
    float *dw = (float *)a->dw + o * a->in * taps;
    const float *from = g->w + o * g->k;

    if (!a->dw_add && g->first_group)
        memset(dw, 0, a->in * taps * sizeof(*dw));
    dw += g->u.from * a->kernel_w + g->v.from;
    for (size_t c = 0; c < a->in; c++, dw += taps)
        for (size_t u = 0; u < g->u.n; u++)
            for (size_t v = 0; v < n; v++)
                dw[u * a->kernel_w + v] += *from++;
}

static void put_weights(void *ctx, size_t begin, size_t end)
{
    const struct group *g = ctx;

    for (size_t o = begin; o < end; o++)
        WITH_TAPS(g->v.n, put_channel, g, o)
}

/* to [columns, rows] (+)= the transpose of from [rows, columns]; rows are from_row and to_row
 * floats apart. */
static void turn(const float *from,
                 size_t rows,
                 size_t columns,
                 size_t from_row,
                 float *to,
                 size_t to_row,
                 bool add)
{
    for (size_t i = 0; i < rows; i += PL_LANES)
        for (size_t j = 0; j < columns; j += PL_LANES) {
            size_t height = PL_MIN(rows - i, (size_t)PL_LANES);
            size_t width = PL_MIN(columns - j, (size_t)PL_LANES);
            const float *at = from + i * from_row + j;
            float *line = to + j * to_row + i;
            pl_vec r[PL_LANES];

            if (height < PL_LANES || width < PL_LANES) {
                for (size_t k = 0; k < width; k++, line += to_row)
                    for (size_t l = 0; l < height; l++) {
                        float value = at[l * from_row + k];

                        line[l] = add ? line[l] + value : value;
                    }
                continue;
            }
#pragma GCC unroll 16
            for (size_t k = 0; k < PL_LANES; k++)
                r[k] = pl_load(at + k * from_row);
            pl_transpose(r);
            for (size_t k = 0; k < PL_LANES; k++, line += to_row)
                pl_store(line, add ? pl_load(line) + r[k] : r[k]);
        }
}

/* Pixels [begin, end) of x. */
static void turn_x(void *ctx, size_t begin, size_t end)
{
    const struct group *g = ctx;

    turn((const float *)g->a->x + g->first * g->pixels + begin, g->n, end - begin, g->pixels,
         g->image + begin * g->n, g->n, false);
}

static void turn_dx(void *ctx, size_t begin, size_t end)
{
    const struct group *g = ctx;

    turn(g->image + begin * g->n, end - begin, g->n, g->n,
         (float *)g->a->dx + g->first * g->pixels + begin, g->pixels, g->a->dx_add);
}

static void turn_y(void *ctx, size_t begin, size_t end)
{
    const struct group *g = ctx;

    turn(g->y + begin * g->n, end - begin, g->n, g->n,
         (float *)g->a->y + g->first * g->places + begin, g->places, false);
}

/* Writes dz, transposed: dy where relu has passed y, else 0. Without a relu dz is dy. */
static void turn_dz(void *ctx, size_t begin, size_t end)
{
    const struct group *g = ctx;
    const struct pl_conv2d_args *a = g->a;
    float dz[PL_LANES][ROWS];

    for (size_t n = 0; n < g->n; n += PL_LANES) {
        size_t count = PL_MIN(g->n - n, (size_t)PL_LANES);
        const float *dy = (const float *)a->dy + (g->first + n) * g->places;

        for (size_t i = 0; a->relu && i < count; i++) {
            const float *y = (const float *)a->y + (g->first + n + i) * g->places;

            for (size_t p = begin; p < end; p++)
                dz[i][p - begin] = y[p] <= 0 ? 0 : dy[i * g->places + p];
        }
        turn(a->relu ? dz[0] : dy + begin, count, end - begin, a->relu ? ROWS : g->places,
             g->y + begin * g->n + n, g->n, false);
    }
}

static void sum_db(void *ctx, size_t begin, size_t end)
{
    const struct group *g = ctx;
    float *db = g->a->db;

    for (size_t o = begin; o < end; o++) {
        const float *dz = g->y + o * g->columns;
        float sum = PL_LANE_SUM(g->columns, dz[i]);

        db[o] = g->first_group && !g->a->db_add ? sum : db[o] + sum;
    }
}

static inline void move(const float *from, size_t n, const bool add, float *to)
{
    size_t k = 0;

    for (; k + PL_LANES <= n; k += PL_LANES)
        pl_store(to + k, add ? pl_load(to + k) + pl_load(from + k) : pl_load(from + k));
    for (; k < n; k++)
        to[k] = add ? to[k] + from[k] : from[k];
}

/* Row k of the columns is the image under a tap; `back` adds it to the image. Where neighbouring
 * windows read neighbouring pixels, these are one piece. */
static inline __attribute__((always_inline)) void
move_row(const struct group *g, size_t k, const bool back)
{
    const struct pl_conv2d_args *a = g->a;
    struct tap t = tap_of(g, k);
    size_t rows[2], columns[2], step = a->stride_w * g->n;
    float *column = g->x + k * g->columns;

    inside(a->height, g->oh, a->stride_h, a->pad_h, t.u, rows);
    inside(a->width, g->ow, a->stride_w, a->pad_w, t.v, columns);
    if (!back)
        memset(column, 0, g->columns * sizeof(*column));
    for (size_t i = rows[0]; i < rows[1]; i++) {
        size_t row = t.c * a->height + i * a->stride_h + t.u - a->pad_h;
        size_t first = columns[0] * a->stride_w + t.v - a->pad_w;
        float *pixel = g->image + (row * a->width + first) * g->n;
        float *at = column + (i * g->ow + columns[0]) * g->n;
        size_t pieces = columns[1] - columns[0], n = g->n;

        if (a->stride_w == 1) {
            n *= pieces;
            pieces = PL_MIN(pieces, (size_t)1);
        }
        for (size_t j = 0; j < pieces; j++, pixel += step, at += n)
            move(back ? at : pixel, n, back, back ? pixel : at);
    }
}

static void read_rows(void *ctx, size_t begin, size_t end)
{
    for (size_t k = begin; k < end; k++)
        move_row(ctx, k, false);
}

/* Adds the columns' gradients up to dx, by channels. */
static void add_channels(void *ctx, size_t begin, size_t end)
{
    const struct group *g = ctx;
    size_t taps = g->u.n * g->v.n, plane = g->a->height * g->a->width * g->n;

    memset(g->image + begin * plane, 0, (end - begin) * plane * sizeof(float));
    for (size_t k = begin * taps; k < end * taps; k++)
        move_row(g, k, true);
}

static void product_y(const struct group *g)
{
    PL_CPU(gemm)
    (&(struct pl_gemm){.m = g->a->out,
                       .n = g->columns,
                       .k = g->k,
                       .a = g->w ? g->w : g->a->w,
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
                       .c = g->w ? g->w : g->a->dw,
                       .ldc = g->k,
                       .add = !g->w && (g->a->dw_add || !g->first_group)});
    if (g->w)
        pl_pool_parallel(g->a->out, 8, put_weights, (void *)g);
}

static void product_dx(const struct group *g)
{
    PL_CPU(gemm)
    (&(struct pl_gemm){.m = g->k,
                       .n = g->columns,
                       .k = g->a->out,
                       .a = g->w ? g->w : g->a->w,
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

    if (!g.image)
        return false;
    if (g.w)
        pl_pool_parallel(a->out, 8, take_weights, &g);
    for (size_t done = 0; next_group(&g, &done);) {
        pl_pool_parallel(g.pixels, ROWS, turn_x, &g);
        pl_pool_parallel(g.k, 64, read_rows, &g);
        product_y(&g);
        pl_pool_parallel(g.places, ROWS, turn_y, &g);
    }
    return true;
}

bool PL_CPU(batch_backward)(const struct pl_conv2d_args *a)
{
    struct group g = group_of(a);

    if (!g.image)
        return false;
    for (size_t done = 0; next_group(&g, &done);) {
        pl_pool_parallel(g.places, ROWS, turn_dz, &g);
        if (a->db)
            pl_pool_parallel(a->out, 64, sum_db, &g);
        if (a->dw && g.k == 0)
            put_weights(&g, 0, a->out);
        else if (a->dw) {
            pl_pool_parallel(g.pixels, ROWS, turn_x, &g);
            pl_pool_parallel(g.k, 64, read_rows, &g);
            product_dw(&g);
        }
        if (a->dx) {
            if (g.w) /* in place of dw */
                pl_pool_parallel(a->out, 8, take_weights, &g);
            if (g.k > 0)
                product_dx(&g); /* in place of the columns */
            pl_pool_parallel(a->in, 16, add_channels, &g);
            pl_pool_parallel(g.pixels, ROWS, turn_dx, &g);
        }
    }
    return true;
}
