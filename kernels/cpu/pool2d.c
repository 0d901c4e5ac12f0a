/* SPDX-License-Identifier: MIT */
#include "kernels/cpu/pack.h"
#include "kernels/pool/pool.h"

#include <math.h>
#include <string.h>

#define GRAIN 16384 /* elements of x per chunk */
#define COLUMNS 64  /* windows of a row that are computed together */

struct pool2d {
    const struct pl_pool2d_args *a;
    size_t oh, ow;
};

/* The taps [from, to) of a window that are inside an axis; its first tap is at start - pad. */
static inline void
clip(size_t start, size_t pad, size_t kernel, size_t size, size_t *ret_from, size_t *ret_to)
{
    *ret_from = start < pad ? pad - start : 0;
    *ret_to = PL_MIN(kernel, size + pad - start);
}

/* True if windows are 2 x 2 and do not overlap: the most common case, computed without branches. */
static bool halves(const struct pl_pool2d_args *a)
{
    return a->kernel_h == 2 && a->kernel_w == 2 && a->stride_h == 2 && a->stride_w == 2 &&
           a->pad_h == 0 && a->pad_w == 0;
}

static inline bool beats(float x, float best)
{
    return x > best || (x != x && best == best);
}

typedef uint8_t bytes __attribute__((vector_size(PL_LANES)));

#define EVEN(l, s) (2 * (l) + (s))
#define ODD(l, s) (2 * (l) + 1 + (s))
#define LOW(l, s) ((l) / 2 + (l) % 2 * PL_LANES + (s))
#define HIGH(l, s) (PL_LANES / 2 + (l) / 2 + (l) % 2 * PL_LANES + (s))

static inline pl_vec choose(pl_mask which, pl_vec yes, pl_vec no)
{
    return (pl_vec)(((pl_mask)yes & which) | ((pl_mask)no & ~which));
}

/* PL_LANES windows. */
static inline void max_vector(const float *x, size_t width, float *y, uint8_t *which)
{
    pl_vec best = {0};
    pl_mask place = {0};
    bytes narrow;

    for (int u = 0; u < 2; u++) {
        pl_vec a = pl_load(x + (size_t)u * width), b = pl_load(x + (size_t)u * width + PL_LANES);

        for (int v = 0; v < 2; v++) {
            pl_vec value =
                v ? pl_shuffle(a, b, PL_MASK(ODD, 0)) : pl_shuffle(a, b, PL_MASK(EVEN, 0));
            pl_mask wins = (value > best) | ((value != value) & (best == best));

            if (u == 0 && v == 0)
                wins = ~(pl_mask){0}; /* the first one always wins */
            best = choose(wins, value, best);
            place = (place & ~wins) | (wins & (2 * u + v));
        }
    }
    pl_store(y, best);
    narrow = __builtin_convertvector(place, bytes);
    memcpy(which, &narrow, sizeof(narrow));
}

static void max_halves(const float *x, size_t width, float *y, uint8_t *which, size_t n)
{
    for (size_t j = 0; j < n; j += PL_LANES) {
        if (n >= PL_LANES) {
            size_t at = PL_MIN(j, n - PL_LANES); /* the last vector overlaps the previous one */

            max_vector(x + 2 * at, width, y + at, which + at);
            continue;
        }
        for (size_t k = 0; k < n; k++) {
            y[k] = x[2 * k];
            which[k] = 0;
            for (size_t t = 1; t < 4; t++) {
                float value = x[t / 2 * width + 2 * k + t % 2];

                if (beats(value, y[k])) {
                    y[k] = value;
                    which[k] = (uint8_t)t;
                }
            }
        }
    }
}

/* The windows of a row that have tap v. */
static void columns_of(const struct pl_pool2d_args *a, size_t v, size_t *ret_from, size_t *ret_to)
{
    size_t stride = a->stride_w, end = a->width + a->pad_w;

    *ret_from = a->pad_w > v ? (a->pad_w - v + stride - 1) / stride : 0;
    *ret_to = end > v ? (end - v + stride - 1) / stride : 0;
}

/* Windows [j0, j0 + n) of row i, tap by tap: no branch depends on the image. */
static void max_columns(const struct pl_pool2d_args *a,
                        const float *x,
                        size_t i,
                        size_t j0,
                        size_t n,
                        float *y,
                        uint8_t *ret_which)
{
    float best[COLUMNS], tap[COLUMNS];
    int32_t which[COLUMNS];
    size_t u0, u1, v0, v1, from, to, stride = a->stride_w;
    size_t n_vectors = (n + PL_LANES - 1) / PL_LANES;

    clip(i * a->stride_h, a->pad_h, a->kernel_h, a->height, &u0, &u1);
    x += (i * a->stride_h + u0 - a->pad_h) * a->width;
    for (size_t j = 0; j < n_vectors * PL_LANES; j++) {
        best[j] = tap[j] = -INFINITY;
        which[j] = 0;
    }
    for (size_t j = 0; j < n; j++) { /* the first tap stays if none beats it */
        clip((j0 + j) * stride, a->pad_w, a->kernel_w, a->width, &v0, &v1);
        best[j] = x[(j0 + j) * stride + v0 - a->pad_w];
        which[j] = (int32_t)(u0 * a->kernel_w + v0);
    }
    for (size_t u = u0; u < u1; u++, x += a->width)
        for (size_t v = 0; v < a->kernel_w; v++) {
            pl_mask place = (pl_mask){0} + (int32_t)(u * a->kernel_w + v);

            columns_of(a, v, &from, &to);
            from = PL_MAX(from, j0);
            to = PL_MIN(to, j0 + n);
            for (size_t j = j0; j < from && j < j0 + n; j++)
                tap[j - j0] = -INFINITY; /* beats nothing */
            for (size_t j = from; j < to; j++)
                tap[j - j0] = x[j * stride + v - a->pad_w];
            for (size_t j = PL_MAX(from, to); j < j0 + n; j++)
                tap[j - j0] = -INFINITY;
            for (size_t k = 0; k < n_vectors; k++) {
                pl_vec value = pl_load(tap + k * PL_LANES), old = pl_load(best + k * PL_LANES);
                pl_mask wins = (value > old) | ((value != value) & (old == old)), was;

                memcpy(&was, which + k * PL_LANES, sizeof(was));
                pl_store(best + k * PL_LANES, choose(wins, value, old));
                was = (was & ~wins) | (place & wins);
                memcpy(which + k * PL_LANES, &was, sizeof(was));
            }
        }
    memcpy(y, best, n * sizeof(*y));
    for (size_t j = 0; j < n; j++)
        ret_which[j] = (uint8_t)which[j];
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
                for (size_t j = 0; j < p->ow; j += COLUMNS)
                    max_columns(a, x, i, j, PL_MIN(p->ow - j, (size_t)COLUMNS), y + j, which + j);
        }
    }
}

static void
max_backward_halves(const struct pool2d *p, const float *dy, const uint8_t *which, float *dx)
{
    size_t width = p->a->width;

    if (!p->a->dx_add &&
        (width % 2 || p->a->height % 2)) /* the last row or column belongs to no window */
        memset(dx, 0, p->a->height * width * sizeof(*dx));
    for (size_t i = 0; i < p->oh; i++, dy += p->ow, which += p->ow, dx += 2 * width) {
        size_t j = 0;

        for (; j + PL_LANES <= p->ow; j += PL_LANES) {
            bytes narrow;
            pl_mask place;
            pl_vec d = pl_load(dy + j);

            memcpy(&narrow, which + j, sizeof(narrow));
            place = __builtin_convertvector(narrow, pl_mask);
            for (int u = 0; u < 2; u++) {
                float *to = dx + (size_t)u * width + 2 * j;
                pl_vec a = (pl_vec)((pl_mask)d & (place == 2 * u));
                pl_vec b = (pl_vec)((pl_mask)d & (place == 2 * u + 1));
                pl_vec low = pl_shuffle(a, b, PL_MASK(LOW, 0));
                pl_vec high = pl_shuffle(a, b, PL_MASK(HIGH, 0));

                if (p->a->dx_add) {
                    low += pl_load(to);
                    high += pl_load(to + PL_LANES);
                }
                pl_store(to, low);
                pl_store(to + PL_LANES, high);
            }
        }
        for (; j < p->ow; j++)
            for (size_t t = 0; t < 4; t++) {
                float *to = dx + t / 2 * width + 2 * j + t % 2;

                *to = (p->a->dx_add ? *to : 0) + (which[j] == t ? dy[j] : 0);
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

/* The range of a window's taps without the padding: rows i0 .. i1, columns j0 .. j1 of x. */
struct box {
    size_t i0, i1, j0, j1;
};

static inline struct box box_of(const struct pl_pool2d_args *a, size_t i, size_t j)
{
    size_t u0, u1, v0, v1, top = i * a->stride_h, left = j * a->stride_w;

    clip(top, a->pad_h, a->kernel_h, a->height, &u0, &u1);
    clip(left, a->pad_w, a->kernel_w, a->width, &v0, &v1);
    return (struct box){top + u0 - a->pad_h, top + u1 - a->pad_h, left + v0 - a->pad_w,
                        left + v1 - a->pad_w};
}

static inline float sum_of(const float *x, size_t n)
{
    pl_vec lanes = {0};
    float flat[PL_LANES], sum = 0;
    size_t k = 0;

    if (n >= PL_LANES) {
        for (; k + PL_LANES <= n; k += PL_LANES)
            lanes += pl_load(x + k);
        pl_store(flat, lanes);
        for (size_t l = 0; l < PL_LANES; l++)
            sum += flat[l];
    }
    for (; k < n; k++)
        sum += x[k];
    return sum;
}

/* A row of windows of 2 x 2. */
static void avg_halves(const float *x, size_t width, float *y, size_t n)
{
    size_t j = 0;

    for (; j + PL_LANES <= n; j += PL_LANES) {
        const float *at = x + 2 * j;
        pl_vec a = pl_load(at) + pl_load(at + width);
        pl_vec b = pl_load(at + PL_LANES) + pl_load(at + width + PL_LANES);

        pl_store(y + j,
                 (pl_shuffle(a, b, PL_MASK(EVEN, 0)) + pl_shuffle(a, b, PL_MASK(ODD, 0))) * 0.25f);
    }
    for (; j < n; j++)
        y[j] = (x[2 * j] + x[2 * j + width] + (x[2 * j + 1] + x[2 * j + width + 1])) * 0.25f;
}

static void avg_halves_back(const float *dy, float *dx, size_t width, size_t n, bool add)
{
    for (size_t u = 0; u < 2; u++, dx += width)
        for (size_t j = 0; j < 2 * n; j++)
            dx[j] = (add ? dx[j] : 0) + dy[j / 2] * 0.25f;
}

static void avg_forward(void *ctx, size_t begin, size_t end)
{
    const struct pool2d *p = ctx;
    const struct pl_pool2d_args *a = p->a;
    float share = 1 / (float)(a->kernel_h * a->kernel_w);

    for (size_t n = begin; n < end; n++) {
        const float *x = (const float *)a->x + n * a->height * a->width;
        float *y = (float *)a->y + n * p->oh * p->ow;

        for (size_t i = 0; i < p->oh; i++) {
            if (halves(a)) {
                avg_halves(x + 2 * i * a->width, a->width, y, p->ow);
                y += p->ow;
                continue;
            }
            for (size_t j = 0; j < p->ow; j++) {
                struct box b = box_of(a, i, j);
                float sum = 0;

                for (size_t r = b.i0; r < b.i1; r++)
                    sum += sum_of(x + r * a->width + b.j0, b.j1 - b.j0);
                *y++ = sum * share;
            }
        }
    }
}

static void avg_backward(void *ctx, size_t begin, size_t end)
{
    const struct pool2d *p = ctx;
    const struct pl_pool2d_args *a = p->a;
    float share = 1 / (float)(a->kernel_h * a->kernel_w);
    bool covered =
        halves(a) && a->height % 2 == 0 && a->width % 2 == 0; /* each x belongs to a window */

    for (size_t n = begin; n < end; n++) {
        const float *dy = (const float *)a->dy + n * p->oh * p->ow;
        float *dx = (float *)a->dx + n * a->height * a->width;

        if (!a->dx_add && !covered)
            memset(dx, 0, a->height * a->width * sizeof(*dx));
        for (size_t i = 0; i < p->oh; i++) {
            if (halves(a)) {
                avg_halves_back(dy, dx + 2 * i * a->width, a->width, p->ow, a->dx_add || !covered);
                dy += p->ow;
                continue;
            }
            for (size_t j = 0; j < p->ow; j++) {
                struct box b = box_of(a, i, j);
                float d = *dy++ * share;

                for (size_t r = b.i0; r < b.i1; r++)
                    for (size_t c = b.j0; c < b.j1; c++)
                        dx[r * a->width + c] += d;
            }
        }
    }
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
    if (a->inner > 1) /* no tape asks for it here */
        pl_kernels_ref(PL_REAL_F32)->max_pool2d_forward(a);
    else
        run(a, max_forward);
}

void PL_CPU(max_pool2d_backward)(const struct pl_pool2d_args *a)
{
    if (a->inner > 1) /* no tape asks for it here */
        pl_kernels_ref(PL_REAL_F32)->max_pool2d_backward(a);
    else
        run(a, max_backward);
}

void PL_CPU(avg_pool2d_forward)(const struct pl_pool2d_args *a)
{
    if (a->inner > 1) /* no tape asks for it here */
        pl_kernels_ref(PL_REAL_F32)->avg_pool2d_forward(a);
    else
        run(a, avg_forward);
}

void PL_CPU(avg_pool2d_backward)(const struct pl_pool2d_args *a)
{
    if (a->inner > 1) /* no tape asks for it here */
        pl_kernels_ref(PL_REAL_F32)->avg_pool2d_backward(a);
    else
        run(a, avg_backward);
}
