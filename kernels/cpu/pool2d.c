/* SPDX-License-Identifier: MIT */
#include "kernels/cpu/pool2d.h"

#include <string.h>

/* The range of a window's taps without the padding: rows i0 .. i1, columns j0 .. j1 of x. */
struct box {
    size_t i0, i1, j0, j1;
};

static inline struct box box_of(const struct pl_pool2d_args *a, size_t i, size_t j)
{
    size_t u0, u1, v0, v1, top = i * a->stride_h, left = j * a->stride_w;

    pl_pool2d_clip(top, a->pad_h, a->kernel_h, a->height, &u0, &u1);
    pl_pool2d_clip(left, a->pad_w, a->kernel_w, a->width, &v0, &v1);
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

        pl_store(y + j, (pl_shuffle(a, b, PL_MASK(PL_POOL2D_EVEN, 0)) +
                         pl_shuffle(a, b, PL_MASK(PL_POOL2D_ODD, 0))) *
                            0.25f);
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
    const struct pl_pool2d *p = ctx;
    const struct pl_pool2d_args *a = p->a;
    float share = 1 / (float)(a->kernel_h * a->kernel_w);

    for (size_t n = begin; n < end; n++) {
        const float *x = (const float *)a->x + n * a->height * a->width;
        float *y = (float *)a->y + n * p->oh * p->ow;

        for (size_t i = 0; i < p->oh; i++) {
            if (pl_pool2d_halves(a)) {
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
    const struct pl_pool2d *p = ctx;
    const struct pl_pool2d_args *a = p->a;
    float share = 1 / (float)(a->kernel_h * a->kernel_w);
    bool covered = pl_pool2d_halves(a) && a->height % 2 == 0 &&
                   a->width % 2 == 0; /* each x belongs to a window */

    for (size_t n = begin; n < end; n++) {
        const float *dy = (const float *)a->dy + n * p->oh * p->ow;
        float *dx = (float *)a->dx + n * a->height * a->width;

        if (!a->dx_add && !covered)
            memset(dx, 0, a->height * a->width * sizeof(*dx));
        for (size_t i = 0; i < p->oh; i++) {
            if (pl_pool2d_halves(a)) {
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

void PL_CPU(avg_pool2d_forward)(const struct pl_pool2d_args *a)
{
    if (a->inner > 1) /* no tape asks for it here */
        pl_kernels_ref(PL_REAL_F32)->avg_pool2d_forward(a);
    else
        pl_pool2d_run(a, avg_forward);
}

void PL_CPU(avg_pool2d_backward)(const struct pl_pool2d_args *a)
{
    if (a->inner > 1) /* no tape asks for it here */
        pl_kernels_ref(PL_REAL_F32)->avg_pool2d_backward(a);
    else
        pl_pool2d_run(a, avg_backward);
}
