/* SPDX-License-Identifier: MIT */
#include "tests/kernels/check.h"

#include <math.h>

/* The vector exponential is good to 2e-7, tanh and the rest take a few roundings more; gelu's Phi
 * is good to 2e-7 absolutely. Slopes are differences of such. */
#define TOLERANCE(want) (2e-6 * (1 + fabs(want)))

/* x  n of check_floats() */
static void compare(const struct pl_kernels *ref,
                    const struct pl_kernels *got,
                    size_t n,
                    enum pl_activation act,
                    const float *x,
                    int fill)
{
    const float *dy = check_floats(n, FILL_RANDOM);
    float *y = check_floats(n, FILL_RANDOM), *y2 = check_floats(n, FILL_RANDOM);
    float *dx = check_floats(n, FILL_RANDOM), *dx2 = check_copy(dx, n);
    struct pl_unary_args a = {
        .n = n, .act = act, .dx_add = check_random(2), .x = x, .dy = dy, .y = y, .dx = dx};

    check_case("unary n %zu act %d add %d fill %d", n, (int)act, a.dx_add, fill);
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

static void one(const struct pl_kernels *ref,
                const struct pl_kernels *got,
                size_t n,
                enum pl_activation act,
                enum fill fill)
{
    compare(ref, got, n, act, check_floats(n, fill), (int)fill);
}

/* A sigmoid that nearly vanishes times a huge number vanishes. */
static void huge(const struct pl_kernels *ref, const struct pl_kernels *got, enum pl_activation act)
{
    static const float numbers[] = {9.9f, 10,    12.9f, 13.1f, 86.9f, 87.1f, 88.5f,
                                    1e4f, 1e13f, 1e17f, 1e20f, 1e36f, 3e38f};
    float *x = check_floats(2 * PL_COUNT(numbers), FILL_ZERO);

    for (size_t i = 0; i < PL_COUNT(numbers); i++)
        if (check_storage() != PL_REAL_F16 || numbers[i] < 65504) { /* else it is infinite there */
            x[2 * i] = numbers[i];
            x[2 * i + 1] = -numbers[i];
        }
    compare(ref, got, 2 * PL_COUNT(numbers), act, x, -1);
}

/* The tanh of a small number is as exact as the number. */
static void small(const struct pl_kernels *ref, const struct pl_kernels *got)
{
    const size_t n = 400;
    float *x = check_floats(n, FILL_ZERO);
    float *y = check_floats(n, FILL_RANDOM), *y2 = check_floats(n, FILL_RANDOM);
    struct pl_unary_args a = {.n = n, .act = PL_ACT_TANH, .x = x, .y = y};

    check_case("tanh of small numbers");
    for (size_t i = 0; i < n; i++)
        x[i] = (i % 2 ? -1.0f : 1.0f) * powf(10, 1 - (float)i / 40); /* to 1e-9 */
    ref->unary_forward(&a);
    a.y = y2;
    got->unary_forward(&a);
    for (size_t i = 0; i < n; i++)
        check_close("y", i, y2[i], y[i], 1e-6 * fabs(y[i]));
    check_end_case();
}

/* Not finite numbers are left to the activations' own conventions (inf times 0). */
void check_op(const struct pl_kernels *ref, const struct pl_kernels *got)
{
    small(ref, got);
    for (int act = PL_ACT_NONE; act <= PL_ACT_SIGMOID; act++) {
        for (size_t n = 1; n < 70; n++)
            for (int fill = 0; fill <= FILL_DENORM; fill++)
                one(ref, got, n, (enum pl_activation)act, (enum fill)fill);
        huge(ref, got, (enum pl_activation)act);
        one(ref, got, 20001, (enum pl_activation)act, FILL_RANDOM);
    }
}
