/* SPDX-License-Identifier: MIT */
#include "tests/kernels/check.h"

static void
one(const struct pl_kernels *ref, const struct pl_kernels *got, size_t n, enum fill fill)
{
    float *x = check_floats(n, fill), *y = check_floats(n, fill);
    float *want = check_floats(n, FILL_RANDOM), *other = check_floats(n, FILL_RANDOM);
    float *in_x = check_copy(x, n), *in_y = check_copy(y, n);
    struct pl_add_args a = {
        .n = n, .scale = check_random(2) ? 1 : 1.0 / 12, .a = x, .b = y, .dst = want};

    check_case("add n %zu scale %g fill %d", n, a.scale, fill);
    ref->add(&a);
    a.dst = other;
    got->add(&a);
    check_same("sum", other, want, n);
    a.a = a.dst = in_x;
    got->add(&a);
    check_same("sum in a", in_x, want, n);
    a.a = x;
    a.b = a.dst = in_y;
    got->add(&a);
    check_same("sum in b", in_y, want, n);
    check_end_case();
}

void check_op(const struct pl_kernels *ref, const struct pl_kernels *got)
{
    for (size_t n = 1; n < 100; n++)
        for (int fill = 0; fill < FILL_COUNT; fill++)
            one(ref, got, n, (enum fill)fill);
}
