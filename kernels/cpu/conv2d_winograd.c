/* SPDX-License-Identifier: MIT */
/* Winograd's F(2x2, 3x3) after Lavin and Gray (arXiv 1509.09308): two by two outputs from a 4x4
 * tile of the image with 16 instead of 36 multiplications,
 *     y = A' [(G g G') .* (B' d B)] A,
 *
 * summed over channels as 16 products of matrices, [tiles, in] by [in, out]. Backward is that
 * formula's own gradient, so the transforms of dy serve both products:
 *     dg = G' [(A dy A') .* (B' d B)] G,    dd = B [(G g G') .* (A dy A')] B'.
 *
 * Images are transposed to [row, column, channel] first: then every transform is a loop over
 * channels, and no product needs packing. */
#include "kernels/cpu/conv2d_winograd.h"
#include "kernels/cpu/pack.h"

#define E 16           /* products */
#define BLOCK_TILES 48 /* transformed at a time: V, Z and M stay in L2 */

/* Floats of a row of this many channels; not a multiple of 512 bytes, or tiles would share cache
 * sets. */
static size_t row_of(size_t channels)
{
    size_t row = pl_round_up(channels, (size_t)PL_NR);

    return row % 128 ? row : row + PL_NR;
}

struct pl_winograd PL_CPU(winograd)(const struct pl_conv2d_args *a)
{
    struct pl_winograd w = {.a = a, .in = row_of(a->in), .out = row_of(a->out)};
    size_t tiles;

    w.oh = pl_conv_size(a->height, 3, 1, a->pad_h);
    w.ow = pl_conv_size(a->width, 3, 1, a->pad_w);
    w.th = (w.oh + 1) / 2;
    w.tw = (w.ow + 1) / 2;
    w.rows = PL_MIN(PL_MAX(BLOCK_TILES / w.tw, (size_t)1), w.th);
    tiles = pl_round_up(w.rows * w.tw, (size_t)PL_MR) +
            1; /* one more, as reads go past the last row's end */
    w.x_step = tiles * w.in;
    w.y_step = tiles * w.out;
    w.x_size = (2 * w.th + 2) * (2 * w.tw + 2) * w.in;
    w.y_size = 4 * w.th * w.tw * w.out;
    w.w_size = E * a->in * w.out;
    w.turned_size = E * a->out * w.in;
    w.dw_size = E * pl_round_up(a->out, (size_t)PL_MR) * w.in;
    return w;
}

/* Element (row k, column n) of factors as panels of PL_NR columns of `rows` rows. */
static size_t panel_at(size_t rows, size_t k, size_t n)
{
    return (n / PL_NR * rows + k) * PL_NR + n % PL_NR;
}

/* G g G' of a row of three, or of a column. */
static void spread3(const float *g, size_t step, float u[4])
{
    float outer = (g[0] + g[2 * step]) / 2, inner = g[step] / 2;

    u[0] = g[0];
    u[1] = outer + inner;
    u[2] = outer - inner;
    u[3] = g[2 * step];
}

void PL_CPU(winograd_weights)(const struct pl_winograd *w, bool turned, float *to)
{
    const struct pl_conv2d_args *a = w->a;
    size_t rows = turned ? a->out : a->in, step = (turned ? w->turned_size : w->w_size) / E;

    memset(to, 0, E * step * sizeof(*to));
    for (size_t o = 0; o < a->out; o++) {
        for (size_t c = 0; c < a->in; c++) {
            const float *g = (const float *)a->w + (o * a->in + c) * 9;
            size_t at = turned ? panel_at(rows, o, c) : panel_at(rows, c, o);
            float half[4][3], u[4];

            for (size_t v = 0; v < 3; v++) {
                spread3(g + v, 3, u);
                for (size_t r = 0; r < 4; r++)
                    half[r][v] = u[r];
            }
            for (size_t r = 0; r < 4; r++) {
                spread3(half[r], 1, u);
                for (size_t s = 0; s < 4; s++)
                    to[(r * 4 + s) * step + at] = u[s];
            }
        }
    }
}

/* [channels, height, width] to [.., .., row], where rows are `pitch` pixels apart. */
static void turn(size_t channels,
                 size_t height,
                 size_t width,
                 const float *from,
                 float *to,
                 size_t row,
                 size_t pitch)
{
    for (size_t c = 0; c < channels; c += PL_LANES)
        for (size_t i = 0; i < height; i++)
            pl_pack_rows(from + (c * height + i) * width, height * width,
                         PL_MIN(channels - c, (size_t)PL_LANES), width, to + i * pitch * row + c,
                         row);
}

/* The channels of n pixels, the last one repeated. */
static inline void turn_block(const float *from, size_t row, size_t n, pl_vec r[PL_LANES])
{
#pragma GCC unroll 16
    for (size_t p = 0; p < PL_LANES; p++)
        r[p] = pl_load(from + PL_MIN(p, n - 1) * row);
    pl_transpose(r);
}

/* The inverse. */
static void turn_back(size_t channels,
                      size_t height,
                      size_t width,
                      const float *from,
                      size_t row,
                      size_t pitch,
                      bool add,
                      float *to)
{
    for (size_t i = 0; i < height; i++) {
        for (size_t j = 0; j < width; j += PL_LANES) {
            const float *pixels = from + (i * pitch + j) * row;
            size_t n = PL_MIN(width - j, (size_t)PL_LANES);

            for (size_t c = 0; c < channels; c += PL_LANES) {
                size_t count = PL_MIN(channels - c, (size_t)PL_LANES);
                float *at = to + (c * height + i) * width + j;
                pl_vec r[PL_LANES];

                turn_block(pixels + c, row, n, r);
                for (size_t k = 0; k < count; k++, at += height * width) {
                    if (n == PL_LANES) {
                        pl_store(at, add ? pl_load(at) + r[k] : r[k]);
                        continue;
                    }
                    for (size_t p = 0; p < n; p++)
                        at[p] = add ? at[p] + r[k][p] : r[k][p];
                }
            }
        }
    }
}

/* v = B' d B of the tile at d; step: from one product to the next. */
static inline void tile_x(const float *d, size_t row, size_t pixel, float *v, size_t step)
{
    pl_vec t[4][4];

    for (size_t c = 0; c < 4; c++, d += pixel) {
        pl_vec d0 = pl_load(d), d1 = pl_load(d + row), d2 = pl_load(d + 2 * row);
        pl_vec d3 = pl_load(d + 3 * row);

        t[0][c] = d0 - d2;
        t[1][c] = d1 + d2;
        t[2][c] = d2 - d1;
        t[3][c] = d1 - d3;
    }
    for (size_t r = 0; r < 4; r++, v += 4 * step) {
        pl_store(v, t[r][0] - t[r][2]);
        pl_store(v + step, t[r][1] + t[r][2]);
        pl_store(v + 2 * step, t[r][2] - t[r][1]);
        pl_store(v + 3 * step, t[r][1] - t[r][3]);
    }
}

/* z = A dy A' */
static inline void tile_dy(const float *dy, size_t row, size_t pixel, float *z, size_t step)
{
    for (size_t r = 0; r < 4; r++, z += 4 * step) {
        pl_vec s[2];

        for (size_t c = 0; c < 2; c++) {
            pl_vec top = pl_load(dy + c * pixel), low = pl_load(dy + row + c * pixel);

            s[c] = r == 0 ? top : r == 1 ? top + low : r == 2 ? top - low : -low;
        }
        pl_store(z, s[0]);
        pl_store(z + step, s[0] + s[1]);
        pl_store(z + 2 * step, s[0] - s[1]);
        pl_store(z + 3 * step, -s[1]);
    }
}

/* y = A' m A */
static inline void tile_y(const float *m, size_t step, pl_vec y[2][2])
{
    pl_vec s[2][4];

    for (size_t c = 0; c < 4; c++, m += step) {
        pl_vec m1 = pl_load(m + 4 * step), m2 = pl_load(m + 8 * step);

        s[0][c] = pl_load(m) + m1 + m2;
        s[1][c] = m1 - m2 - pl_load(m + 12 * step);
    }
    for (size_t r = 0; r < 2; r++) {
        y[r][0] = s[r][0] + s[r][1] + s[r][2];
        y[r][1] = s[r][1] - s[r][2] - s[r][3];
    }
}

/* dx += B m B' */
static inline void tile_dx(const float *m, size_t step, float *dx, size_t row, size_t pixel)
{
    pl_vec s[4][4];

    for (size_t c = 0; c < 4; c++, m += step) {
        pl_vec m0 = pl_load(m), m1 = pl_load(m + 4 * step), m2 = pl_load(m + 8 * step);

        s[0][c] = m0;
        s[1][c] = m1 - m2 + pl_load(m + 12 * step);
        s[2][c] = m1 + m2 - m0;
        s[3][c] = -pl_load(m + 12 * step);
    }
    for (size_t r = 0; r < 4; r++, dx += row) {
        pl_store(dx, pl_load(dx) + s[r][0]);
        pl_store(dx + pixel, pl_load(dx + pixel) + (s[r][1] - s[r][2] + s[r][3]));
        pl_store(dx + 2 * pixel, pl_load(dx + 2 * pixel) + (s[r][1] + s[r][2] - s[r][0]));
        pl_store(dx + 3 * pixel, pl_load(dx + 3 * pixel) - s[r][3]);
    }
}

/* Tile rows [i, i + rows), their tiles in sequence. */
struct block {
    size_t i, rows, tiles;
};

static void block_x(const struct pl_winograd *w, const struct block *b, const float *x, float *v)
{
    size_t row = (2 * w->tw + 2) * w->in;

    for (size_t t = 0; t < b->tiles; t++) {
        const float *d = x + 2 * (b->i + t / w->tw) * row + 2 * (t % w->tw) * w->in;

        for (size_t c = 0; c < w->a->in; c += PL_LANES)
            tile_x(d + c, row, w->in, v + t * w->in + c, w->x_step);
    }
}

static void block_dy(const struct pl_winograd *w, const struct block *b, const float *dy, float *z)
{
    size_t row = 2 * w->tw * w->out;

    for (size_t t = 0; t < b->tiles; t++) {
        const float *d = dy + 2 * (b->i + t / w->tw) * row + 2 * (t % w->tw) * w->out;

        for (size_t o = 0; o < w->a->out; o += PL_LANES)
            tile_dy(d + o, row, w->out, z + t * w->out + o, w->y_step);
    }
}

static void block_y(const struct pl_winograd *w, const struct block *b, const float *m, float *y)
{
    const struct pl_conv2d_args *a = w->a;
    size_t row = 2 * w->tw * w->out;

    for (size_t t = 0; t < b->tiles; t++) {
        float *to = y + 2 * (b->i + t / w->tw) * row + 2 * (t % w->tw) * w->out;

        for (size_t o = 0; o < a->out; o += PL_LANES) {
            pl_vec out[2][2], bias = {0};

            if (a->b)
                memcpy(&bias, (const float *)a->b + o,
                       PL_MIN(a->out - o, (size_t)PL_LANES) * sizeof(float));
            tile_y(m + t * w->out + o, w->y_step, out);
            for (size_t r = 0; r < 4; r++) {
                pl_vec v = out[r / 2][r % 2] + bias;

                if (a->relu)
                    v = (pl_vec)((pl_mask)v & ~(pl_mask)(v <= 0)); /* a NaN stays NaN */
                pl_store(to + r / 2 * row + r % 2 * w->out + o, v);
            }
        }
    }
}

static void block_dx(const struct pl_winograd *w, const struct block *b, const float *m, float *dx)
{
    size_t row = (2 * w->tw + 2) * w->in;

    for (size_t t = 0; t < b->tiles; t++) {
        float *to = dx + 2 * (b->i + t / w->tw) * row + 2 * (t % w->tw) * w->in;

        for (size_t c = 0; c < w->a->in; c += PL_LANES)
            tile_dx(m + t * w->in + c, w->x_step, to + c, row, w->in);
    }
}

/* C [m, n] = A [m, k] B or, with `add`, += A' [m, k] B. Rows of A and B are a_row and b_row floats
 * apart; B may be panels of PL_NR columns, b_panel floats each. Rows of C are written up to a
 * multiple of PL_MR, columns up to one of PL_NR. */
struct product {
    size_t m, n, k;
    const float *a, *b;
    size_t a_row, a_col, b_row, b_panel, c_row;
    bool add;
    float *c;
};

static void multiply(const struct product *p)
{
    pl_vec acc[PL_MR][PL_NV];

    for (size_t n = 0; n < p->n; n += PL_NR) {
        const float *b = p->b + n / PL_NR * p->b_panel;

        for (size_t m = 0; m < p->m; m += PL_MR) {
            float *c = p->c + m * p->c_row + n;

            pl_micro(p->k, p->a + m * p->a_row, p->a_row, p->a_col, b, p->b_row, NULL, acc);
#pragma GCC unroll 12
            for (size_t r = 0; r < PL_MR; r++)
#pragma GCC unroll 4
                for (size_t v = 0; v < PL_NV; v++) {
                    float *at = c + r * p->c_row + v * PL_LANES;

                    pl_store(at, p->add ? pl_load(at) + acc[r][v] : acc[r][v]);
                }
        }
    }
}

/* Parts of the scratch: the image, the output, V, Z or M, dx's M, transposed dx. */
struct layout {
    size_t y, v, m, d, dx, total;
};

static struct layout layout_of(const struct pl_winograd *w, bool backward)
{
    struct layout l = {.y = w->x_size};

    l.v = l.y + w->y_size;
    l.m = l.v + E * w->x_step;
    l.d = l.m + E * w->y_step;
    l.dx = l.d + (backward ? E * w->x_step : 0);
    l.total = l.dx + (backward ? w->x_size : 0) + PL_NR;
    return l;
}

size_t PL_CPU(winograd_scratch)(const struct pl_winograd *w, bool backward)
{
    return layout_of(w, backward).total;
}

void PL_CPU(winograd_clear)(const struct pl_winograd *w, bool backward, float *scratch)
{
    /* Channels past the last one may have any value: results from them are not read. */
    memset(scratch, 0, (w->x_size + (backward ? w->y_size : 0)) * sizeof(*scratch));
}

static struct block block_at(const struct pl_winograd *w, size_t i)
{
    size_t rows = PL_MIN(w->rows, w->th - i);

    return (struct block){.i = i, .rows = rows, .tiles = rows * w->tw};
}

/* Copies the image into its border of zeros. */
static void turn_x(const struct pl_winograd *w, const float *x, float *to)
{
    const struct pl_conv2d_args *a = w->a;
    size_t pitch = 2 * w->tw + 2;

    turn(a->in, a->height, a->width, x, to + (a->pad_h * pitch + a->pad_w) * w->in, w->in, pitch);
}

void PL_CPU(winograd_forward)(
    const struct pl_winograd *w, const float *weights, const float *x, float *scratch, float *y)
{
    struct layout l = layout_of(w, false);
    size_t step = w->w_size / E;

    turn_x(w, x, scratch);
    for (size_t i = 0; i < w->th; i += w->rows) {
        struct block b = block_at(w, i);

        block_x(w, &b, scratch, scratch + l.v);
        for (size_t e = 0; e < E; e++)
            multiply(&(struct product){.m = b.tiles,
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
        block_y(w, &b, scratch + l.m, scratch + l.y);
    }
    turn_back(w->a->out, w->oh, w->ow, scratch + l.y, w->out, 2 * w->tw, false, y);
}

void PL_CPU(winograd_backward)(const struct pl_winograd *w,
                               const float *turned,
                               const float *x,
                               const float *dz,
                               float *scratch,
                               float *dx,
                               float *sums)
{
    const struct pl_conv2d_args *a = w->a;
    struct layout l = layout_of(w, true);
    float *v = scratch + l.v, *z = scratch + l.m, *d = scratch + l.d, *turned_dx = scratch + l.dx;
    size_t pitch = 2 * w->tw + 2;

    turn(a->out, w->oh, w->ow, dz, scratch + l.y, w->out, 2 * w->tw);
    if (sums)
        turn_x(w, x, scratch);
    if (dx)
        memset(turned_dx, 0, w->x_size * sizeof(*turned_dx));
    for (size_t i = 0; i < w->th; i += w->rows) {
        struct block b = block_at(w, i);

        block_dy(w, &b, scratch + l.y, z);
        if (sums)
            block_x(w, &b, scratch, v);
        for (size_t e = 0; e < E && sums; e++)
            multiply(&(struct product){.m = a->out,
                                       .n = a->in,
                                       .k = b.tiles,
                                       .a = z + e * w->y_step,
                                       .a_row = 1,
                                       .a_col = w->out,
                                       .b = v + e * w->x_step,
                                       .b_row = w->in,
                                       .b_panel = PL_NR,
                                       .c = sums + e * (w->dw_size / E),
                                       .c_row = w->in,
                                       .add = true});
        for (size_t e = 0; e < E && dx; e++)
            multiply(&(struct product){.m = b.tiles,
                                       .n = a->in,
                                       .k = a->out,
                                       .a = z + e * w->y_step,
                                       .a_row = w->out,
                                       .a_col = 1,
                                       .b = turned + e * (w->turned_size / E),
                                       .b_row = PL_NR,
                                       .b_panel = a->out * PL_NR,
                                       .c = d + e * w->x_step,
                                       .c_row = w->in});
        if (dx)
            block_dx(w, &b, d, turned_dx);
    }
    if (dx)
        turn_back(a->in, a->height, a->width, turned_dx + (a->pad_h * pitch + a->pad_w) * w->in,
                  w->in, pitch, a->dx_add, dx);
}

void PL_CPU(winograd_dw)(const struct pl_winograd *w, const float *sums, float *dw)
{
    const struct pl_conv2d_args *a = w->a;
    size_t step = w->dw_size / E;

    for (size_t o = 0; o < a->out; o++) {
        for (size_t c = 0; c < a->in; c++, dw += 9) {
            const float *m = sums + o * w->in + c;
            float half[3][4];

            for (size_t s = 0; s < 4; s++, m += step) {
                float m1 = m[4 * step], m2 = m[8 * step];

                half[0][s] = m[0] + (m1 + m2) / 2;
                half[1][s] = (m1 - m2) / 2;
                half[2][s] = (m1 + m2) / 2 + m[12 * step];
            }
            for (size_t u = 0; u < 3; u++) {
                dw[3 * u] += half[u][0] + (half[u][1] + half[u][2]) / 2;
                dw[3 * u + 1] += (half[u][1] - half[u][2]) / 2;
                dw[3 * u + 2] += (half[u][1] + half[u][2]) / 2 + half[u][3];
            }
        }
    }
}
