/* SPDX-License-Identifier: MIT */
#include "tests/kernels/update.h"

static void
one(const struct pl_kernels *ref, const struct pl_kernels *got, size_t n, enum fill fill)
{
    bool centered = check_random(2), momentum = check_random(2);
    float *v = check_floats(n, fill), *v2;
    float *mean = check_floats(n, fill), *mean2 = check_copy(mean, n);
    float *velocity = check_floats(n, fill), *velocity2 = check_copy(velocity, n);
    struct pl_rmsprop_args a = {.lr = 0.01 * (double)check_random(20),
                                .alpha = check_random(2) ? 0.99 : 0.3,
                                .eps = 1e-8,
                                .momentum = 0.9,
                                .weight_decay = check_random(2) ? 0.01 : 0};
    struct update_case c;

    for (size_t i = 0; i < n; i++) /* a mean of squares; NaN where it is negative is fine too */
        v[i] = check_random(8) ? v[i] * v[i] : v[i];
    v2 = check_copy(v, n);
    check_case("rmsprop n %zu alpha %g centered %d momentum %d fill %d", n, a.alpha, centered,
               momentum, fill);
    update_setup(&c, n, fill);
    a.update = c.ref;
    a.v = v;
    a.mean = centered ? mean : NULL;
    a.velocity = momentum ? velocity : NULL;
    ref->rmsprop(&a);
    a.update = c.got;
    a.v = v2;
    a.mean = centered ? mean2 : NULL;
    a.velocity = momentum ? velocity2 : NULL;
    got->rmsprop(&a);
    check_same("v", v2, v, n);
    check_same("mean", mean2, mean, n);
    check_same("velocity", velocity2, velocity, n);
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
