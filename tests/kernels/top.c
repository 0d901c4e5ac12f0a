/* SPDX-License-Identifier: MIT */
#include "tests/kernels/check.h"

#include <math.h>

static void one(const struct pl_kernels *ref,
                const struct pl_kernels *got,
                size_t outer,
                size_t n,
                size_t inner,
                size_t k)
{
    size_t x = outer * n * inner, y = outer * k * inner;
    float *in = check_floats(x, check_random(2) ? FILL_RANDOM : FILL_SPECIAL);
    int32_t *index = check_labels(y, 1), *index2 = check_labels(y, 1);
    struct pl_top_args a = {.outer = outer,
                            .n = n,
                            .inner = inner,
                            .k = k,
                            .least = check_random(2),
                            .nan_first = check_random(2),
                            .x = in,
                            .index = index};

    for (size_t i = 0; i < x; i++) /* equal ones */
        if (check_random(3) == 0)
            in[i] = check_random(3) ? (float)check_random(3) : NAN;
    check_case("top outer %zu n %zu inner %zu k %zu least %d nan_first %d", outer, n, inner, k,
               a.least, a.nan_first);
    ref->top(&a);
    a.index = index2;
    got->top(&a);
    for (size_t i = 0; i < y; i++)
        check_close("index", i, index2[i], index[i], 0);
    check_end_case();
}

/* By hand: a NaN, both zeros (equal: the first is first), infinities. */
static void known(const struct pl_kernels *got)
{
    static const int want[3][7] = {
        {3, 2, 1, 4, 5, 6, 0}, {0, 6, 4, 5, 1, 2, 3}, {3, 0, 6, 4, 5, 1, 2}};
    float *x = check_floats(7, FILL_ZERO);
    int32_t *index = check_labels(7, 1);

    check_case("top by hand");
    for (int i = 0; i < 7; i++)
        x[i] = (float[]){-INFINITY, 1, INFINITY, NAN, -0.0f, 0.0f, -3}[i];
    for (int way = 0; way < 3; way++) {
        got->top(&(struct pl_top_args){.outer = 1,
                                       .n = 7,
                                       .inner = 1,
                                       .k = 7,
                                       .least = way > 0,
                                       .nan_first = way == 2,
                                       .x = x,
                                       .index = index});
        for (size_t i = 0; i < 7; i++)
            check_close("index", (size_t)way * 100 + i, index[i], want[way][i], 0);
    }
    check_end_case();
}

void check_op(const struct pl_kernels *ref, const struct pl_kernels *got)
{
    known(ref);
    known(got);
    for (size_t i = 0; i < check_many(300, 60); i++) {
        size_t n = 1 + check_random(check_random(4) ? 12 : 200);

        one(ref, got, 1 + check_random(5), n, check_random(2) ? 1 : 1 + check_random(7),
            check_random(2) ? 1 : 1 + check_random(n < 13 ? n : 12));
    }
    one(ref, got, 2, 150, 1, 150);
    one(ref, got, 1, 3000, 1, 5);
}
