/* SPDX-License-Identifier: MIT */
#include "common/run/run_tasks.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

static void test_tasks_check(void **state)
{
    static const char *const bad[] = {"",  "-",     "3-",  "-3",  "5-3",         "1,,2", "1,",
                                      "a", "1-2-3", "1:2", "1%2", "99999999999", " 1"};
    struct pl_error err = {0};

    assert_int_equal(pl_tasks_check("0", 1, &err), 0);
    assert_int_equal(pl_tasks_check("3-8,10,0-0", 11, &err), 0);
    assert_int_equal(pl_tasks_check("3-8,10", 10, &err), -EINVAL);
    assert_string_equal(err.text, "there is no trial 10: the trials are 0 to 9");
    for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++)
        assert_int_equal(pl_tasks_check(bad[i], 1000000, &err), -EINVAL);
}

/* A formatted list contains its numbers and no others. */
static void test_tasks_format(void **state)
{
    static const int64_t tasks[] = {0, 2, 3, 4, 9, 11, 12};
    _cleanup_(pl_buf_finish) struct pl_buf text = {0};
    size_t found = 0;

    assert_int_equal(pl_tasks_format(tasks, sizeof(tasks) / sizeof(*tasks), &text), 0);
    assert_string_equal(pl_buf_str(&text), "0,2-4,9,11-12");
    assert_int_equal(pl_tasks_check(pl_buf_str(&text), 13, NULL), 0);
    for (int64_t i = 0; i < 20; i++) {
        bool in = found < sizeof(tasks) / sizeof(*tasks) && tasks[found] == i;

        assert_int_equal(pl_tasks_contain(pl_buf_str(&text), i), in);
        found += in;
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tasks_check),
        cmocka_unit_test(test_tasks_format),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
