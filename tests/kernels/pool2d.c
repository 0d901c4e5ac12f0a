/* SPDX-License-Identifier: MIT */
#include "tests/kernels/check.h"

#include <math.h>
#include <string.h>

static size_t windows(const struct pl_pool2d_args *a)
{
    return a->planes * a->inner * pl_conv_size(a->height, a->kernel_h, a->stride_h, a->pad_h) *
           pl_conv_size(a->width, a->kernel_w, a->stride_w, a->pad_w);
}

static struct pl_pool2d_args random_shape(void)
{
    struct pl_pool2d_args a = {.planes = 1 + check_random(5),
                               .height = 1 + check_random(20),
                               .width = 1 + check_random(check_random(8) ? 40 : 150),
                               .inner = check_random(3)   ? 1
                                        : check_random(2) ? 1 + check_random(9)
                                                          : 4 + 4 * check_random(3),
                               .kernel_h = 2,
                               .kernel_w = 2,
                               .stride_h = 2,
                               .stride_w = 2,
                               .dx_add = check_random(2)};

    if (check_random(2)) {
        a.kernel_h = 1 + check_random(4);
        a.kernel_w = 1 + check_random(4);
        a.stride_h = 1 + check_random(3);
        a.stride_w = 1 + check_random(3);
        a.pad_h = check_random(a.kernel_h / 2 + 1);
        a.pad_w = check_random(a.kernel_w / 2 + 1);
    }
    if (check_random(4) == 0) { /* has kernels of its own */
        a.kernel_h = a.kernel_w = 3;
        a.stride_h = 2;
        a.stride_w = 2 - (check_random(4) == 0);
        a.pad_h = check_random(2);
        a.pad_w = check_random(2);
    }
    if (check_random(6) == 0) { /* long kernels, and strides beyond them */
        a.kernel_h = 1 + check_random(16);
        a.kernel_w = 1 + check_random(16);
        a.stride_h = 1 + check_random(20);
        a.stride_w = 1 + check_random(20);
        a.pad_h = check_random(a.kernel_h / 2 + 1);
        a.pad_w = check_random(a.kernel_w / 2 + 1);
    }
    a.height = PL_MAX(a.height, a.kernel_h);
    a.width = PL_MAX(a.width, a.kernel_w);
    return a;
}

/* The most windows that have a place in common. */
static double overlap(const struct pl_pool2d_args *a)
{
    return (double)(((a->kernel_h - 1) / a->stride_h + 1) * ((a->kernel_w - 1) / a->stride_w + 1));
}

/* Returns true if the arrays were aligned. */
static bool one(const struct pl_kernels *ref,
                const struct pl_kernels *got,
                struct pl_pool2d_args a,
                enum fill fill)
{
    struct pl_pool2d_args g;
    size_t n_x = a.planes * a.height * a.width * a.inner, n_y = windows(&a);
    size_t taps = a.kernel_h * a.kernel_w;
    double common = overlap(&a) + 1;
    bool aligned;
    float *y = check_floats(n_y, FILL_RANDOM), *y2 = check_floats(n_y, FILL_RANDOM);
    float *dx = check_floats(n_x, FILL_RANDOM), *dx2 = check_copy(dx, n_x);
    uint8_t *which = (uint8_t *)check_labels(n_y / 4 + 1, 1);
    uint8_t *which2 = (uint8_t *)check_labels(n_y / 4 + 1, 1);

    check_case("pool2d %zux%zux%zux%zu kernel %zux%zu stride %zux%zu pad %zux%zu add %d fill %d",
               a.planes, a.height, a.width, a.inner, a.kernel_h, a.kernel_w, a.stride_h, a.stride_w,
               a.pad_h, a.pad_w, a.dx_add, (int)fill);
    a.x = check_floats(n_x, fill);
    a.dy = check_floats(n_y, FILL_RANDOM);
    a.y = y;
    a.dx = dx;
    a.which = which;
    g = a;
    g.y = y2;
    g.dx = dx2;
    g.which = which2;
    ref->max_pool2d_forward(&a);
    got->max_pool2d_forward(&g);
    check_same("max y", y2, y, n_y);
    for (size_t i = 0; i < n_y; i++)
        check_close("which", i, which2[i], which[i], 0);
    ref->max_pool2d_backward(&a);
    got->max_pool2d_backward(&g);
    for (size_t i = 0; i < n_x; i++)
        check_close("max dx", i, dx2[i], dx[i], common * CHECK_EPS * common);
    if (fill < FILL_SPECIAL) {
        double largest = 0;

        for (size_t i = 0; i < n_x; i++)
            largest = fmax(largest, fabs(((const float *)a.x)[i]));
        ref->avg_pool2d_forward(&a);
        got->avg_pool2d_forward(&g);
        for (size_t i = 0; i < n_y; i++)
            check_close("avg y", i, y2[i], y[i],
                        (double)(taps + 3) * CHECK_EPS * largest + 1.5e-45 * (double)taps);
    }
    aligned =
        ((uintptr_t)a.x | (uintptr_t)a.dy | (uintptr_t)y2 | (uintptr_t)dx2 | (uintptr_t)which2) %
            64 ==
        0;
    memcpy(dx2, dx, n_x * sizeof(*dx));
    ref->avg_pool2d_backward(&a);
    got->avg_pool2d_backward(&g);
    for (size_t i = 0; i < n_x; i++)
        check_close("avg dx", i, dx2[i], dx[i], common * CHECK_EPS * (common + 23));
    check_end_case();
    return aligned;
}

/* Windows of 3 x 3 at every second place, as many channels as groups of each width need: at both
 * ends in the padding or not, and aligned or not. */
static void threes(const struct pl_kernels *ref, const struct pl_kernels *got)
{
    const size_t inner[] = {1, 2, 4, 8, 12, 64}, sizes[] = {3, 8, 11};

    for (size_t i = 0; i < PL_COUNT(inner); i++)
        for (size_t n = 0; n < 4 * PL_COUNT(sizes); n++) {
            struct pl_pool2d_args a = {.planes = 2,
                                       .height = sizes[n / 4],
                                       .width = sizes[(n / 4 + n) % PL_COUNT(sizes)],
                                       .inner = inner[i],
                                       .kernel_h = 3,
                                       .kernel_w = 3,
                                       .stride_h = 2,
                                       .stride_w = 2,
                                       .pad_h = n & 1,
                                       .pad_w = n >> 1 & 1};
            bool seen[2] = {false, false};

            for (int tries = 0; tries < 30 && !(seen[0] && seen[1]); tries++) {
                a.dx_add = check_random(2);
                seen[one(ref, got, a, (enum fill)((n + (size_t)tries) % FILL_COUNT))] = true;
            }
        }
}

struct gradient {
    void (*forward)(const struct pl_pool2d_args *a);
    struct pl_pool2d_args args;
};

static double weighted(void *ctx)
{
    struct gradient *g = ctx;
    double sum = 0;

    g->forward(&g->args);
    for (size_t i = 0; i < windows(&g->args); i++)
        sum += ((const double *)g->args.y)[i] * ((const double *)g->args.dy)[i];
    return sum;
}

void check_gradients(const struct pl_kernels *f64)
{
    for (int n = 0; n < 6; n++) {
        struct gradient g = {f64->max_pool2d_forward, random_shape()};
        size_t n_x, n_y;
        double *x, *dx;

        g.args.dx_add = false;
        g.args.planes = 2;
        g.args.height = PL_MIN(g.args.height, (size_t)9);
        g.args.width = PL_MIN(g.args.width, (size_t)9);
        n_x = g.args.planes * g.args.height * g.args.width * g.args.inner;
        n_y = windows(&g.args);
        x = check_doubles(n_x);
        dx = check_doubles(n_x);
        for (size_t i = 0; i < n_x; i++) /* no two within the difference's step */
            x[i] = 0.001 * ((double)(i * 7919 % 10007) + 0.1 * x[i]);
        g.args.x = x;
        g.args.dx = dx;
        g.args.y = check_doubles(n_y);
        g.args.dy = check_doubles(n_y);
        g.args.which = (uint8_t *)check_labels(n_y / 4 + 1, 1);
        check_case("max_pool2d gradient");
        weighted(&g);
        f64->max_pool2d_backward(&g.args);
        check_gradient("dx", weighted, &g, x, n_x, dx, 20 * n_y);
        check_case("avg_pool2d gradient");
        g.forward = f64->avg_pool2d_forward;
        f64->avg_pool2d_backward(&g.args);
        check_gradient("dx", weighted, &g, x, n_x, dx, 20 * n_y);
        check_end_case();
    }
}

void check_op(const struct pl_kernels *ref, const struct pl_kernels *got)
{
    for (size_t n = 0; n < check_many(200, 200); n++)
        one(ref, got, random_shape(), (enum fill)check_random(FILL_COUNT));
    threes(ref, got);
}
