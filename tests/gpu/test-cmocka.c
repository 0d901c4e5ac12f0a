/* SPDX-License-Identifier: MIT */
/* An assertion that fails in a set-up or a teardown is a failure of that test, and no crash. */
#include "tests/gpu/cmocka.h"

#include <stdio.h>

static int runs, teardowns;

static int fails(void **state)
{
    (void)state;
    assert_true(runs < 0);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    teardowns++;
    return 0;
}

static int tear_down_badly(void **state)
{
    return tear_down(state) + fails(state);
}

static void test_that_runs(void **state)
{
    (void)state;
    runs++;
}

static void test_that_fails(void **state)
{
    fails(state);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_that_runs, fails, tear_down),
        cmocka_unit_test(test_that_runs),
        cmocka_unit_test_setup_teardown(test_that_fails, NULL, tear_down),
        cmocka_unit_test_setup_teardown(test_that_runs, NULL, tear_down_badly),
    };

    /* Whoever counts failed cases would count those that fail here, as they must. */
    if (!freopen("/dev/null", "w", stdout))
        return 1;
    if (cmocka_run_group_tests(tests, NULL, fails) != 3 || runs != 2 || teardowns != 2)
        return 1;
    return cmocka_run_group_tests(tests, fails, NULL) != 4 || runs != 2;
}
