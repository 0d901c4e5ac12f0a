/* SPDX-License-Identifier: MIT */
#include "launcher/plsubmit/grid.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

/* Adds `text` and compares its values with the NULL-terminated list. */
static void good(const char *text, ...)
{
    _cleanup_(pl_grid_finish) struct pl_grid grid = {0};
    struct pl_error err = {0};
    const char *expected;
    size_t n = 0;
    va_list ap;

    assert_int_equal(pl_grid_add(&grid, text, &err), 0);
    va_start(ap, text);
    while ((expected = va_arg(ap, const char *))) {
        assert_true(n < grid.axes[0].n_values);
        assert_string_equal(grid.axes[0].values[n], expected);
        n++;
    }
    va_end(ap);
    assert_int_equal(n, grid.axes[0].n_values);
}

static void bad(const char *text, const char *word)
{
    _cleanup_(pl_grid_finish) struct pl_grid grid = {0};
    struct pl_error err = {0};

    assert_int_equal(pl_grid_add(&grid, text, &err), -EINVAL);
    assert_int_equal(grid.n_axes, 0);
    if (!strstr(err.text, word))
        fail_msg("'%s' has no '%s'", err.text, word);
}

static void test_add_bare_values(void **state)
{
    good("lr=1e-3,1e-2,1e-1", "1e-3", "1e-2", "1e-1", NULL);
    good("a= x ,y", " x ", "y", NULL);
    good("a=b\"c\",\\n,\\", "b\"c\"", "\\n", "\\", NULL);
    good("a=x=y,'q',$(id),`id`,;,*", "x=y", "'q'", "$(id)", "`id`", ";", "*", NULL);
    good("_a.b-c9=\xc3\xa9\n\033", "\xc3\xa9\n\033", NULL);
}

static void test_add_quoted_values(void **state)
{
    good("a=\"x,y\",z", "x,y", "z", NULL);
    good("a=\"\"", "", NULL);
    good("a=\"\",x", "", "x", NULL);
    good("a=\"say \"\"hi\"\"\"", "say \"hi\"", NULL);
    good("a=\"\"\"\"", "\"", NULL);
    good("a=\"\"\"\"\"\",\"line\nline\\\"", "\"\"", "line\nline\\", NULL);
    good("a=1,\"2\"", "1", "2", NULL);
}

static void test_add_bad_form(void **state)
{
    bad("", "bad axis");
    bad("lr", "bad axis");
    bad("=1", "bad axis");
    bad("1a=1", "bad axis");
    bad(".a=1", "bad axis");
    bad("a b=1", "bad axis");
    bad("a\xc3\xa9=1", "bad axis");
    bad("a{}=1", "bad axis");
    bad("a=", "empty value");
    bad("a=1,", "empty value");
    bad("a=,1", "empty value");
    bad("a=1,,2", "empty value");
    bad("a=\"", "closing");
    bad("a=\"x", "closing");
    bad("a=\"x\"\"", "closing");
    bad("a=\"x\"y", "after");
    bad("a=\"x\" ,y", "after");
    bad("a=1,1", "twice");
    bad("a=1,2,\"1\"", "twice");
    bad("a=\"\",\"\"", "twice");
    bad("a=\xff", "UTF-8");
    bad("a=\xc0\x80", "UTF-8");
    bad("a=\xed\xa0\x80", "UTF-8");
}

static void test_add_clashing_names(void **state)
{
    _cleanup_(pl_grid_finish) struct pl_grid grid = {0};
    struct pl_error err = {0};

    assert_int_equal(pl_grid_add(&grid, "a.b=1", &err), 0);
    assert_int_equal(pl_grid_add(&grid, "a.b=2", &err), -EINVAL);
    assert_int_equal(pl_grid_add(&grid, "a-b=2", &err), -EINVAL);
    assert_int_equal(pl_grid_add(&grid, "a_b=2", &err), -EINVAL);
    assert_int_equal(pl_grid_add(&grid, "a_bc=2", &err), 0);
    assert_int_equal(pl_grid_add(&grid, "A.b=2", &err), 0);
    assert_int_equal(grid.n_axes, 3);
}

static void test_product_order(void **state)
{
    _cleanup_(pl_grid_finish) struct pl_grid grid = {0};
    struct pl_error err = {0};
    static const char *const expected[][3] = {{"1", "x", "p"}, {"1", "x", "q"}, {"1", "y", "p"},
                                              {"1", "y", "q"}, {"1", "z", "p"}, {"1", "z", "q"},
                                              {"2", "x", "p"}, {"2", "x", "q"}};

    assert_int_equal(pl_grid_n_trials(&grid), 1);
    assert_int_equal(pl_grid_add(&grid, "a=1,2", &err), 0);
    assert_int_equal(pl_grid_add(&grid, "b=x,y,z", &err), 0);
    assert_int_equal(pl_grid_add(&grid, "c=p,q", &err), 0);
    assert_int_equal(pl_grid_n_trials(&grid), 12);
    for (unsigned t = 0; t < PL_COUNT(expected); t++)
        for (size_t a = 0; a < 3; a++)
            assert_string_equal(pl_grid_value(&grid, t, a), expected[t][a]);
}

static void test_ranges(void **state)
{
    good("a=range(0,0.5,6)", "0", "0.1", "0.2", "0.3", "0.4", "0.5", NULL);
    good("a=range(5,-5,3)", "5", "0", "-5", NULL);
    good("a=range(1,1000000,2)", "1", "1000000", NULL);
    good("a=log(1e-4,1,5)", "0.0001", "0.001", "0.01", "0.1", "1", NULL);
    good("a=log(3e-2,3e2,3)", "0.03", "3", "300", NULL);
    good("a=\"range(0,1,3)\"", "range(0,1,3)", NULL);
    good("a=0:1:3,range,ranged(1)", "0:1:3", "range", "ranged(1)", NULL);
    bad("a=range(0,1)", "range(LO,HI,N)");
    bad("a=range(0,1,3,4)", "range(LO,HI,N)");
    bad("a=range(x,1,3)", "must be numbers");
    bad("a=range(0,inf,3)", "must be numbers");
    bad("a=range(0,1,1)", "whole number from 2");
    bad("a=range(0,1,2.5)", "whole number from 2");
    bad("a=range(1,1,2)", "must differ");
    bad("a=log(0,1,2)", "above 0");
    bad("a=range(0,1,3),2", "have no other values beside them");
    bad("a=2,log(1,2,3)", "have no other values beside them");
    bad("a=range(1,1.0000000000000002,9)", "twice");
}

static void test_zip(void **state)
{
    _cleanup_(pl_grid_finish) struct pl_grid grid = {0};
    struct pl_error err = {0};
    static const char *const expected[][3] = {
        {"1", "x", "7"}, {"1", "y", "7"}, {"2", "x", "8"}, {"2", "y", "8"}};

    assert_int_equal(pl_grid_add(&grid, "a=1,2", &err), 0);
    assert_int_equal(pl_grid_add(&grid, "b=x,y", &err), 0);
    assert_int_equal(pl_grid_add(&grid, "c=7,8", &err), 0);
    assert_int_equal(pl_grid_zip(&grid, "a", &err), -EINVAL);
    grid.axes[0].zipped = false;
    assert_int_equal(pl_grid_zip(&grid, "a,d", &err), -EINVAL);
    grid.axes[0].zipped = false;
    assert_int_equal(pl_grid_zip(&grid, "a,c", &err), 0);
    assert_int_equal(pl_grid_zip(&grid, "b,c", &err), -EINVAL); /* twice */
    assert_int_equal(pl_grid_n_trials(&grid), 4);
    for (unsigned t = 0; t < PL_COUNT(expected); t++)
        for (size_t a = 0; a < 3; a++)
            assert_string_equal(pl_grid_value(&grid, t, a), expected[t][a]);
}

static void test_limits(void **state)
{
    _cleanup_(pl_grid_finish) struct pl_grid grid = {0};
    _cleanup_(pl_buf_finish) struct pl_buf big = {0};
    struct pl_error err = {0};
    char text[] = "a=0,1,2,3,4,5,6,7,8,9";

    for (char c = 'a'; c < 'g'; c++) {
        text[0] = c;
        assert_int_equal(pl_grid_add(&grid, text, &err), 0);
    }
    assert_int_equal(pl_grid_n_trials(&grid), 1000000);
    assert_int_equal(pl_grid_add(&grid, "z=1", &err), 0);
    assert_int_equal(pl_grid_check(&grid, &err), 0);
    assert_int_equal(pl_grid_add(&grid, "y=1,2", &err), 0);
    assert_int_equal(pl_grid_check(&grid, &err), -E2BIG);
    assert_int_equal(pl_grid_zip(&grid, "z,y", &err), -EINVAL); /* of different lengths */
    grid.most = 7; /* a part of it may be asked for, however large it is */
    for (char c = 'k'; c < 'x'; c++) {
        text[0] = c;
        assert_int_equal(pl_grid_add(&grid, text, &err), 0);
    }
    assert_int_equal(pl_grid_check(&grid, &err), 0);
    assert_int_equal(pl_grid_n_trials(&grid), 7);
    assert_string_equal(pl_grid_value(&grid, 6, grid.n_axes - 1), "6");
    assert_string_equal(pl_grid_value(&grid, 6, 0), "0");
    pl_buf_adds(&big, "big=");
    for (unsigned i = 0; i < PL_GRID_PARAMS_MAX; i++)
        pl_buf_addc(&big, 'x');
    assert_int_equal(pl_grid_add(&grid, pl_buf_str(&big), &err), -E2BIG);
}

static void random_utf8(struct pl_buf *out, unsigned *seed)
{
    static const char *const pieces[] = {"\"",
                                         ",",
                                         "\"\"",
                                         "=",
                                         "\\",
                                         "\n",
                                         "x",
                                         "\xc3\xa9",
                                         "{a}",
                                         "\xe4\xbd\xa0",
                                         "\xf0\x9f\x98\x80",
                                         " ",
                                         "\033[1m",
                                         "$(id)",
                                         "'"};

    for (int n = rand_r(seed) % 10; n > 0; n--)
        pl_buf_adds(out, pieces[(size_t)rand_r(seed) % PL_COUNT(pieces)]);
}

static void test_format_round_trip(void **state)
{
    unsigned seed = 7;

    for (int round = 0; round < 10000; round++) {
        _cleanup_(pl_grid_finish) struct pl_grid grid = {0};
        _cleanup_(pl_buf_finish) struct pl_buf a = {0}, b = {0}, text = {0};
        char *values[2];
        char name[] = "axis";
        struct pl_axis axis = {.name = name, .values = values, .n_values = 2};
        struct pl_error err = {0};

        random_utf8(&a, &seed);
        random_utf8(&b, &seed);
        values[0] = (char *)(uintptr_t)pl_buf_str(&a);
        values[1] = (char *)(uintptr_t)pl_buf_str(&b);
        if (strcmp(values[0], values[1]) == 0)
            continue;
        assert_int_equal(pl_grid_format(&axis, &text), 0);
        assert_int_equal(pl_grid_add(&grid, pl_buf_str(&text), &err), 0);
        assert_int_equal(grid.axes[0].n_values, 2);
        assert_string_equal(grid.axes[0].values[0], values[0]);
        assert_string_equal(grid.axes[0].values[1], values[1]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_add_bare_values),
        cmocka_unit_test(test_add_quoted_values),
        cmocka_unit_test(test_add_bad_form),
        cmocka_unit_test(test_add_clashing_names),
        cmocka_unit_test(test_product_order),
        cmocka_unit_test(test_limits),
        cmocka_unit_test(test_ranges),
        cmocka_unit_test(test_zip),
        cmocka_unit_test(test_format_round_trip),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
