/* SPDX-License-Identifier: MIT */
/* The options that are named where a run does not fit. */
#include "runtime/engine/train/memory_plan.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

static const struct pl_memory_choice choices[] = {
    {"--recompute", 52e6},
    {"--batch_size 8 --accumulate 2", 35.8e6},
    {"--strategy sharded --shard param", 2.1e9},
};

static void test_choose_names_what_fits(void **state)
{
    char text[512];

    (void)state;
    assert_int_equal(pl_memory_choose(choices, 3, 60e6, text, sizeof(text)), 2);
    assert_string_equal(text, "--recompute (52.0 MB), or --batch_size 8 --accumulate 2 (35.8 MB)");
    assert_int_equal(pl_memory_choose(choices, 3, 40e6, text, sizeof(text)), 1);
    assert_string_equal(text, "--batch_size 8 --accumulate 2 (35.8 MB)");
    assert_int_equal(pl_memory_choose(choices + 1, 2, INFINITY, text, sizeof(text)), 2);
    assert_string_equal(
        text,
        "--batch_size 8 --accumulate 2 (35.8 MB), or --strategy sharded --shard param (2.1 GB)");
}

static void test_choose_nothing_fits(void **state)
{
    char text[512] = "x";

    (void)state;
    assert_int_equal(pl_memory_choose(choices, 3, 35e6, text, sizeof(text)), 0);
    assert_string_equal(text, "");
    assert_int_equal(pl_memory_choose(NULL, 0, INFINITY, text, sizeof(text)), 0);
}

/* A plan may be 5 % too low. */
static void test_choose_keeps_a_margin(void **state)
{
    const struct pl_memory_choice one = {"--recompute", 100e6};
    char text[64];

    (void)state;
    assert_int_equal(pl_memory_choose(&one, 1, 104.9e6, text, sizeof(text)), 0);
    assert_int_equal(pl_memory_choose(&one, 1, 105.1e6, text, sizeof(text)), 1);
    assert_true(pl_memory_fits(100, 105.1));
    assert_false(pl_memory_fits(100, 104.9));
}

static void test_choose_never_passes_the_end(void **state)
{
    char text[64];

    (void)state;
    for (size_t size = 1; size < sizeof(text); size++) {
        memset(text, 'x', sizeof(text));
        pl_memory_choose(choices, 3, INFINITY, text, size);
        assert_true(strlen(text) < size);
        assert_int_equal(text[size], 'x');
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_choose_names_what_fits),
        cmocka_unit_test(test_choose_nothing_fits),
        cmocka_unit_test(test_choose_keeps_a_margin),
        cmocka_unit_test(test_choose_never_passes_the_end),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
