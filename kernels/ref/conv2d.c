/* SPDX-License-Identifier: MIT */
#include "kernels/ref/real.h"

#include <math.h>
#include <string.h>

struct at {
    size_t n, o, y; /* image, output channel, index into y */
    size_t i, j;
};

/* Index into an image [n, channels, height, width], or [n, height, width, channels] if `last`. */
static size_t index_of(
    bool last, size_t n, size_t c, size_t i, size_t j, size_t channels, size_t height, size_t width)
{
    return last ? ((n * height + i) * width + j) * channels + c
                : ((n * channels + c) * height + i) * width + j;
}

/* Calls f for each product of y's element: x's index, w's index. */
#define EACH_TAP(a, at, ...)                                                                       \
    for (size_t c = 0; c < (a)->in; c++)                                                           \
        for (size_t u = 0; u < (a)->kernel_h; u++)                                                 \
            for (size_t v = 0; v < (a)->kernel_w; v++) {                                           \
                size_t i = (at).i * (a)->stride_h + u - (a)->pad_h;                                \
                size_t j = (at).j * (a)->stride_w + v - (a)->pad_w;                                \
                                                                                                   \
                if (i < (a)->height && j < (a)->width) { /* below 0 it wraps around */             \
                    size_t xi =                                                                    \
                        index_of((a)->last, (at).n, c, i, j, (a)->in, (a)->height, (a)->width);    \
                    size_t wi = index_of((a)->last, (at).o, c, u, v, (a)->in, (a)->kernel_h,       \
                                         (a)->kernel_w);                                           \
                                                                                                   \
                    __VA_ARGS__                                                                    \
                }                                                                                  \
            }

static size_t count(const struct pl_conv2d_args *a)
{
    return a->batch * a->out * pl_conv_size(a->height, a->kernel_h, a->stride_h, a->pad_h) *
           pl_conv_size(a->width, a->kernel_w, a->stride_w, a->pad_w);
}

static struct at place(const struct pl_conv2d_args *a, size_t y)
{
    size_t h = pl_conv_size(a->height, a->kernel_h, a->stride_h, a->pad_h);
    size_t w = pl_conv_size(a->width, a->kernel_w, a->stride_w, a->pad_w);

    if (a->last)
        return (struct at){.n = y / (a->out * h * w),
                           .o = y % a->out,
                           .y = y,
                           .i = y / a->out / w % h,
                           .j = y / a->out % w};
    return (struct at){
        .n = y / (a->out * h * w), .o = y / (h * w) % a->out, .y = y, .i = y / w % h, .j = y % w};
}

void PL_REF(conv2d_forward)(const struct pl_conv2d_args *a)
{
    const real *x = a->x, *w = a->w, *b = a->b;
    real *y = a->y;

    for (size_t k = 0; k < count(a); k++) {
        struct at at = place(a, k);
        double sum = b ? b[at.o] : 0;

        EACH_TAP(a, at, sum += (double)x[xi] * w[wi];)
        y[k] = (real)(a->relu && sum <= 0 ? 0 : sum);
    }
}

void PL_REF(conv2d_mend)(const struct pl_conv2d_args *a)
{
    const real *x = a->x, *w = a->w, *b = a->b;
    real *y = a->y;

    for (size_t k = 0; *a->bad && k < count(a); k++) {
        struct at at = place(a, k);
        double sum = b ? b[at.o] : 0;
        bool finite = true;

        EACH_TAP(a, at, sum += (double)x[xi] * w[wi]; finite &= isfinite(x[xi]);)
        if (!finite)
            y[k] = (real)(a->relu && sum <= 0 ? 0 : sum);
    }
}

/* A gradient's sums have its own type: a test knows the resulting precision. */
void PL_REF(conv2d_backward)(const struct pl_conv2d_args *a)
{
    const real *x = a->x, *w = a->w, *y = a->y, *dy = a->dy;
    real *dx = a->dx, *dw = a->dw, *db = a->db;

    if (dx && !a->dx_add)
        memset(dx, 0, a->batch * a->in * a->height * a->width * sizeof(*dx));
    if (dw && !a->dw_add)
        memset(dw, 0, a->out * a->in * a->kernel_h * a->kernel_w * sizeof(*dw));
    if (db && !a->db_add)
        memset(db, 0, a->out * sizeof(*db));
    for (size_t k = 0; k < count(a); k++) {
        struct at at = place(a, k);
        real dz = a->relu && y[k] <= 0 ? 0 : dy[k];

        if (db)
            db[at.o] += dz;
        if (dx)
            EACH_TAP(a, at, dx[xi] += dz * w[wi];)
        if (dw)
            EACH_TAP(a, at, dw[wi] += dz * x[xi];)
    }
}
