/* SPDX-License-Identifier: MIT */
#include "common/base/near.h"

#include <limits.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

static void test_distance(void **state)
{
    static const struct {
        const char *a, *b;
        unsigned distance;
    } cases[] = {
        {"", "", 0},       {"", "abc", 3},    {"abc", "", 3},           {"lr", "lr", 0},
        {"lrr", "lr", 1},  {"rl", "lr", 1},   {"kitten", "sitting", 3}, {"LR", "lr", 0},
        {"a-b", "a_b", 0}, {"a.b", "a-b", 0}, {"gird", "grid", 1},      {"ca", "abc", 3},
    };
    char longer[66];

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        assert_int_equal(pl_near_distance(cases[i].a, cases[i].b), cases[i].distance);
    memset(longer, 'a', sizeof(longer));
    longer[65] = '\0';
    assert_int_equal(pl_near_distance(longer, longer), UINT_MAX);
    assert_int_equal(pl_near_distance(longer + 1, longer + 1), 0);
}

static const char *near(const char *word)
{
    struct pl_near n = {.word = word};

    pl_near_offer(&n, "grid");
    pl_near_offer(&n, "gpus-per-node");
    pl_near_offer(&n, "gpus-per-task");
    pl_near_offer(&n, "lr");
    return n.best ? n.best : "";
}

static void test_offer(void **state)
{
    assert_string_equal(near("gird"), "grid");
    assert_string_equal(near("gpu-per-node"), "gpus-per-node");
    assert_string_equal(near("gpus_per_tasks"), "gpus-per-task");
    assert_string_equal(near("lrr"), "lr");
    assert_string_equal(near("rl"), "lr");
    assert_string_equal(near("l"), "");
    assert_string_equal(near("g"), "");
    assert_string_equal(near("verbose"), "");
    assert_string_equal(near(""), "");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_distance),
        cmocka_unit_test(test_offer),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
