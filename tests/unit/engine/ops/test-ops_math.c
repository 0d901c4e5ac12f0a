/* SPDX-License-Identifier: MIT */
/* The functions of plume/ops_math.h, as a module calls them: each does what its name says. */
#include "plume/ops_shape.h"
#include "tests/unit/engine/ops/op_step.h"

typedef plume_tensor *function(struct plume_context *pl, plume_tensor *x);
typedef plume_tensor *function_of_two(struct plume_context *pl, plume_tensor *a, plume_tensor *b);

static double sign(double x)
{
    return (x > 0) - (x < 0);
}

static double one_by_root(double x)
{
    return 1 / sqrt(x);
}

static double softplus(double x)
{
    return log1p(exp(x));
}

static double lt(double a, double b)
{
    return a < b;
}

static double le(double a, double b)
{
    return a <= b;
}

static double gt(double a, double b)
{
    return a > b;
}

static double ge(double a, double b)
{
    return a >= b;
}

static double eq(double a, double b)
{
    return a == b;
}

static double ne(double a, double b)
{
    return a != b;
}

static void test_functions_do_what_they_are_called(void **state)
{
    static const struct {
        function *ours;
        double (*known)(double x);
    } functions[] = {{plume_exp, exp},           {plume_ln, log},      {plume_sqrt, sqrt},
                     {plume_rsqrt, one_by_root}, {plume_abs, fabs},    {plume_sin, sin},
                     {plume_softplus, softplus}, {plume_cos, cos},     {plume_tan, tan},
                     {plume_erf, erf},           {plume_floor, floor}, {plume_ceil, ceil},
                     {plume_round, rint},        {plume_sign, sign}};
    static const struct {
        function_of_two *ours;
        double (*known)(double a, double b);
    } of_two[] = {{plume_maximum, fmax}, {plume_minimum, fmin}, {plume_lt, lt}, {plume_le, le},
                  {plume_gt, gt},        {plume_ge, ge},        {plume_eq, eq}, {plume_ne, ne}};
    struct step step;
    double want[MOST];

    (void)state;
    for (size_t k = 0; k < PL_COUNT(functions); k++) {
        plume_tensor *x, *y;

        begin(&step);
        x = leaf(&step, SHAPE(5), 7, 11, -1, 4); /* positive */
        y = functions[k].ours(&step.pl, x);
        run(&step, y);
        for (size_t i = 0; i < 5; i++)
            want[i] = functions[k].known(step.data[0][i]);
        same("a function", pl_tensor_data(y), want, 5);
        pl_tape_finish(&step.tape);
    }
    for (size_t k = 0; k < PL_COUNT(of_two); k++) {
        plume_tensor *a, *b, *y;

        begin(&step);
        a = REAL(4, 6);
        b = leaf(&step, SHAPE(6), 2, 5, 2, 4); /* equal to some of a's */
        y = of_two[k].ours(&step.pl, a, b);
        run(&step, y);
        for (size_t i = 0; i < 24; i++)
            want[i] = of_two[k].known(step.data[0][i], step.data[1][i % 6]);
        same("a function of two", pl_tensor_data(y), want, 24);
        pl_tape_finish(&step.tape);
    }
}

static void test_functions_with_parameters(void **state)
{
    struct step step;
    plume_tensor *x, *y, *list[6];
    double want[6][5];

    (void)state;
    begin(&step);
    x = REAL(5);
    list[0] = plume_clamp(&step.pl, x, -0.6, 0.6);
    list[1] = plume_elu(&step.pl, x, 0.5);
    list[2] = plume_leaky_relu(&step.pl, x, 0.1);
    list[3] = plume_pow(&step.pl, x, 3);
    list[4] = plume_masked_fill(&step.pl, x, plume_lt(&step.pl, x, plume_abs(&step.pl, x)), -9);
    list[5] = plume_full(&step.pl, SHAPE(5), 2.5);
    y = plume_cat(&step.pl, 6, list);
    run(&step, y);
    for (size_t i = 0; i < 5; i++) {
        double v = step.data[0][i];

        want[0][i] = fmin(fmax(v, -0.6), 0.6);
        want[1][i] = v > 0 ? v : 0.5 * expm1(v);
        want[2][i] = v > 0 ? v : 0.1 * v;
        want[3][i] = v * v * v;
        want[4][i] = v < 0 ? -9 : v;
        want[5][i] = 2.5;
    }
    same("a function with parameters", pl_tensor_data(y), want[0], 30);
    pl_tape_finish(&step.tape);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_functions_do_what_they_are_called),
        cmocka_unit_test(test_functions_with_parameters),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
