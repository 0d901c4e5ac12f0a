/* SPDX-License-Identifier: MIT */
#include "tests/kernels/check.h"

#include <math.h>

/* Means and variances are sums of n terms in f32 lanes, ref's in f64: their relative error grows
 * with n / 32 roundings; where the variance is near 0 only eps keeps the quotient finite, so eps is
 * 1e-3 here. dgamma sums rows terms. */
static void one(const struct pl_kernels *ref,
                const struct pl_kernels *got,
                size_t rows,
                size_t n,
                bool affine,
                enum fill fill)
{
    size_t count = rows * n;
    const float *x = check_floats(count, fill), *dy = check_floats(count, FILL_RANDOM);
    const float *gamma = check_floats(n, FILL_RANDOM), *beta = check_floats(n, FILL_RANDOM);
    float *y[2], *mean[2], *rstd[2], *dx[2], *dg[2], *db[2];
    struct pl_layernorm_args a = {.rows = rows,
                                  .n = n,
                                  .eps = 1e-3,
                                  .dx_add = check_random(2),
                                  .dgamma_add = check_random(2),
                                  .dbeta_add = check_random(2),
                                  .x = x,
                                  .gamma = affine ? gamma : NULL,
                                  .beta = affine ? beta : NULL,
                                  .dy = dy};

    check_case("layernorm rows %zu n %zu affine %d fill %d", rows, n, affine, (int)fill);
    dx[0] = check_floats(count, FILL_RANDOM);
    dg[0] = check_floats(n, FILL_RANDOM);
    db[0] = check_floats(n, FILL_RANDOM);
    dx[1] = check_copy(dx[0], count);
    dg[1] = check_copy(dg[0], n);
    db[1] = check_copy(db[0], n);
    for (int i = 0; i < 2; i++) {
        a.y = y[i] = check_floats(count, FILL_RANDOM);
        a.mean = mean[i] = check_floats(rows, FILL_RANDOM);
        a.rstd = rstd[i] = check_floats(rows, FILL_RANDOM);
        a.dx = dx[i];
        a.dgamma = affine ? dg[i] : NULL;
        a.dbeta = affine ? db[i] : NULL;
        (i ? got : ref)->layernorm_forward(&a);
        (i ? got : ref)->layernorm_backward(&a);
    }
    for (size_t i = 0; i < count; i++) {
        check_close("y", i, y[1][i], y[0][i], 1e-5 * (1 + fabs(y[0][i])));
        check_close("dx", i, dx[1][i], dx[0][i], 2e-4 * (1 + fabs(dx[0][i])));
    }
    for (size_t i = 0; i < rows; i++) {
        check_close("mean", i, mean[1][i], mean[0][i], 1e-6);
        check_close("rstd", i, rstd[1][i], rstd[0][i], 1e-5 * rstd[0][i]);
    }
    for (size_t i = 0; i < n; i++) {
        check_close("dgamma", i, dg[1][i], dg[0][i], 1e-4 * (1 + fabs(dg[0][i])));
        check_close("dbeta", i, db[1][i], db[0][i], 1e-4 * (1 + fabs(db[0][i])));
    }
    check_end_case();
}

void check_op(const struct pl_kernels *ref, const struct pl_kernels *got)
{
    for (size_t i = 0; i < check_many(300, 100); i++)
        one(ref, got, 1 + check_random(20), 1 + check_random(150), check_random(2),
            (enum fill)check_random(FILL_DENORM + 1));
    for (size_t i = 0; i < check_many(8, 4); i++)
        one(ref, got, 1 + check_random(3), 200 + check_random(2500), check_random(2),
            (enum fill)check_random(FILL_DENORM + 1));
    one(ref, got, 3, 9001, true, FILL_RANDOM);
    one(ref, got, 700, 129, true, FILL_RANDOM);
}
