/* SPDX-License-Identifier: MIT */
#include "tests/kernels/update.h"

static void
one(const struct pl_kernels *ref, const struct pl_kernels *got, size_t n, enum fill fill)
{
    float *sum = check_floats(n, fill), *sum2;
    struct pl_adagrad_args a = {.lr = 0.01 * (double)check_random(20),
                                .eps = check_random(2) ? 1e-10 : 1e-3,
                                .weight_decay = check_random(2) ? 0.01 : 0};
    struct update_case c;

    for (size_t i = 0; i < n; i++) /* a sum of squares; NaN where it is negative is fine too */
        sum[i] = check_random(8) ? sum[i] * sum[i] : sum[i];
    sum2 = check_copy(sum, n);
    check_case("adagrad n %zu eps %g fill %d", n, a.eps, fill);
    update_setup(&c, n, fill);
    a.update = c.ref;
    a.sum = sum;
    ref->adagrad(&a);
    a.update = c.got;
    a.sum = sum2;
    got->adagrad(&a);
    check_same("sum", sum2, sum, n);
    update_check(&c);
    check_end_case();
}

void check_op(const struct pl_kernels *ref, const struct pl_kernels *got)
{
    for (size_t n = 1; n < 100; n++)
        for (int fill = 0; fill < FILL_COUNT; fill++)
            one(ref, got, n, (enum fill)fill);
    for (size_t n = 1023; n < 70000; n = n * 3 + 1)
        one(ref, got, n, FILL_SPECIAL);
}
