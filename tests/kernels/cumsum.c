/* SPDX-License-Identifier: MIT */
#include "tests/kernels/check.h"

static void one(const struct pl_kernels *ref,
                const struct pl_kernels *got,
                size_t outer,
                size_t n,
                size_t inner,
                enum fill fill)
{
    size_t count = outer * n * inner;
    float *y = check_floats(count, FILL_RANDOM), *y2 = check_copy(y, count);
    struct pl_cumsum_args a = {.outer = outer,
                               .n = n,
                               .inner = inner,
                               .reverse = check_random(2),
                               .add = check_random(2),
                               .x = check_floats(count, fill),
                               .y = y};

    check_case("cumsum outer %zu n %zu inner %zu reverse %d add %d fill %d", outer, n, inner,
               a.reverse, a.add, (int)fill);
    ref->cumsum(&a);
    a.y = y2;
    got->cumsum(&a);
    check_same("y", y2, y, count);
    check_end_case();
}

void check_op(const struct pl_kernels *ref, const struct pl_kernels *got)
{
    static const float want[2][3] = {{1, 3, 7}, {7, 6, 4}};
    float *x = check_floats(3, FILL_ZERO), *y = check_floats(3, FILL_RANDOM);

    check_case("cumsum by hand");
    for (int i = 0; i < 3; i++)
        x[i] = (float)(1 << i);
    for (int reverse = 0; reverse < 2; reverse++) {
        got->cumsum(&(struct pl_cumsum_args){
            .outer = 1, .n = 3, .inner = 1, .reverse = reverse, .x = x, .y = y});
        check_same("y", y, want[reverse], 3);
    }
    check_end_case();
    for (size_t i = 0; i < check_many(300, 100); i++)
        one(ref, got, 1 + check_random(5), 1 + check_random(30),
            check_random(2) ? 1 : 1 + check_random(150), (enum fill)check_random(FILL_COUNT));
    one(ref, got, 1, 5000, 1, FILL_RANDOM);
    one(ref, got, 300, 20, 3, FILL_RANDOM);
}
