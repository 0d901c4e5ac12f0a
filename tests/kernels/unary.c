/* SPDX-License-Identifier: MIT */
#include "tests/kernels/check.h"

#include <math.h>

/* The vector exponential is good to 2e-7, tanh and the rest take a few roundings more; gelu's Phi
 * is good to 2e-7 absolutely. Slopes are differences of such. */
#define TOLERANCE(want) (2e-6 * (1 + fabs(want)))

static void one(const struct pl_kernels *ref,
                const struct pl_kernels *got,
                size_t n,
                enum pl_activation act,
                enum fill fill)
{
    const float *x = check_floats(n, fill), *dy = check_floats(n, FILL_RANDOM);
    float *y = check_floats(n, FILL_RANDOM), *y2 = check_floats(n, FILL_RANDOM);
    float *dx = check_floats(n, FILL_RANDOM), *dx2 = check_copy(dx, n);
    struct pl_unary_args a = {
        .n = n, .act = act, .dx_add = check_random(2), .x = x, .dy = dy, .y = y, .dx = dx};

    check_case("unary n %zu act %d add %d fill %d", n, (int)act, a.dx_add, (int)fill);
    ref->unary_forward(&a);
    ref->unary_backward(&a);
    a.y = y2;
    a.dx = dx2;
    got->unary_forward(&a);
    got->unary_backward(&a);
    for (size_t i = 0; i < n; i++) {
        check_close("y", i, y2[i], y[i], TOLERANCE(y[i]));
        check_close("dx", i, dx2[i], dx[i], TOLERANCE(dx[i]));
    }
    check_end_case();
}

/* Not finite numbers and 1e17 are left to the activations' own conventions (inf times 0). */
void check_op(const struct pl_kernels *ref, const struct pl_kernels *got)
{
    for (int act = PL_ACT_NONE; act <= PL_ACT_SIGMOID; act++) {
        for (size_t n = 1; n < 70; n++)
            for (int fill = 0; fill <= FILL_DENORM; fill++)
                one(ref, got, n, (enum pl_activation)act, (enum fill)fill);
        one(ref, got, 20001, (enum pl_activation)act, FILL_RANDOM);
    }
}
