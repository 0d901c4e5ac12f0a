/* SPDX-License-Identifier: MIT */
/* Winograd's F(m x m, 3x3) after Lavin and Gray (arXiv 1509.09308): m by m outputs from a tile of
 * the image with (m + 2)^2 instead of 9 m^2 multiplications, 16 of 36 or 36 of 144,
 *     y = A' [(G g G') .* (B' d B)] A,
 *
 * summed over channels as (m + 2)^2 products of matrices, [tiles, in] by [in, out]. Backward is
 * that formula's own gradient, so the transforms of dy serve both products:
 *     dg = G' [(A dy A') .* (B' d B)] G,    dd = B [(G g G') .* (A dy A')] B'.
 *
 * Images are transposed to [row, column, channel] first: then every transform is a loop over
 * channels, and no product needs packing. Few images are a stack of tile rows, of which a block is
 * transformed and multiplied at a time. */
#include "kernels/cpu/conv2d_winograd.h"
#include "kernels/cpu/conv2d_tile.h"
#include "kernels/cpu/pack.h"

#define BLOCK_TILES 48 /* transformed at a time: V, Z and M stay in L2 */
/* Limit of the weights of F(4x4) and of the sums of their gradient, which each thread has: they are
 * 2.25 times those of F(2x2), and past the L2 the products wait for them. */
#define WEIGHTS_FLOATS ((size_t)2 << 20)

/* The rows of the last tiles of a product. */
#if PL_MR == 4
#define TAIL 2
#else
#define TAIL (PL_MR / 3)
#endif

/* Floats of a row of this many channels; not a multiple of 512 bytes, or tiles would share cache
 * sets. */
static size_t row_of(size_t channels)
{
    size_t row = pl_round_up(channels, (size_t)PL_NR);

    return row % 128 ? row : row + PL_NR;
}

static size_t tiles_of(const struct pl_winograd *w, size_t m)
{
    return ((w->oh + m - 1) / m) * ((w->ow + m - 1) / m);
}

/* The larger tile saves multiplications where the image is not much smaller than its tiles. A gain
 * below a fifth is lost again, as a block has fewer tiles. */
static size_t choose_m(const struct pl_winograd *w)
{
    bool fewer = 5 * 36 * tiles_of(w, 4) <= 4 * 16 * tiles_of(w, 2);

    return fewer && 36 * w->a->in * w->out <= WEIGHTS_FLOATS ? 4 : 2;
}

struct pl_winograd PL_CPU(winograd)(const struct pl_conv2d_args *a, size_t images, bool whole)
{
    struct pl_winograd w = {.a = a, .in = row_of(a->in), .out = row_of(a->out)};
    size_t tiles;

    w.oh = pl_conv_size(a->height, 3, 1, a->pad_h);
    w.ow = pl_conv_size(a->width, 3, 1, a->pad_w);
    w.m = choose_m(&w);
    w.side = w.m + 2;
    w.products = w.side * w.side;
    w.th = (w.oh + w.m - 1) / w.m;
    w.tw = (w.ow + w.m - 1) / w.m;
    w.images = PL_MAX(PL_MIN(whole ? images : BLOCK_TILES / (w.th * w.tw), images), (size_t)1);
    w.rows = PL_MIN(PL_MAX(BLOCK_TILES / w.tw, (size_t)1), w.images * w.th);
    if (whole)
        w.rows = w.images * w.th;
    tiles = pl_round_up(w.rows * w.tw, (size_t)PL_MR) + 1; /* odd, for the cache's sets */
    w.x_step = tiles * w.in;
    w.y_step = tiles * w.out;
    w.x_size = (w.m * w.th + 2) * (w.m * w.tw + 2) * w.in;
    w.y_size = w.m * w.m * w.th * w.tw * w.out;
    w.w_size = w.products * a->in * w.out;
    w.turned_size = w.products * a->out * w.in;
    w.dw_size = w.products * pl_round_up(a->out, (size_t)PL_MR) * w.in;
    return w;
}

/* An image between [channels, height, width] and [.., .., row], where rows are `pitch` pixels
 * apart. Its pixels go by PL_LANES, whatever rows they are in; the last ones overlap those before
 * them. */
struct image {
    size_t channels, height, width, row, pitch;
};

/* The first pixel of the PL_LANES from p on. */
static size_t last_whole(size_t pixels, size_t p)
{
    return pixels < PL_LANES ? 0 : PL_MIN(p, pixels - PL_LANES);
}

static void turn(const struct image *m, const float *from, float *to)
{
    size_t pixels = m->height * m->width;

    for (size_t c = 0; c < m->channels; c += PL_LANES) {
        size_t n = PL_MIN(m->channels - c, (size_t)PL_LANES);

        for (size_t p = 0; p < pixels; p += PL_LANES) {
            size_t first = last_whole(pixels, p), i = first / m->width, j = first % m->width;
            const float *at = from + c * pixels + first;
            pl_vec r[PL_LANES] = {{0}};

            if (pixels < PL_LANES) {
                for (size_t k = 0; k < n; k++)
                    memcpy(&r[k], at + k * pixels, pixels * sizeof(*at));
            } else if (n == PL_LANES) {
#pragma GCC unroll 16
                for (size_t k = 0; k < PL_LANES; k++)
                    r[k] = pl_load(at + k * pixels);
            } else {
#pragma GCC unroll 16
                for (size_t k = 0; k < PL_LANES; k++)
                    if (k < n)
                        r[k] = pl_load(at + k * pixels);
            }
#pragma GCC unroll 16
            for (size_t k = 0; k < PL_LANES; k++) /* more streams than the hardware follows */
                __builtin_prefetch(at + PL_MIN(k, n - 1) * pixels + PL_PACK_AHEAD);
            pl_transpose(r);
#pragma GCC unroll 16
            for (size_t k = 0; k < PL_LANES; k++) {
                if (k < pixels)
                    pl_store(to + (i * m->pitch + j) * m->row + c, r[k]);
                if (++j == m->width) {
                    j = 0;
                    i++;
                }
            }
        }
    }
}

/* The inverse. */
static void turn_back(const struct image *m, const float *from, bool add, float *to)
{
    size_t pixels = m->height * m->width;
    pl_mask lane;

    for (size_t l = 0; l < PL_LANES; l++)
        lane[l] = (int32_t)l;
    for (size_t c = 0; c < m->channels; c += PL_LANES) {
        size_t n = PL_MIN(m->channels - c, (size_t)PL_LANES);

        for (size_t p = 0; p < pixels; p += PL_LANES) {
            size_t first = last_whole(pixels, p), i = first / m->width, j = first % m->width;
            pl_mask fresh = lane >= (int32_t)(p - first); /* the others are done */
            float *at = to + c * pixels + first;
            pl_vec r[PL_LANES];

#pragma GCC unroll 16
            for (size_t k = 0; k < PL_LANES; k++) {
                r[k] = pl_load(from + (i * m->pitch + j) * m->row + c);
                if (k + 1 < pixels && ++j == m->width) {
                    j = 0;
                    i++;
                }
            }
            pl_transpose(r);
            for (size_t k = 0; k < n; k++, at += pixels) {
                pl_vec old = {0};

                if (pixels < PL_LANES) {
                    for (size_t l = 0; l < pixels; l++)
                        at[l] = add ? at[l] + r[k][l] : r[k][l];
                    continue;
                }
                if (add) {
                    old = pl_load(at);
                    r[k] = (pl_vec)((fresh & (pl_mask)(old + r[k])) | (~fresh & (pl_mask)old));
                }
                pl_store(at, r[k]);
            }
        }
    }
}

/* Tile rows [i, i + rows) of the stack of images, their tiles in sequence. */
struct block {
    size_t i, rows, tiles;
};

/* The first pixel of tile t of a block in a stack of images of `size` floats and `row` floats. */
static inline size_t tile_at(const struct pl_winograd *w,
                             const struct block *b,
                             size_t t,
                             size_t size,
                             size_t row,
                             size_t pixel)
{
    size_t i = b->i + t / w->tw;

    return i / w->th * size + w->m * (i % w->th * row + t % w->tw * pixel);
}

PL_TILE_INLINE block_x(
    const size_t m, const struct pl_winograd *w, const struct block *b, const float *x, float *v)
{
    size_t row = (m * w->tw + 2) * w->in;

    for (size_t t = 0; t < b->tiles; t++) {
        const float *d = x + tile_at(w, b, t, w->x_size, row, w->in);

        for (size_t c = 0; c < w->a->in; c += PL_LANES) {
            float *to = v + t * w->in + c;
            pl_vec u[PL_SIDE][PL_SIDE];

            pl_tile_both(pl_tile_x, m, m + 2, m + 2, d + c, row, w->in, u);
#pragma GCC unroll 6
            for (size_t r = 0; r < m + 2; r++)
#pragma GCC unroll 6
                for (size_t s = 0; s < m + 2; s++, to += w->x_step)
                    pl_store(to, u[r][s]);
        }
    }
}

PL_TILE_INLINE block_dy(
    const size_t m, const struct pl_winograd *w, const struct block *b, const float *dy, float *z)
{
    size_t row = m * w->tw * w->out;

    for (size_t t = 0; t < b->tiles; t++) {
        const float *d = dy + tile_at(w, b, t, w->y_size, row, w->out);

        for (size_t o = 0; o < w->a->out; o += PL_LANES) {
            float *to = z + t * w->out + o;
            pl_vec u[PL_SIDE][PL_SIDE];

            pl_tile_both(pl_tile_dy, m, m, m + 2, d + o, row, w->out, u);
#pragma GCC unroll 6
            for (size_t r = 0; r < m + 2; r++)
#pragma GCC unroll 6
                for (size_t s = 0; s < m + 2; s++, to += w->y_step)
                    pl_store(to, u[r][s]);
        }
    }
}

PL_TILE_INLINE block_y(const size_t m,
                       const struct pl_winograd *w,
                       const struct block *b,
                       const float *products,
                       float *y)
{
    const struct pl_conv2d_args *a = w->a;
    size_t row = m * w->tw * w->out;

    for (size_t t = 0; t < b->tiles; t++) {
        float *to = y + tile_at(w, b, t, w->y_size, row, w->out);

        for (size_t o = 0; o < a->out; o += PL_LANES) {
            pl_vec out[PL_SIDE][PL_SIDE], bias = {0};

            if (a->b)
                memcpy(&bias, (const float *)a->b + o,
                       PL_MIN(a->out - o, (size_t)PL_LANES) * sizeof(float));
            pl_tile_both(pl_tile_y, m, m + 2, m, products + t * w->out + o, (m + 2) * w->y_step,
                         w->y_step, out);
#pragma GCC unroll 4
            for (size_t r = 0; r < m; r++)
#pragma GCC unroll 4
                for (size_t s = 0; s < m; s++) {
                    pl_vec v = out[r][s] + bias;

                    if (a->relu)
                        v = (pl_vec)((pl_mask)v & ~(pl_mask)(v <= 0)); /* a NaN stays NaN */
                    pl_store(to + r * row + s * w->out + o, v);
                }
        }
    }
}

PL_TILE_INLINE block_dx(const size_t m,
                        const struct pl_winograd *w,
                        const struct block *b,
                        const float *products,
                        float *dx)
{
    size_t row = (m * w->tw + 2) * w->in;

    for (size_t t = 0; t < b->tiles; t++) {
        float *to = dx + tile_at(w, b, t, w->x_size, row, w->in);

        for (size_t c = 0; c < w->a->in; c += PL_LANES) {
            pl_vec d[PL_SIDE][PL_SIDE];

            pl_tile_both(pl_tile_dx, m, m + 2, m + 2, products + t * w->in + c, (m + 2) * w->x_step,
                         w->x_step, d);
#pragma GCC unroll 6
            for (size_t r = 0; r < m + 2; r++)
#pragma GCC unroll 6
                for (size_t s = 0; s < m + 2; s++) {
                    float *at = to + r * row + s * w->in + c;

                    pl_store(at, pl_load(at) + d[r][s]);
                }
        }
    }
}

PL_TILE_INLINE
multiply_rows(const size_t rows, const struct pl_winograd_product *p, size_t m, size_t n)
{
    float *c = p->c + m * p->c_row + n;
    pl_vec acc[PL_MR][PL_NV];

    pl_micro_rows(rows, p->k, p->a + m * p->a_row, p->a_row, p->a_col,
                  p->b + n / PL_NR * p->b_panel, p->b_row, NULL, acc);
#pragma GCC unroll 12
    for (size_t r = 0; r < rows; r++)
#pragma GCC unroll 4
        for (size_t v = 0; v < PL_NV; v++) {
            float *at = c + r * p->c_row + v * PL_LANES;

            pl_store(at, p->add ? pl_load(at) + acc[r][v] : acc[r][v]);
        }
}

PL_TILE_INLINE multiply(const struct pl_winograd_product *p)
{
    for (size_t n = 0; n < p->n; n += PL_NR) {
        size_t m = 0;

        for (; m + PL_MR - TAIL < p->m; m += PL_MR)
            multiply_rows(PL_MR, p, m, n);
        for (; m < p->m; m += TAIL)
            multiply_rows(TAIL, p, m, n);
    }
}

void PL_CPU(winograd_multiply)(const struct pl_winograd_product *p)
{
    multiply(p);
}

/* Parts of the scratch: the images, the outputs, V, Z or M, dx's M, transposed dx. */
struct layout {
    size_t y, v, m, d, dx, total;
};

static struct layout layout_of(const struct pl_winograd *w, bool backward)
{
    struct layout l = {.y = w->images * w->x_size};

    l.v = l.y + w->images * w->y_size;
    l.m = l.v + w->products * w->x_step;
    l.d = l.m + w->products * w->y_step;
    l.dx = l.d + (backward ? w->products * w->x_step : 0);
    l.total = l.dx + (backward ? w->images * w->x_size : 0) + PL_NR;
    return l;
}

size_t PL_CPU(winograd_scratch)(const struct pl_winograd *w, bool backward)
{
    return layout_of(w, backward).total;
}

void PL_CPU(winograd_clear)(const struct pl_winograd *w, bool backward, float *scratch)
{
    /* Channels past the last one may have any value: results from them are not read. */
    memset(scratch, 0, w->images * (w->x_size + (backward ? w->y_size : 0)) * sizeof(*scratch));
}

static struct block block_at(const struct pl_winograd *w, size_t i, size_t end)
{
    size_t rows = PL_MIN(w->rows, end - i);

    return (struct block){.i = i, .rows = rows, .tiles = rows * w->tw};
}

/* x and dx as a caller has them; transposed they have a border. */
static struct image image_x(const struct pl_winograd *w)
{
    return (struct image){w->a->in, w->a->height, w->a->width, w->in, w->m * w->tw + 2};
}

static size_t border(const struct pl_winograd *w)
{
    return (w->a->pad_h * (w->m * w->tw + 2) + w->a->pad_w) * w->in;
}

static void turn_x(const struct pl_winograd *w, const float *x, size_t n, float *to)
{
    struct image m = image_x(w);

    for (size_t i = 0; i < n; i++)
        turn(&m, x + i * m.channels * m.height * m.width, to + i * w->x_size + border(w));
}

void PL_CPU(winograd_forward)(const struct pl_winograd *w,
                              const float *weights,
                              const float *x,
                              size_t n,
                              float *scratch,
                              float *y)
{
    struct image out = {w->a->out, w->oh, w->ow, w->out, w->m * w->tw};
    struct layout l = layout_of(w, false);
    size_t step = w->w_size / w->products;

    turn_x(w, x, n, scratch);
    for (size_t i = 0; i < n * w->th; i += w->rows) {
        struct block b = block_at(w, i, n * w->th);

        PL_TILE_SIZE(w, block_x, &b, scratch, scratch + l.v);
        for (size_t e = 0; e < w->products; e++)
            multiply(&(struct pl_winograd_product){.m = b.tiles,
                                                   .n = w->a->out,
                                                   .k = w->a->in,
                                                   .a = scratch + l.v + e * w->x_step,
                                                   .a_row = w->in,
                                                   .a_col = 1,
                                                   .b = weights + e * step,
                                                   .b_row = PL_NR,
                                                   .b_panel = w->a->in * PL_NR,
                                                   .c = scratch + l.m + e * w->y_step,
                                                   .c_row = w->out});
        PL_TILE_SIZE(w, block_y, &b, scratch + l.m, scratch + l.y);
    }
    for (size_t i = 0; i < n; i++)
        turn_back(&out, scratch + l.y + i * w->y_size, false, y + i * w->a->out * w->oh * w->ow);
}

void PL_CPU(winograd_turn_dz)(
    const struct pl_winograd *w, size_t o, size_t count, const float *dz, float *pixels)
{
    struct image m = {count, w->oh, w->ow, w->out, w->m * w->tw};

    turn(&m, dz, pixels + o);
}

void PL_CPU(winograd_take_dz)(
    const struct pl_winograd *w, size_t i, size_t o, size_t count, const float *dz, float *scratch)
{
    PL_CPU(winograd_turn_dz)(w, o, count, dz, scratch + layout_of(w, true).y + i * w->y_size);
}

void PL_CPU(winograd_backward)(const struct pl_winograd *w,
                               const float *turned,
                               const float *x,
                               size_t n,
                               float *scratch,
                               float *dx,
                               float *sums)
{
    const struct pl_conv2d_args *a = w->a;
    struct layout l = layout_of(w, true);
    float *v = scratch + l.v, *z = scratch + l.m, *d = scratch + l.d, *turned_dx = scratch + l.dx;
    struct image image = image_x(w);

    if (sums)
        turn_x(w, x, n, scratch);
    if (dx)
        memset(turned_dx, 0, n * w->x_size * sizeof(*turned_dx));
    for (size_t i = 0; i < n * w->th; i += w->rows) {
        struct block b = block_at(w, i, n * w->th);

        PL_TILE_SIZE(w, block_dy, &b, scratch + l.y, z);
        if (sums)
            PL_TILE_SIZE(w, block_x, &b, scratch, v);
        for (size_t e = 0; e < w->products && sums; e++)
            multiply(&(struct pl_winograd_product){.m = a->out,
                                                   .n = a->in,
                                                   .k = b.tiles,
                                                   .a = z + e * w->y_step,
                                                   .a_row = 1,
                                                   .a_col = w->out,
                                                   .b = v + e * w->x_step,
                                                   .b_row = w->in,
                                                   .b_panel = PL_NR,
                                                   .c = sums + e * (w->dw_size / w->products),
                                                   .c_row = w->in,
                                                   .add = true});
        for (size_t e = 0; e < w->products && dx; e++)
            multiply(&(struct pl_winograd_product){.m = b.tiles,
                                                   .n = a->in,
                                                   .k = a->out,
                                                   .a = z + e * w->y_step,
                                                   .a_row = w->out,
                                                   .a_col = 1,
                                                   .b = turned + e * (w->turned_size / w->products),
                                                   .b_row = PL_NR,
                                                   .b_panel = a->out * PL_NR,
                                                   .c = d + e * w->x_step,
                                                   .c_row = w->in});
        if (dx)
            PL_TILE_SIZE(w, block_dx, &b, d, turned_dx);
    }
    for (size_t i = 0; dx && i < n; i++)
        turn_back(&image, turned_dx + i * w->x_size + border(w), a->dx_add,
                  dx + i * a->in * a->height * a->width);
}

/* The tiles of one image. */
static struct block whole_image(const struct pl_winograd *w)
{
    return (struct block){.rows = w->th, .tiles = w->th * w->tw};
}

void PL_CPU(winograd_read_x)(const struct pl_winograd *w, const float *x, float *pixels, float *v)
{
    struct block b = whole_image(w);

    turn_x(w, x, 1, pixels);
    PL_TILE_SIZE(w, block_x, &b, pixels, v);
}

void PL_CPU(winograd_read_dz)(const struct pl_winograd *w, const float *pixels, float *z)
{
    struct block b = whole_image(w);

    PL_TILE_SIZE(w, block_dy, &b, pixels, z);
}

void PL_CPU(winograd_write_y)(const struct pl_winograd *w, const float *m, float *pixels, float *y)
{
    struct image out = {w->a->out, w->oh, w->ow, w->out, w->m * w->tw};
    struct block b = whole_image(w);

    PL_TILE_SIZE(w, block_y, &b, m, pixels);
    turn_back(&out, pixels, false, y);
}

void PL_CPU(winograd_write_dx)(const struct pl_winograd *w,
                               const float *m,
                               float *pixels,
                               float *dx)
{
    struct image in = image_x(w);
    struct block b = whole_image(w);

    memset(pixels, 0, w->x_size * sizeof(*pixels));
    PL_TILE_SIZE(w, block_dx, &b, m, pixels);
    turn_back(&in, pixels + border(w), w->a->dx_add, dx);
}
