/* SPDX-License-Identifier: MIT */
#include "tests/kernels/update.h"

static void
one(const struct pl_kernels *ref, const struct pl_kernels *got, size_t n, enum fill fill)
{
    float *m = check_floats(n, fill), *m2 = check_copy(m, n);
    float *v = check_floats(n, fill), *v2;
    struct pl_adam_args a = {.lr = 0.01 * (double)check_random(20),
                             .beta1 = check_random(2) ? 0.9 : 0.3,
                             .beta2 = 0.999,
                             .eps = 1e-8,
                             .weight_decay = check_random(2) ? 0.01 : 0,
                             .decoupled = check_random(2),
                             .step = 1 + check_random(100)};
    struct update_case c;

    for (size_t i = 0; i < n; i++) /* a mean of squares; NaN where it is negative is fine too */
        v[i] = check_random(8) ? v[i] * v[i] : v[i];
    v2 = check_copy(v, n);
    check_case("adam n %zu beta1 %g decoupled %d fill %d", n, a.beta1, a.decoupled, fill);
    update_setup(&c, n, fill);
    a.update = c.ref;
    a.m = m;
    a.v = v;
    ref->adam(&a);
    a.update = c.got;
    a.m = m2;
    a.v = v2;
    got->adam(&a);
    check_same("m", m2, m, n);
    check_same("v", v2, v, n);
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
