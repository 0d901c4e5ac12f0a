/* SPDX-License-Identifier: MIT */
#include "tests/kernels/check.h"

#include <math.h>

/* The vector exponential, squared, is good to 4e-7, the C library's functions to 1e-7; a slope is a
 * product of two. */
#define TOLERANCE(want) (4e-6 * (1 + fabs(want)))

static struct pl_map_args function(enum pl_map fn)
{
    static const double powers[] = {2, 3, 0.5, -1, 0, 1, 2.7};
    struct pl_map_args a = {.fn = fn, .p = 1.7, .q = 0};

    if (fn == PL_MAP_POW)
        a.p = powers[check_random(7)];
    if (fn == PL_MAP_LEAKY || fn == PL_MAP_ELU)
        a.p = check_random(2) ? 0.01 : 1;
    if (fn == PL_MAP_CLAMP) {
        a.p = -0.3;
        a.q = 0.3;
    }
    return a;
}

static bool is_steep(enum pl_map fn)
{
    return fn == PL_MAP_LOG || fn == PL_MAP_RSQRT || fn == PL_MAP_POW;
}

/* Near 0 and for the largest numbers a slope leaves the range of f32, though not its product with
 * dy, which ref makes in f64. */
static bool is_beyond(enum pl_map fn, double got, double want)
{
    return is_steep(fn) && isinf(got) && fabs(want) > 1e30 && signbit(got) == signbit(want);
}

static void one(const struct pl_kernels *ref,
                const struct pl_kernels *got,
                size_t n,
                enum pl_map fn,
                enum fill fill)
{
    float *x = check_floats(n, fill), *dy = check_floats(n, FILL_RANDOM);
    float *y = check_floats(n, FILL_RANDOM), *y2 = check_floats(n, FILL_RANDOM);
    float *dx = check_floats(n, FILL_RANDOM), *dx2 = check_copy(dx, n);
    struct pl_map_args a = function(fn);

    a.n = n;
    a.dx_add = check_random(2);
    a.x = x;
    a.dy = dy;
    a.y = y;
    a.dx = dx;
    if (fn == PL_MAP_CLAMP) { /* x at the bounds: the slope is 0 */
        x[0] = -0.3f;
        x[n / 2] = 0.3f;
    }
    check_case("map n %zu fn %d p %g add %d fill %d", n, (int)fn, a.p, a.dx_add, (int)fill);
    ref->map_forward(&a);
    ref->map_backward(&a);
    a.y = y2;
    a.dx = dx2;
    got->map_forward(&a);
    got->map_backward(&a);
    for (size_t i = 0; i < n; i++) {
        check_close("y", i, y2[i], y[i], TOLERANCE(y[i]));
        if (!is_beyond(fn, dx2[i], dx[i]))
            check_close("dx", i, dx2[i], dx[i], TOLERANCE(dx[i]));
    }
    check_end_case();
}

void check_op(const struct pl_kernels *ref, const struct pl_kernels *got)
{
    for (int fn = PL_MAP_FILL; fn <= PL_MAP_TAN; fn++) {
        for (size_t n = 1; n < 70; n += check_step())
            for (int fill = 0; fill < FILL_COUNT; fill++)
                one(ref, got, n, (enum pl_map)fn, (enum fill)fill);
        one(ref, got, 20001, (enum pl_map)fn, FILL_RANDOM);
    }
}

#define N 6

struct run {
    const struct pl_kernels *f64;
    struct pl_map_args a;
    const double *weights;
};

static double loss(void *ctx)
{
    const struct run *run = ctx;
    double sum = 0;

    run->f64->map_forward(&run->a);
    for (size_t i = 0; i < N; i++)
        sum += ((double *)run->a.y)[i] * run->weights[i];
    return sum;
}

/* Numbers away from 0, where the domain ends or the slope jumps, and from clamp's bounds and
 * round's halves. */
void check_gradients(const struct pl_kernels *f64)
{
    for (int fn = PL_MAP_EXP; fn <= PL_MAP_TAN; fn++) {
        bool positive = fn == PL_MAP_SQRT || is_steep((enum pl_map)fn);
        double *x = check_doubles(N), *y = check_doubles(N), *dx = check_doubles(N);
        struct run run = {.f64 = f64, .a = function((enum pl_map)fn), .weights = check_doubles(N)};

        check_case("map fn %d p %g", fn, run.a.p);
        for (size_t i = 0; i < N; i++)
            x[i] = (0.4 + 0.5 * fabs(x[i])) * (x[i] < 0 && !positive ? -1 : 1) *
                   (fn == PL_MAP_CLAMP && i % 2 ? 0.2
                    : fn == PL_MAP_ROUND        ? 0.5
                                                : 1);
        run.a.n = N;
        run.a.x = x;
        run.a.y = y;
        run.a.dy = run.weights;
        run.a.dx = dx;
        f64->map_backward(&run.a);
        check_gradient("dx", loss, &run, x, N, dx, 20 * N);
        check_end_case();
    }
}
