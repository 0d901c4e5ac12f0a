/* SPDX-License-Identifier: MIT */
#include "tests/kernels/check.h"

#include <math.h>

static void
one(const struct pl_kernels *ref, const struct pl_kernels *got, struct pl_squares_args a)
{
    size_t x = a.batch * a.height * a.width * a.channels;
    size_t y = a.batch * a.rows * a.columns * 4 * a.wide;
    size_t n = x > y ? x : y; /* tests/kernels/arrays.c */

    for (int back = 0; back < 2; back++) {
        float *out = check_floats(n, FILL_RANDOM), *out2 = check_copy(out, n);

        check_case(
            "%s batch %zu, %zu x %zu x %zu, %zu x %zu squares of %zu, before %zu %zu, add %d",
            back ? "depth_to_space" : "space_to_depth", a.batch, a.height, a.width, a.channels,
            a.rows, a.columns, a.wide, a.before_h, a.before_w, a.add);
        a.src = check_floats(n, back && a.add ? FILL_RANDOM : FILL_SPECIAL);
        a.dst = out;
        (back ? ref->depth_to_space : ref->space_to_depth)(&a);
        a.dst = out2;
        (back ? got->depth_to_space : got->space_to_depth)(&a);
        check_same("dst", out2, out, back ? x : y);
        check_end_case();
    }
}

/* Numbers that are not finite become 0, and are counted if a caller asks for it. */
static void made_finite(const struct pl_kernels *ref, const struct pl_kernels *got)
{
    struct pl_squares_args a = {.batch = 1 + check_random(2),
                                .height = 1 + check_random(9),
                                .width = 1 + check_random(9),
                                .channels = 1 + check_random(4),
                                .rows = 1 + check_random(6),
                                .columns = 1 + check_random(6),
                                .wide = 4,
                                .before_h = check_random(3),
                                .before_w = check_random(3)};
    size_t x = a.batch * a.height * a.width * a.channels;
    size_t y = a.batch * a.rows * a.columns * 4 * a.wide, n = x > y ? x : y;
    float *src = check_floats(n, FILL_RANDOM), *out = check_floats(n, FILL_RANDOM);
    float *out2 = check_copy(out, n);
    static const float bad[] = {INFINITY, -INFINITY, NAN};
    uint32_t bad_ref = 0, bad_got = 0;

    check_case("space_to_depth of what is not finite, batch %zu, %zu x %zu x %zu, %zu x %zu",
               a.batch, a.height, a.width, a.channels, a.rows, a.columns);
    for (size_t i = 0, many = check_random(4); i < many; i++)
        src[check_random(x)] = bad[check_random(3)];
    a.src = src;
    a.dst = out;
    a.bad = &bad_ref;
    ref->space_to_depth(&a);
    a.dst = out2;
    a.bad = &bad_got;
    got->space_to_depth(&a);
    check_same("dst", out2, out, y);
    for (size_t i = 0; i < y; i++)
        check_close("dst", i, out[i] - out[i], 0, 0);
    check_close("bad", 0, bad_got > 0, bad_ref > 0, 0);
    check_end_case();
}

/* By hand: 1 2 3 in a row, after one zero. */
static void known(const struct pl_kernels *got)
{
    static const float want_y[] = {0, 1, 0, 0, 2, 3, 0, 0}, want_x[] = {1, 4, 5};
    float *x = check_floats(8, FILL_ZERO), *y = check_floats(8, FILL_RANDOM);
    struct pl_squares_args a = {.batch = 1,
                                .height = 1,
                                .width = 3,
                                .channels = 1,
                                .rows = 1,
                                .columns = 2,
                                .wide = 1,
                                .before_w = 1,
                                .src = x,
                                .dst = y};

    check_case("squares by hand");
    for (int i = 0; i < 3; i++)
        x[i] = (float)(i + 1);
    got->space_to_depth(&a);
    check_same("y", y, want_y, 8);
    for (int i = 0; i < 8; i++)
        y[i] = (float)i;
    a.src = y;
    a.dst = x;
    got->depth_to_space(&a);
    check_same("x", x, want_x, 3);
    check_end_case();
}

void check_op(const struct pl_kernels *ref, const struct pl_kernels *got)
{
    known(ref);
    known(got);
    for (size_t i = 0; i < check_many(80, 20); i++)
        made_finite(ref, got);
    for (size_t i = 0; i < check_many(300, 60); i++) {
        size_t channels = 1 + check_random(5);

        one(ref, got,
            (struct pl_squares_args){
                .batch = 1 + check_random(3),
                .height = 1 + check_random(9),
                .width = 1 + check_random(9),
                .channels = channels,
                .rows = 1 + check_random(6),
                .columns = 1 + check_random(6),
                .wide = check_random(2) && channels < 4 ? 4 : channels + check_random(3),
                .before_h = check_random(6),
                .before_w = check_random(6),
                .add = check_random(2)});
    }
    /* Several blocks of both kernels. */
    for (size_t wide = 3; wide < 5; wide++)
        one(ref, got,
            (struct pl_squares_args){.batch = 2,
                                     .height = 31,
                                     .width = 30,
                                     .channels = 3,
                                     .rows = 17,
                                     .columns = 19,
                                     .wide = wide,
                                     .before_h = 3,
                                     .before_w = 2,
                                     .add = check_random(2)});
}
