/* SPDX-License-Identifier: MIT */
#include "tests/kernels/check.h"

#include <math.h>

/* Two products and a sum of numbers below 1, sines rounded once. */
static void
one(const struct pl_kernels *ref, const struct pl_kernels *got, const struct pl_rotary_args *sizes)
{
    struct pl_rotary_args a = *sizes;
    size_t n = a.outer * a.time * a.rows * a.dim;
    float *y = check_floats(n, FILL_RANDOM), *y2 = check_copy(y, n);

    check_case("rotary outer %zu time %zu rows %zu dim %zu first %zu interleaved %d back %d add %d",
               a.outer, a.time, a.rows, a.dim, a.first, a.interleaved, a.back, a.add);
    a.x = check_floats(n, FILL_RANDOM);
    a.y = y;
    ref->rotary(&a);
    a.y = y2;
    got->rotary(&a);
    for (size_t i = 0; i < n; i++)
        check_close("y", i, y2[i], y[i], 8 * CHECK_EPS);
    check_end_case();
}

/* Turned there and back, and a quarter of a turn by hand. */
static void known(const struct pl_kernels *got)
{
    float *x = check_floats(4, FILL_RANDOM), *y = check_floats(4, FILL_RANDOM);
    float *z = check_floats(4, FILL_RANDOM);
    struct pl_rotary_args a = {
        .outer = 1, .time = 1, .rows = 1, .dim = 4, .first = 3, .base = 100, .x = x, .y = y};

    for (int interleaved = 0; interleaved < 2; interleaved++) {
        size_t other = interleaved ? 1 : 2;

        check_case("rotary by hand, interleaved %d", interleaved);
        a.interleaved = interleaved;
        a.back = false;
        a.x = x;
        a.y = y;
        got->rotary(&a);
        check_close("first", 0, y[0], x[0] * cos(3) - x[other] * sin(3), 1e-6);
        check_close("second", other, y[other], x[0] * sin(3) + x[other] * cos(3), 1e-6);
        a.back = true;
        a.x = y;
        a.y = z;
        got->rotary(&a);
        for (size_t i = 0; i < 4; i++) /* y is rounded to the type in between */
            check_close("there and back", i, z[i], x[i], 1e-6 + 2 * check_rounding(1));
    }
    check_end_case();
}

void check_op(const struct pl_kernels *ref, const struct pl_kernels *got)
{
    known(ref);
    if (check_storage() == PL_REAL_F32) /* what is given would be rounded first */
        known(got);
    for (size_t i = 0; i < check_many(200, 60); i++)
        one(ref, got,
            &(struct pl_rotary_args){.outer = 1 + check_random(3),
                                     .time = 1 + check_random(20),
                                     .rows = 1 + check_random(4),
                                     .dim = 2 * (1 + check_random(check_random(5) ? 20 : 90)),
                                     .first = check_random(2) ? 0 : check_random(3000),
                                     .base = check_random(2) ? 10000 : 500,
                                     .interleaved = check_random(2),
                                     .back = check_random(2),
                                     .add = check_random(2)});
}
