/* SPDX-License-Identifier: MIT */
#include "tests/kernels/check.h"

#include <math.h>

/* The length sums n squares in f32 lanes, ref in f64. eps keeps short rows from blowing up what is
 * rounded. */
static void one(const struct pl_kernels *ref,
                const struct pl_kernels *got,
                size_t rows,
                size_t n,
                enum fill fill)
{
    size_t count = rows * n;
    const float *x = check_floats(count, fill), *dy = check_floats(count, FILL_RANDOM);
    float *y = check_floats(count, FILL_RANDOM), *y2 = check_floats(count, FILL_RANDOM);
    float *norm = check_floats(rows, FILL_RANDOM), *norm2 = check_floats(rows, FILL_RANDOM);
    float *dx = check_floats(count, FILL_RANDOM), *dx2 = check_copy(dx, count);
    struct pl_normalize_args a = {.rows = rows,
                                  .n = n,
                                  .eps = 1e-3,
                                  .dx_add = check_random(2),
                                  .x = x,
                                  .dy = dy,
                                  .y = y,
                                  .norm = norm,
                                  .dx = dx};

    check_case("normalize rows %zu n %zu add %d fill %d", rows, n, a.dx_add, (int)fill);
    ref->normalize_forward(&a);
    ref->normalize_backward(&a);
    a.y = y2;
    a.norm = norm2;
    a.dx = dx2;
    got->normalize_forward(&a);
    a.y = y; /* the same one: in 16 bits the other may be rounded to its neighbour */
    a.norm = norm;
    got->normalize_backward(&a);
    for (size_t i = 0; i < rows; i++)
        check_close("norm", i, norm2[i], norm[i], 2e-6 * norm[i] + 1e-17); /* f32 has no 1e-40 */
    for (size_t i = 0; i < count; i++) {
        check_close("y", i, y2[i], y[i], 2e-6);
        check_close("dx", i, dx2[i], dx[i], 1e-5 * (1 + fabs(dx[i])));
    }
    check_end_case();
}

/* A row with a NaN has no length, so nothing in it is a number; rows beside it are as ever. */
static void not_a_number(const struct pl_kernels *got, size_t n)
{
    float *x = check_floats(3 * n, FILL_RANDOM), *y = check_floats(3 * n, FILL_RANDOM);
    float *dx = check_floats(3 * n, FILL_RANDOM);
    struct pl_normalize_args a = {.rows = 3,
                                  .n = n,
                                  .eps = 1e-3,
                                  .x = x,
                                  .dy = check_floats(3 * n, FILL_RANDOM),
                                  .y = y,
                                  .norm = check_floats(3, FILL_RANDOM),
                                  .dx = dx};

    x[n + check_random(n)] = NAN;
    check_case("normalize a NaN among %zu", n);
    got->normalize_forward(&a);
    got->normalize_backward(&a);
    for (size_t i = 0; i < 3 * n; i++) {
        bool none = i / n == 1;

        check_close("y", i, y[i], none ? NAN : (double)y[i], 0);
        check_close("dx", i, dx[i], none ? NAN : (double)dx[i], 0);
        check_close("finite", i, !none && !(isfinite(y[i]) && isfinite(dx[i])), 0, 0);
    }
    check_end_case();
}

void check_op(const struct pl_kernels *ref, const struct pl_kernels *got)
{
    for (size_t i = 0; i < check_many(400, 120); i++)
        one(ref, got, 1 + check_random(20), 1 + check_random(100),
            (enum fill)check_random(FILL_DENORM + 1));
    for (size_t i = 0; i < check_many(8, 4); i++)
        one(ref, got, 1 + check_random(3), 200 + check_random(2500),
            (enum fill)check_random(FILL_DENORM + 1));
    one(ref, got, 3, 9001, FILL_RANDOM);
    one(ref, got, 300, 129, FILL_RANDOM);
    for (size_t n = 1; n < 200; n += 33) {
        not_a_number(ref, n);
        not_a_number(got, n);
    }
}
