/* SPDX-License-Identifier: MIT */
#include "kernels/cpu/pool2d.h"

#include <math.h>
#include <string.h>

#define COLUMNS 64        /* windows of a row that are computed together */
#define MAX_TAPS 256      /* `which` is a byte */
#define LINES_FLOATS 8192 /* room for PL_LANES windows of any kernel */

typedef uint8_t bytes __attribute__((vector_size(PL_LANES)));

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
            pl_vec value = v ? pl_shuffle(a, b, PL_MASK(PL_POOL2D_ODD, 0))
                             : pl_shuffle(a, b, PL_MASK(PL_POOL2D_EVEN, 0));
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

/* A row of n windows, of the `room` that are left of the plane. What a vector writes past the row's
 * end, the next row writes again. */
static void
max_halves(const float *x, size_t width, float *y, uint8_t *which, size_t n, size_t room)
{
    for (size_t j = 0; j < n; j += PL_LANES) {
        float in[4 * PL_LANES] = {0}, out[PL_LANES];
        uint8_t places[PL_LANES];

        if (room - j >= PL_LANES) {
            max_vector(x + 2 * j, width, y + j, which + j);
            continue;
        }
        if (n >= PL_LANES) { /* the last vector overlaps the previous one */
            j = n - PL_LANES;
            max_vector(x + 2 * j, width, y + j, which + j);
            return;
        }
        memcpy(in, x, 2 * n * sizeof(*x));
        memcpy(in + 2 * PL_LANES, x + width, 2 * n * sizeof(*x));
        max_vector(in, 2 * PL_LANES, out, places);
        memcpy(y, out, n * sizeof(*y));
        memcpy(which, places, n);
    }
}

/* The windows of a row that have tap v. */
static void columns_of(const struct pl_pool2d_args *a, size_t v, size_t *ret_from, size_t *ret_to)
{
    size_t stride = a->stride_w, end = a->width + a->pad_w;

    *ret_from = a->pad_w > v ? (a->pad_w - v + stride - 1) / stride : 0;
    *ret_to = end > v ? (end - v + stride - 1) / stride : 0;
}

/* Some rows of x, cut so that each tap of PL_LANES windows is one load: columns that are `stride`
 * apart are neighbours in a line of their own. The padding is -INFINITY, which beats nothing. Many
 * rows are written before the first is read: the processor does not wait for them. */
struct lines {
    float at[LINES_FLOATS];
    size_t j0, columns;     /* the windows; columns: a multiple of PL_LANES */
    size_t phases, length;  /* lines of a row of x, and floats of each */
    size_t top, rows;       /* the first row of x, the most that there is room for */
    uint32_t tap[MAX_TAPS]; /* where tap v of window j0 is in a row's lines */
    struct {
        size_t skip, from, n; /* floats of the padding, the first column, and how many */
    } line[MAX_TAPS];
    int32_t first[COLUMNS]; /* the first tap inside x, of each window */
};

static void lines_init(const struct pl_pool2d_args *a, size_t ow, struct lines *l)
{
    size_t more = (a->kernel_w - 1) / a->stride_w;

    l->phases = PL_MIN(a->stride_w, a->kernel_w);
    l->columns = PL_MIN(pl_round_up(ow, PL_LANES), (size_t)COLUMNS);
    while (l->columns > PL_LANES && a->kernel_h * l->phases * (l->columns + more) > LINES_FLOATS)
        l->columns -= PL_LANES;
    l->length = l->columns + more;
    l->rows = PL_MIN(LINES_FLOATS / (l->phases * l->length), a->height + a->kernel_h);
    for (size_t v = 0; v < a->kernel_w; v++)
        l->tap[v] = (uint32_t)(v % a->stride_w * l->length + v / a->stride_w);
}

/* For the windows from j0 on, in any row. */
static void lines_at(const struct pl_pool2d_args *a, size_t j0, struct lines *l)
{
    l->j0 = j0;
    for (size_t i = 0; i < l->rows * l->phases * l->length; i++)
        l->at[i] = -INFINITY;
    for (size_t p = 0; p < l->phases; p++) {
        size_t from, to;

        columns_of(a, p, &from, &to);
        from = PL_MIN(PL_MAX(from, j0), j0 + l->length);
        to = PL_MIN(to, j0 + l->length);
        l->line[p].skip = from - j0;
        l->line[p].from = from * a->stride_w + p - a->pad_w;
        l->line[p].n = to > from ? to - from : 0;
    }
    for (size_t j = 0; j < l->columns; j++) {
        size_t left = (j0 + j) * a->stride_w;

        l->first[j] = left < a->pad_w ? (int32_t)(a->pad_w - left) : 0;
    }
}

static inline void
take(float *restrict to, const float *restrict from, const size_t stride, size_t n)
{
    for (size_t k = 0; k < n; k++)
        to[k] = from[k * stride];
}

/* Rows [top, end) of x. */
static void
lines_read(const struct pl_pool2d_args *a, const float *x, size_t top, size_t end, struct lines *l)
{
    float *to = l->at;

    l->top = top;
    for (size_t r = top; r < end; r++)
        for (size_t p = 0; p < l->phases; p++, to += l->length) {
            const float *from = x + r * a->width + l->line[p].from;

            if (a->stride_w == 1)
                take(to + l->line[p].skip, from, 1, l->line[p].n);
            else if (a->stride_w == 2)
                take(to + l->line[p].skip, from, 2, l->line[p].n);
            else
                take(to + l->line[p].skip, from, a->stride_w, l->line[p].n);
        }
}

/* PL_LANES windows of row i, in the order of their taps. */
static inline void max_lines(const struct pl_pool2d_args *a,
                             const struct lines *l,
                             size_t i,
                             size_t at,
                             float *y,
                             uint8_t *which)
{
    size_t u0, u1, top = i * a->stride_h;
    pl_vec best = (pl_vec){0} - INFINITY;
    pl_mask place;
    bytes narrow;

    pl_pool2d_clip(top, a->pad_h, a->kernel_h, a->height, &u0, &u1);
    memcpy(&place, l->first + at, sizeof(place));
    place += (int32_t)(u0 * a->kernel_w);
    for (size_t u = u0; u < u1; u++) {
        const float *row = l->at + (top + u - a->pad_h - l->top) * l->phases * l->length + at;

        for (size_t v = 0; v < a->kernel_w; v++) {
            pl_vec value = pl_load(row + l->tap[v]);
            pl_mask wins = (value > best) | ((value != value) & (best == best));

            best = choose(wins, value, best);
            place = (place & ~wins) | (wins & (int32_t)(u * a->kernel_w + v));
        }
    }
    pl_store(y, best);
    narrow = __builtin_convertvector(place, bytes);
    memcpy(which, &narrow, sizeof(narrow));
}

/* Row i from window j0 on; room: as in max_halves(). */
static void max_row(const struct pl_pool2d *p,
                    size_t i,
                    const struct lines *l,
                    float *y,
                    uint8_t *which,
                    size_t room)
{
    for (size_t j = l->j0; j < p->ow && j < l->j0 + l->columns; j += PL_LANES) {
        float out[PL_LANES];
        uint8_t places[PL_LANES];

        if (room - j >= PL_LANES) {
            max_lines(p->a, l, i, j - l->j0, y + j, which + j);
            continue;
        }
        max_lines(p->a, l, i, j - l->j0, out, places);
        memcpy(y + j, out, (p->ow - j) * sizeof(*y));
        memcpy(which + j, places, p->ow - j);
    }
}

static void
max_plane(const struct pl_pool2d *p, const float *x, struct lines *l, float *y, uint8_t *which)
{
    const struct pl_pool2d_args *a = p->a;
    size_t band = (l->rows - a->kernel_h) / a->stride_h + 1;

    for (size_t i0 = 0; i0 < p->oh; i0 += band) {
        size_t i1 = PL_MIN(p->oh, i0 + band), top = i0 * a->stride_h;
        size_t end = PL_MIN((i1 - 1) * a->stride_h + a->kernel_h - a->pad_h, a->height);

        for (size_t j0 = 0; j0 < p->ow; j0 += l->columns) {
            if (l->j0 != j0)
                lines_at(a, j0, l);
            lines_read(a, x, top > a->pad_h ? top - a->pad_h : 0, end, l);
            for (size_t i = i0; i < i1; i++)
                max_row(p, i, l, y + i * p->ow, which + i * p->ow,
                        p->ow > l->columns ? p->ow : (p->oh - i) * p->ow);
        }
    }
}

static void max_forward(void *ctx, size_t begin, size_t end)
{
    const struct pl_pool2d *p = ctx;
    const struct pl_pool2d_args *a = p->a;
    struct lines lines;

    if (!pl_pool2d_halves(a)) {
        lines_init(a, p->ow, &lines);
        lines_at(a, 0, &lines);
    }
    for (size_t n = begin; n < end; n++) {
        const float *x = (const float *)a->x + n * a->height * a->width;

        float *y = (float *)a->y + n * p->oh * p->ow;
        uint8_t *which = a->which + n * p->oh * p->ow;

        if (!pl_pool2d_halves(a)) {
            max_plane(p, x, &lines, y, which);
            continue;
        }
        for (size_t i = 0; i < p->oh; i++, y += p->ow, which += p->ow)
            max_halves(x + 2 * i * a->width, a->width, y, which, p->ow, (p->oh - i) * p->ow);
    }
}

/* Rows u = 0 and 1 of dx under PL_LANES windows. */
static inline void spread(pl_vec d, pl_mask place, int u, pl_vec *ret_low, pl_vec *ret_high)
{
    pl_vec a = (pl_vec)((pl_mask)d & (place == 2 * u));
    pl_vec b = (pl_vec)((pl_mask)d & (place == 2 * u + 1));

    *ret_low = pl_shuffle(a, b, PL_MASK(LOW, 0));
    *ret_high = pl_shuffle(a, b, PL_MASK(HIGH, 0));
}

/* Row u of dx under a row of n windows. */
static void back_half(const float *dy,
                      const uint8_t *which,
                      float *dx,
                      const int u,
                      size_t n,
                      size_t room,
                      const bool add)
{
    for (size_t j = 0; j < n; j += PL_LANES) {
        size_t count = PL_MIN(n - j, (size_t)PL_LANES);
        float *to = dx + 2 * j, d[PL_LANES] = {0}, out[2 * PL_LANES];
        pl_vec low, high;
        bytes narrow = {0};

        if (count == PL_LANES || room - j >= PL_LANES) {
            memcpy(&narrow, which + j, sizeof(narrow));
            spread(pl_load(dy + j), __builtin_convertvector(narrow, pl_mask), u, &low, &high);
            if (add) {
                low += pl_load(to);
                high += pl_load(to + PL_LANES);
            }
            pl_store(to, low);
            pl_store(to + PL_LANES, high);
            continue;
        }
        memcpy(&narrow, which + j, count);
        memcpy(d, dy + j, count * sizeof(*d));
        spread(pl_load(d), __builtin_convertvector(narrow, pl_mask), u, &low, &high);
        pl_store(out, low);
        pl_store(out + PL_LANES, high);
        for (size_t k = 0; k < 2 * count; k++)
            to[k] = add ? to[k] + out[k] : out[k];
    }
}

static void
max_backward_halves(const struct pl_pool2d *p, const float *dy, const uint8_t *which, float *dx)
{
    size_t width = p->a->width;

    if (!p->a->dx_add &&
        (width % 2 || p->a->height % 2)) /* the last row or column belongs to no window */
        memset(dx, 0, p->a->height * width * sizeof(*dx));
    for (size_t i = 0; i < p->oh; i++, dy += p->ow, which += p->ow, dx += 2 * width) {
        /* The next rows write again what a vector writes past a row's end: see max_halves(). */
        size_t room = p->a->dx_add || width % 2 ? p->ow : (p->oh - i) * p->ow;

        for (int u = 0; u < 2; u++)
            if (p->a->dx_add)
                back_half(dy, which, dx + (size_t)u * width, u, p->ow, room, true);
            else
                back_half(dy, which, dx + (size_t)u * width, u, p->ow, room, false);
    }
}

static void max_backward(void *ctx, size_t begin, size_t end)
{
    const struct pl_pool2d *p = ctx;
    const struct pl_pool2d_args *a = p->a;

    for (size_t n = begin; n < end; n++) {
        const float *dy = (const float *)a->dy + n * p->oh * p->ow;
        const uint8_t *which = a->which + n * p->oh * p->ow;
        float *dx = (float *)a->dx + n * a->height * a->width;

        if (pl_pool2d_halves(a)) {
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

void PL_CPU(max_pool2d_forward)(const struct pl_pool2d_args *a)
{
    if (a->inner > 1) /* no tape asks for it here */
        pl_kernels_ref(PL_REAL_F32)->max_pool2d_forward(a);
    else
        pl_pool2d_run(a, max_forward);
}

void PL_CPU(max_pool2d_backward)(const struct pl_pool2d_args *a)
{
    if (a->inner > 1) /* no tape asks for it here */
        pl_kernels_ref(PL_REAL_F32)->max_pool2d_backward(a);
    else
        pl_pool2d_run(a, max_backward);
}
