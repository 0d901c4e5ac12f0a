/* SPDX-License-Identifier: MIT */
#include "tests/kernels/check.h"

#include <math.h>

static void
one(const struct pl_kernels *ref, const struct pl_kernels *got, size_t n, enum fill fill)
{
    const float *x = check_floats(n, fill);
    float *y = check_floats(n, FILL_RANDOM), *y2 = check_copy(y, n);
    struct pl_affine_args a = {
        .n = n, .scale = -1.75, .shift = 0.3, .add = check_random(2), .x = x, .y = y};

    check_case("affine n %zu add %d fill %d", n, a.add, (int)fill);
    ref->affine(&a);
    a.y = y2;
    got->affine(&a);
    check_same("y", y2, y, n);
    check_end_case();
}

void check_op(const struct pl_kernels *ref, const struct pl_kernels *got)
{
    for (size_t n = 1; n < 100; n++)
        for (int fill = 0; fill < FILL_COUNT; fill++)
            one(ref, got, n, (enum fill)fill);
    one(ref, got, 100001, FILL_RANDOM);
}
