/* SPDX-License-Identifier: MIT */
#include "kernels/cpu/conv2d.h"
#include "kernels/cpu/pack.h"

void PL_CPU(pad)(const struct pl_padded *p, const float *from, const float *y, float *to)
{
    memset(to, 0, pl_padded_size(p) * sizeof(*to));
    for (size_t c = 0; c < p->channels; c++) {
        for (size_t i = 0; i < p->height; i++) {
            size_t at = (c * p->height + i) * p->width;
            float *row = to + c * p->plane + (i + p->pad_h) * p->row + p->pad_w;

            if (y)
                for (size_t j = 0; j < p->width; j++)
                    row[j] = y[at + j] <= 0 ? 0 : from[at + j];
            else
                for (size_t j = 0; j < p->width; j++)
                    row[j] = from[at + j];
        }
    }
}

void PL_CPU(conv_dz)(
    const struct pl_conv2d_args *a, size_t n, size_t first, size_t count, float *dz, float *db)
{
    size_t plane = pl_conv_size(a->height, a->kernel_h, a->stride_h, a->pad_h) *
                   pl_conv_size(a->width, a->kernel_w, a->stride_w, a->pad_w);
    size_t at = (n * a->out + first) * plane;
    const float *y = (const float *)a->y + at, *dy = (const float *)a->dy + at;

    for (size_t o = first; o < first + count; o++, y += plane, dy += plane, dz += plane) {
        float sums[PL_LANES], sum = 0;
        pl_vec lanes = {0};
        size_t p = 0;

        for (; p + PL_LANES <= plane; p += PL_LANES) {
            pl_vec d = pl_load(dy + p);

            if (a->relu)
                d = (pl_vec)((pl_mask)d & ~(pl_mask)(pl_load(y + p) <= 0));
            lanes += d;
            pl_store(dz + p, d);
        }
        for (; p < plane; p++)
            sum += dz[p] = a->relu && y[p] <= 0 ? 0 : dy[p];
        pl_store(sums, lanes);
        for (size_t l = 0; l < PL_LANES; l++)
            sum += sums[l];
        db[o] += sum;
    }
}

void PL_CPU(taps)(const struct pl_padded *p, size_t kernel_h, size_t kernel_w, uint32_t *to)
{
    for (size_t c = 0; c < p->channels; c++)
        for (size_t u = 0; u < kernel_h; u++)
            for (size_t v = 0; v < kernel_w; v++)
                *to++ = (uint32_t)(c * p->plane + u * p->row + v);
}

/* Copies the valid pieces of a tile's row to a plane of the output. */
struct piece {
    uint32_t from, to, n;
};

static size_t cut(const struct pl_direct *d, size_t p, size_t end, struct piece *ret)
{
    size_t n = 0, last = PL_MIN(end, p + PL_NR);

    for (size_t q = p; q < last;) {
        size_t i = q / d->image.row, j = q % d->image.row, length;

        if (j >= d->width) {
            q += d->image.row - j;
            continue;
        }
        length = PL_MIN(d->width - j, last - q);
        ret[n++] =
            (struct piece){(uint32_t)(q - p), (uint32_t)(i * d->width + j), (uint32_t)length};
        q += length;
    }
    return n;
}

/* A tile's row: pieces are written PL_NR wide if the plane has room; the surplus after a piece is
 * overwritten later. */
static inline void put(const struct pl_direct *d,
                       const float *tile,
                       const struct piece *pieces,
                       size_t n,
                       float *plane)
{
    for (size_t s = 0; s < n; s++) {
        const float *from = tile + pieces[s].from;
        float *to = plane + pieces[s].to;

        if (d->add) {
            for (size_t j = 0; j < pieces[s].n; j++)
                to[j] += from[j];
        } else if (pieces[s].to + PL_NR <= d->height * d->width) {
            for (size_t v = 0; v < PL_NV; v++)
                pl_store(to + v * PL_LANES, pl_load(from + v * PL_LANES));
        } else {
            for (size_t j = 0; j < pieces[s].n; j++)
                to[j] = from[j];
        }
    }
}

void PL_CPU(direct)(const struct pl_direct *d, const float *image, float *out)
{
    size_t end = (d->height - 1) * d->image.row + d->width, size = d->height * d->width;
    float tile[PL_MR][2 * PL_NR] = {{0}};

    for (size_t p = 0; p < end; p += PL_NR) {
        struct piece pieces[PL_NR];
        size_t n = cut(d, p, end, pieces);

        if (n == 0)
            continue;
        for (size_t m = 0; m < d->m; m += PL_MR) {
            size_t height = PL_MIN(d->m - m, (size_t)PL_MR);
            pl_vec acc[PL_MR][PL_NV];

            pl_micro(d->k, d->packed + m * d->k, 1, PL_MR, image + p, 0, d->rows, acc);
#pragma GCC unroll 12
            for (size_t r = 0; r < PL_MR; r++) {
                float bias = d->bias && r < height ? d->bias[m + r] : 0;

#pragma GCC unroll 4
                for (size_t v = 0; v < PL_NV; v++) {
                    pl_vec x = acc[r][v] + bias;

                    if (d->relu)
                        x = (pl_vec)((pl_mask)x & ~(pl_mask)(x <= 0));
                    pl_store(tile[r] + v * PL_LANES, x);
                }
            }
            for (size_t r = 0; r < height; r++)
                put(d, tile[r], pieces, n, out + (m + r) * size);
        }
    }
}

#define OC 4 /* output channels of a tile of dw: OC * 3 registers of sums */

/* sums[o][v] = sum over p of dz[o][p] x[p + v] for o < OC, v < taps <= 3. */
static inline __attribute__((always_inline)) void
tile_dw(const size_t taps, size_t n, const float *x, const float *const dz[OC], float sums[OC][3])
{
    pl_vec acc[OC][3] = {{{0}}};

    for (size_t p = 0; p < n; p += PL_LANES) {
        pl_vec in[3];

#pragma GCC unroll 3
        for (size_t v = 0; v < taps; v++)
            in[v] = pl_load(x + p + v);
#pragma GCC unroll 4
        for (size_t o = 0; o < OC; o++) {
            pl_vec d = pl_load(dz[o] + p);

#pragma GCC unroll 3
            for (size_t v = 0; v < taps; v++)
                acc[o][v] += d * in[v];
        }
    }
    for (size_t v = 0; v < taps; v++) {
        pl_vec r[PL_LANES] = {{0}}, sum = {0};
        float flat[PL_LANES];

#pragma GCC unroll 4
        for (size_t o = 0; o < OC; o++)
            r[o] = acc[o][v];
        pl_transpose(r);
#pragma GCC unroll 16
        for (size_t l = 0; l < PL_LANES; l++)
            sum += r[l];
        pl_store(flat, sum);
        for (size_t o = 0; o < OC; o++)
            sums[o][v] = flat[o];
    }
}

void PL_CPU(direct_dw)(const struct pl_padded *image,
                       size_t kernel_h,
                       size_t kernel_w,
                       size_t out,
                       const struct pl_padded *dz_shape,
                       const float *x,
                       const float *dz,
                       float *dw)
{
    size_t n = (dz_shape->height - 1) * dz_shape->row + dz_shape->width;
    size_t k = image->channels * kernel_h * kernel_w;

    for (size_t o = 0; o < out; o += OC) {
        const float *planes[OC];
        size_t count = PL_MIN(out - o, (size_t)OC);

        for (size_t t = 0; t < OC; t++)
            planes[t] = dz + (o + PL_MIN(t, count - 1)) * dz_shape->plane;
        for (size_t row = 0; row < image->channels * kernel_h; row++) {
            const float *from = x + row / kernel_h * image->plane + row % kernel_h * image->row;

            for (size_t v = 0; v < kernel_w; v += 3) {
                float sums[OC][3];
                size_t taps = PL_MIN(kernel_w - v, (size_t)3);

                if (taps == 3)
                    tile_dw(3, n, from + v, planes, sums);
                else if (taps == 2)
                    tile_dw(2, n, from + v, planes, sums);
                else
                    tile_dw(1, n, from + v, planes, sums);
                for (size_t t = 0; t < count; t++)
                    for (size_t s = 0; s < taps; s++)
                        dw[(o + t) * k + row * kernel_w + v + s] += sums[t][s];
            }
        }
    }
}
