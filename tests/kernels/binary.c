/* SPDX-License-Identifier: MIT */
#include "tests/kernels/check.h"

#include <math.h>

/* y and da are one or two roundings each; db sums n / m terms in f32, ref in f64: their number
 * times the rounding of the sum. Divisors are kept from 0. */
static void one(const struct pl_kernels *ref,
                const struct pl_kernels *got,
                size_t m,
                size_t times,
                enum pl_binary op,
                enum fill fill)
{
    size_t n = m * times;
    const float *x = check_floats(n, fill), *dy = check_floats(n, fill);
    float *z = check_floats(m, fill);
    float *y = check_floats(n, FILL_RANDOM), *y2 = check_floats(n, FILL_RANDOM);
    float *da = check_floats(n, FILL_RANDOM), *da2 = check_copy(da, n);
    float *db = check_floats(m, FILL_RANDOM), *db2 = check_copy(db, m);
    struct pl_binary_args a = {.n = n,
                               .m = m,
                               .op = op,
                               .da_add = check_random(2),
                               .db_add = check_random(2),
                               .a = x,
                               .b = z,
                               .dy = dy,
                               .y = y,
                               .da = da,
                               .db = db};

    for (size_t i = 0; i < m; i++)
        z[i] = (z[i] < 0 ? -1 : 1) * fmaxf(fabsf(z[i]), 0.25f);
    check_case("binary m %zu times %zu op %d fill %d", m, times, (int)op, (int)fill);
    ref->binary_forward(&a);
    ref->binary_backward(&a);
    a.y = y2;
    a.da = da2;
    a.db = db2;
    got->binary_forward(&a);
    got->binary_backward(&a);
    for (size_t i = 0; i < n; i++) {
        check_close("y", i, y2[i], y[i], 2 * CHECK_EPS * fabs(y[i]));
        check_close("da", i, da2[i], da[i], 4 * CHECK_EPS * (8 + fabs(da[i])));
    }
    for (size_t i = 0; i < m; i++)
        check_close("db", i, db2[i], db[i], 20 * CHECK_EPS * (double)times * (8 + fabs(db[i])));
    check_end_case();
}

/* The square of the divisor is infinite or 0, or dy divided by it is infinite, and the gradient is
 * a number, by PyTorch's formula: -dy (a / b / b). f16 has no such. */
static void far(const struct pl_kernels *got, size_t m, size_t times, float scale)
{
    static const float pairs[][2] = {{1e30f, 1e20f},   {3e38f, 1e20f},   {-1e34f, 2e19f},
                                     {0, 1e-30f},      {1e-30f, 1e-25f}, {-1e-36f, 1e-24f},
                                     {1e-37f, 1e-34f}, {0, 1e-34f},      {1e-36f, 2e-34f}};

    for (size_t i = 0; i < PL_COUNT(pairs) && check_storage() != PL_REAL_F16; i++) {
        float *x = check_floats(m * times, FILL_ZERO), *dy = check_floats(m * times, FILL_RANDOM);
        float *z = check_floats(m, FILL_RANDOM), *db = check_floats(m, FILL_RANDOM);
        double slope = -(double)pairs[i][0] / pairs[i][1] / pairs[i][1];

        for (size_t k = 0; k < m * times; k++) {
            x[k] = pairs[i][0];
            z[k % m] = pairs[i][1];
            dy[k] *= scale;
        }
        check_case("binary %g / %g, dy %g, %zu times %zu", pairs[i][0], pairs[i][1], scale, m,
                   times);
        got->binary_backward(&(struct pl_binary_args){
            .n = m * times, .m = m, .op = PL_BINARY_DIV, .a = x, .b = z, .dy = dy, .db = db});
        for (size_t c = 0; c < m; c++) {
            double want = 0, most = 0;

            for (size_t k = c; k < m * times; k += m) {
                want += dy[k] * slope;
                most += fabs(dy[k] * slope);
            }
            check_close("db", c, db[c], want,
                        (check_storage() == PL_REAL_BF16 ? 2e-2 : 1e-5) * most);
        }
        check_end_case();
    }
}

/* Rounding does not grow with the number of the terms, which are alike. */
static void
many(const struct pl_kernels *ref, const struct pl_kernels *got, size_t m, enum pl_binary op)
{
    size_t n = m * check_many(60000, 6000);
    float *x = check_floats(n, FILL_RANDOM), *dy = check_floats(n, FILL_RANDOM);
    float *z = check_floats(m, FILL_RANDOM);
    float *want = check_floats(m, FILL_ZERO), *have = check_floats(m, FILL_ZERO);
    struct pl_binary_args a = {.n = n, .m = m, .op = op, .a = x, .b = z, .dy = dy};

    for (size_t i = 0; i < n; i++) {
        x[i] = fabsf(x[i]);
        dy[i] = fabsf(dy[i]);
        z[i % m] = 1.5f;
    }
    check_case("binary, %zu of %zu, op %d", n, m, (int)op);
    a.db = want;
    ref->binary_backward(&a);
    a.db = have;
    got->binary_backward(&a);
    for (size_t i = 0; i < m; i++)
        check_close("db", i, have[i], want[i], 2e-6 * fabs(want[i]));
    check_end_case();
}

/* 1 / b is infinite, dy / b is a number. A card may take such a b for 0, and 16 bits round it. */
static void tiny(const struct pl_kernels *got, size_t m, size_t times, bool add)
{
    float *dy = check_floats(m * times, FILL_RANDOM), *z = check_floats(m, FILL_ZERO);
    float *da = check_floats(m * times, FILL_RANDOM);

    for (size_t i = 0; i < m * times; i++) {
        z[i % m] = 1e-39f;
        dy[i] *= 1e-10f;
    }
    check_case("binary, b 1e-39, %zu times %zu, add %d", m, times, add);
    got->binary_backward(&(struct pl_binary_args){.n = m * times,
                                                  .m = m,
                                                  .op = PL_BINARY_DIV,
                                                  .da_add = add,
                                                  .a = dy,
                                                  .b = z,
                                                  .dy = dy,
                                                  .da = da});
    for (size_t i = 0; i < m * times; i++)
        check_close("da", i, da[i], (double)dy[i] / z[0], 1e-5 * fabs((double)dy[i] / z[0]));
    check_end_case();
}

/* As tiny(), in f64. */
void check_gradients(const struct pl_kernels *f64)
{
    for (size_t n = 1; n <= 4; n++)
        for (size_t m = 1; m <= n; m += PL_MAX(n - 1, (size_t)1)) {
            double *dy = check_doubles(n), *z = check_doubles(m), *da = check_doubles(n);

            for (size_t i = 0; i < n; i++) {
                z[i % m] = 1e-309;
                dy[i] = i == 1 ? 0 : dy[i] * 1e-5;
            }
            check_case("binary in f64, b 1e-309, %zu of %zu", m, n);
            f64->binary_backward(&(struct pl_binary_args){
                .n = n, .m = m, .op = PL_BINARY_DIV, .a = dy, .b = z, .dy = dy, .da = da});
            for (size_t i = 0; i < n; i++)
                check_close("da", i, da[i], dy[i] / z[i % m], 1e-15 * fabs(dy[i] / z[i % m]));
            check_end_case();
        }
}

void check_op(const struct pl_kernels *ref, const struct pl_kernels *got)
{
    for (int op = PL_BINARY_ADD; op <= PL_BINARY_DIV; op++) {
        for (size_t i = 0; i < check_many(300, 300); i++)
            one(ref, got, 1 + check_random(40), check_random(3) ? 1 + check_random(30) : 1,
                (enum pl_binary)op, (enum fill)check_random(FILL_DENORM + 1));
        one(ref, got, 1, 70001, (enum pl_binary)op, FILL_RANDOM);
        one(ref, got, 300, 300, (enum pl_binary)op, FILL_RANDOM);
        one(ref, got, 70001, 1, (enum pl_binary)op, FILL_RANDOM);
        if (check_host())
            many(ref, got, 3, (enum pl_binary)op);
    }
    for (size_t i = 0; i < 12; i++) { /* of b alone, of b repeated, of b as long as a */
        far(ref, i % 2 ? 70 : 1, 1 + i / 4 * 19, i % 4 < 2 ? 1 : 6e4f);
        far(got, i % 2 ? 70 : 1, 1 + i / 4 * 19, i % 4 < 2 ? 1 : 6e4f);
        if (check_host()) {
            tiny(ref, i % 2 ? 70 : 1, 1 + i, i / 2 % 2);
            tiny(got, i % 2 ? 70 : 1, 1 + i, i / 2 % 2);
        }
    }
}
