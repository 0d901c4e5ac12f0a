/* SPDX-License-Identifier: MIT */
#include "tests/kernels/check.h"

static void
one(const struct pl_kernels *ref, const struct pl_kernels *got, size_t n, enum fill fill)
{
    const float *x = check_floats(n, fill), *dy = check_floats(n, fill);
    float *y = check_floats(n, FILL_RANDOM), *y2 = check_floats(n, FILL_RANDOM);
    float *dx = check_floats(n, FILL_RANDOM), *dx2 = check_copy(dx, n);
    struct pl_relu_args a = {.n = n, .dx_add = check_random(2), .x = x, .dy = dy, .y = y, .dx = dx};

    check_case("relu n %zu add %d fill %d", n, a.dx_add, fill);
    ref->relu_forward(&a);
    ref->relu_backward(&a);
    a.y = y2;
    a.dx = dx2;
    got->relu_forward(&a);
    got->relu_backward(&a);
    check_same("y", y2, y, n);
    check_same("dx", dx2, dx, n);
    check_end_case();
}

void check_op(const struct pl_kernels *ref, const struct pl_kernels *got)
{
    for (size_t n = 1; n < 100; n++)
        for (int fill = 0; fill < FILL_COUNT; fill++)
            one(ref, got, n, (enum fill)fill);
}
