/* SPDX-License-Identifier: MIT */
#include "tests/kernels/check.h"

#include <math.h>

static void one(const struct pl_kernels *ref,
                const struct pl_kernels *got,
                size_t outer,
                size_t n,
                size_t inner,
                enum fill fill)
{
    size_t in = outer * n * inner, out = outer * inner;
    const float *x = check_floats(in, fill), *dy = check_floats(out, FILL_RANDOM);
    float *y = check_floats(out, FILL_RANDOM), *y2 = check_floats(out, FILL_RANDOM);
    float *dx = check_floats(in, FILL_RANDOM), *dx2 = check_copy(dx, in);
    struct pl_reduce_args a = {.outer = outer,
                               .n = n,
                               .inner = inner,
                               .scale = 1.0 / (double)n,
                               .dx_add = check_random(2),
                               .x = x,
                               .dy = dy,
                               .y = y,
                               .dx = dx};

    check_case("reduce %zu %zu %zu add %d fill %d", outer, n, inner, a.dx_add, (int)fill);
    ref->reduce_forward(&a);
    ref->reduce_backward(&a);
    a.y = y2;
    a.dx = dx2;
    got->reduce_forward(&a);
    got->reduce_backward(&a);
    for (size_t i = 0; i < out; i++) /* both sum in f64 and round once */
        check_close("y", i, y2[i], y[i], 2 * CHECK_EPS * fabs(y[i]) + 1e-12);
    for (size_t i = 0; i < in; i++)
        check_close("dx", i, dx2[i], dx[i], 4 * CHECK_EPS * (1 + fabs(dx[i])));
    check_end_case();
}

void check_op(const struct pl_kernels *ref, const struct pl_kernels *got)
{
    for (size_t i = 0; i < check_many(300, 300); i++)
        one(ref, got, 1 + check_random(9), 1 + check_random(40), 1 + check_random(100),
            (enum fill)check_random(FILL_DENORM + 1));
    one(ref, got, 1, 100001, 1, FILL_RANDOM);
    one(ref, got, 3, 33333, 1, FILL_RANDOM);
    one(ref, got, 1, 333, 1000, FILL_RANDOM);
}
