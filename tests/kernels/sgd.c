/* SPDX-License-Identifier: MIT */
#include "tests/kernels/check.h"

static void
one(const struct pl_kernels *ref, const struct pl_kernels *got, size_t n, enum fill fill)
{
    float *p = check_floats(n, fill), *v = check_floats(n, fill);
    float *p2 = check_copy(p, n), *v2 = check_copy(v, n);
    bool momentum = check_random(2);
    struct pl_sgd_args a = {.n = n,
                            .lr = 0.1 * (double)check_random(20),
                            .momentum = momentum ? 0.9 : 0,
                            .weight_decay = check_random(2) ? 0.01 : 0,
                            .grad = check_floats(n, fill)};

    check_case("sgd n %zu momentum %d fill %d", n, momentum, fill);
    a.param = p;
    a.velocity = momentum ? v : NULL;
    ref->sgd(&a);
    a.param = p2;
    a.velocity = momentum ? v2 : NULL;
    got->sgd(&a);
    check_same("param", p2, p, n);
    check_same("velocity", v2, v, n);
    check_end_case();
}

void check_op(const struct pl_kernels *ref, const struct pl_kernels *got)
{
    for (size_t n = 1; n < 100; n++)
        for (int fill = 0; fill < FILL_COUNT; fill++)
            one(ref, got, n, (enum fill)fill);
}
