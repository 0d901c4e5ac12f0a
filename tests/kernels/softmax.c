/* SPDX-License-Identifier: MIT */
#include "tests/kernels/check.h"

#include <math.h>

/* The exponential has an error of 2e-7, the sum of n terms some roundings. Below e^-87 the vector
 * exponential is constant while ref goes on to 0: hence the absolute part. */
#define TOLERANCE(want) (2e-6 * (1 + fabs(want)))

/* offset: added to x; numbers of 16 bits have the sums, which are multiples of it by 2^-7. */
static void one(const struct pl_kernels *ref,
                const struct pl_kernels *got,
                size_t rows,
                size_t n,
                bool log,
                enum fill fill,
                float offset)
{
    size_t count = rows * n;
    float *x = check_floats(count, fill);
    const float *dy = check_floats(count, FILL_RANDOM);
    float *y = check_floats(count, FILL_RANDOM), *y2 = check_floats(count, FILL_RANDOM);
    float *dx = check_floats(count, FILL_RANDOM), *dx2 = check_copy(dx, count);
    struct pl_softmax_args a = {.rows = rows,
                                .n = n,
                                .log = log,
                                .dx_add = check_random(2),
                                .x = x,
                                .dy = dy,
                                .y = y,
                                .dx = dx};

    for (size_t i = 0; offset != 0 && i < count; i++)
        x[i] = offset + offset / 128 * (float)check_random(3);
    check_case("softmax rows %zu n %zu log %d add %d fill %d offset %g", rows, n, log, a.dx_add,
               (int)fill, (double)offset);
    ref->softmax_forward(&a);
    ref->softmax_backward(&a);
    a.y = y2;
    a.dx = dx2;
    got->softmax_forward(&a);
    a.y = y; /* the same one: in 16 bits the other may be rounded to its neighbour */
    got->softmax_backward(&a);
    for (size_t i = 0; i < count; i++) {
        check_close("y", i, y2[i], y[i], TOLERANCE(y[i]));
        check_close("dx", i, dx2[i], dx[i], TOLERANCE(dx[i]) * 10);
    }
    check_end_case();
}

void check_op(const struct pl_kernels *ref, const struct pl_kernels *got)
{
    for (size_t i = 0; i < check_many(400, 120); i++)
        one(ref, got, 1 + check_random(20), 1 + check_random(80), check_random(2),
            (enum fill)check_random(FILL_DENORM + 1), 0);
    for (size_t i = 0; i < check_many(8, 4); i++)
        one(ref, got, 1 + check_random(3), 200 + check_random(2500), check_random(2),
            (enum fill)check_random(FILL_DENORM + 1), 0);
    for (size_t n = 256; n <= 8192; n *= 2) /* every layout of a row, in more than one block */
        one(ref, got, 2, n - 8 * check_random(20), check_random(2), FILL_RANDOM, 0);
    one(ref, got, 3, 9001, false, FILL_RANDOM, 0);
    one(ref, got, 3, 9001, true, FILL_RANDOM, 0);
    /* Logits that are large beside their differences: the sum's logarithm is not rounded to them.
     */
    for (size_t i = 0; i < 20; i++)
        one(ref, got, 2, 2 + check_random(40), true, FILL_RANDOM, check_random(2) ? 4096 : -16384);
}
