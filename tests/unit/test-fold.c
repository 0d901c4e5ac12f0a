/* SPDX-License-Identifier: MIT */
#include "launcher/plstat/fold.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

/* A document of n ranks that run at this step. */
static json_t *make(size_t n, int step)
{
    json_t *ranks = json_array();

    for (size_t i = 0; i < n; i++)
        json_array_append_new(
            ranks, json_pack("{s:i, s:s, s:i}", "rank", (int)i, "state", "running", "step", step));
    return json_pack("{s:o}", "ranks", ranks);
}

static void set(json_t *doc, size_t rank, const char *key, json_t *value)
{
    json_object_set_new(json_array_get(json_object_get(doc, "ranks"), rank), key, value);
}

static void assert_groups(json_t *doc, bool all, const size_t *sizes, size_t n)
{
    struct pl_fold fold = {0};
    struct pl_error err = {0};

    assert_int_equal(pl_fold_ranks(doc, all, &fold, &err), 0);
    assert_int_equal(fold.n, n);
    for (size_t i = 0; i < n; i++)
        assert_int_equal(fold.groups[i].n, sizes[i]);
    pl_fold_finish(&fold);
}

static void test_fold_ranks_that_agree(void **state)
{
    _cleanup_(json_decrefp) json_t *doc = make(96, 880);

    assert_groups(doc, false, (size_t[]){96}, 1);
    set(doc, 3, "step", json_integer(881)); /* reports at another moment */
    set(doc, 4, "step", json_integer(879));
    assert_groups(doc, false, (size_t[]){96}, 1);
}

static void test_fold_ranks_outliers_stand_alone(void **state)
{
    _cleanup_(json_decrefp) json_t *doc = make(96, 880);

    set(doc, 5, "step", json_integer(871));
    set(doc, 90, "step", json_integer(871));
    set(doc, 7, "state", json_string("failed"));
    assert_groups(doc, false, (size_t[]){93, 1, 1, 1}, 4);
}

static void test_fold_ranks_large_groups_stay(void **state)
{
    _cleanup_(json_decrefp) json_t *doc = make(96, 880);

    for (size_t i = 40; i < 51; i++)
        set(doc, i, "state", json_string("starting"));
    assert_groups(doc, false, (size_t[]){85, 11}, 2);
    set(doc, 50, "state", json_string("running"));
    assert_groups(doc, false, (size_t[]){86, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1}, 11);
}

static void test_fold_ranks_ends(void **state)
{
    _cleanup_(json_decrefp) json_t *doc = make(12, 310);

    for (size_t i = 0; i < 12; i++) {
        set(doc, i, "state", json_string(i == 3 ? "failed" : "killed"));
        set(doc, i, i == 3 ? "exit" : "signal", json_integer(i == 3 ? 3 : 15));
        set(doc, i, "step", json_integer((json_int_t)i)); /* of no matter any more */
    }
    assert_groups(doc, false, (size_t[]){11, 1}, 2);
}

static void test_fold_ranks_exit_codes_differ(void **state)
{
    _cleanup_(json_decrefp) json_t *doc = make(24, 310);

    for (size_t i = 0; i < 24; i++) {
        set(doc, i, "state", json_string("failed"));
        set(doc, i, "exit", json_integer(i < 12 ? 3 : 4));
    }
    assert_groups(doc, false, (size_t[]){12, 12}, 2);
}

static void test_fold_ranks_all(void **state)
{
    _cleanup_(json_decrefp) json_t *doc = make(3, 1);

    assert_groups(doc, true, (size_t[]){1, 1, 1}, 3);
}

static void test_fold_ranks_nothing(void **state)
{
    _cleanup_(json_decrefp) json_t *doc = json_object(),
                                   *odd = json_pack("{s:[{}, i, {s:i}]}", "ranks", 1, "state", 7);

    assert_groups(NULL, false, NULL, 0);
    assert_groups(doc, false, NULL, 0);
    assert_groups(odd, false, (size_t[]){3}, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_fold_ranks_that_agree),
        cmocka_unit_test(test_fold_ranks_outliers_stand_alone),
        cmocka_unit_test(test_fold_ranks_large_groups_stay),
        cmocka_unit_test(test_fold_ranks_ends),
        cmocka_unit_test(test_fold_ranks_exit_codes_differ),
        cmocka_unit_test(test_fold_ranks_all),
        cmocka_unit_test(test_fold_ranks_nothing),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
