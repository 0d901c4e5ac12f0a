/* SPDX-License-Identifier: MIT */
#include "tests/kernels/check.h"

#include <math.h>

/* The exponential has an error of 2e-7, the sum of n terms some roundings. Below e^-87 the vector
 * exponential is constant while ref goes on to 0: hence the absolute part. */
#define TOLERANCE(want) (2e-6 * (1 + fabs(want)))

static void one(const struct pl_kernels *ref,
                const struct pl_kernels *got,
                size_t rows,
                size_t n,
                bool log,
                enum fill fill)
{
    size_t count = rows * n;
    const float *x = check_floats(count, fill), *dy = check_floats(count, FILL_RANDOM);
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

    check_case("softmax rows %zu n %zu log %d add %d fill %d", rows, n, log, a.dx_add, (int)fill);
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
            (enum fill)check_random(FILL_DENORM + 1));
    for (size_t i = 0; i < check_many(8, 4); i++)
        one(ref, got, 1 + check_random(3), 200 + check_random(2500), check_random(2),
            (enum fill)check_random(FILL_DENORM + 1));
    one(ref, got, 3, 9001, false, FILL_RANDOM);
    one(ref, got, 3, 9001, true, FILL_RANDOM);
}
