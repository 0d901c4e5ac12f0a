/* SPDX-License-Identifier: MIT */
#include "tests/kernels/update.h"

static void
one(const struct pl_kernels *ref, const struct pl_kernels *got, size_t n, enum fill fill)
{
    float *v = check_floats(n, fill), *v2 = check_copy(v, n);
    int momentum = (int)check_random(3);
    struct pl_sgd_args a = {.lr = 0.1 * (double)check_random(20),
                            .momentum = momentum ? 0.9 : 0,
                            .nesterov = momentum == 2,
                            .weight_decay = check_random(2) ? 0.01 : 0};
    struct update_case c;

    check_case("sgd n %zu momentum %d fill %d", n, momentum, fill);
    update_setup(&c, n, fill);
    a.update = c.ref;
    a.velocity = momentum ? v : NULL;
    ref->sgd(&a);
    a.update = c.got;
    a.velocity = momentum ? v2 : NULL;
    got->sgd(&a);
    check_same("velocity", v2, v, n);
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
