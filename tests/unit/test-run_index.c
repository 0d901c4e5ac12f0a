/* SPDX-License-Identifier: MIT */
#include "common/run/run_index.h"
#include "tests/unit/sample_run.h"

static void test_index(void **state)
{
    static const char *const argv[] = {"prog", NULL};
    _cleanup_(pl_run_closep) struct pl_run *run = make("idx-aaa", argv),
                                           *two = make("idx-bbb", argv);
    _cleanup_free_ char *file = pl_path_join(top, "home/runs.jsonl");
    _cleanup_free_ char *folder_trial = pl_strf("%s/3", pl_run_dir(two));
    struct pl_run_ref ref = {0};
    struct pl_error err = {0};

    assert_int_equal(pl_run_index_find("idx-aaa", NULL, &ref, &err), -ENOENT);
    assert_true(pl_run_index_lacks(run));
    assert_int_equal(mkdir(file, 0700), 0);
    assert_int_equal(pl_run_index_try(run, &err), -EISDIR);
    assert_int_equal(rmdir(file), 0);
    pl_run_add_submission(run, "12", 0, 4, &err);
    assert_int_equal(pl_run_index_add(run, &err), 0);
    assert_false(pl_run_index_lacks(run));
    pl_run_add_submission(run, "13", 4, 2, &err);
    assert_true(pl_run_index_lacks(run));
    assert_int_equal(pl_run_index_try(run, &err), 0);
    assert_false(pl_run_index_lacks(run));
    assert_int_equal(pl_file_append(file, "{\"torn", 6, 0600, &err), 0);
    assert_int_equal(pl_file_append(file, "\n[]\n\n", 5, 0600, &err), 0);
    pl_run_add_submission(two, "14", 0, 6, &err);
    assert_int_equal(pl_run_index_add(two, &err), 0);

#define CHECK(what, run_, n)                                                                       \
    do {                                                                                           \
        assert_int_equal(pl_run_index_find(what, NULL, &ref, &err), 0);                            \
        assert_string_equal(ref.folder, pl_run_dir(run_));                                         \
        assert_int_equal(ref.trial, n);                                                            \
        pl_run_ref_finish(&ref);                                                                   \
    } while (0)
    CHECK("idx-aaa", run, -1);
    CHECK("idx-aaa/2", run, 2);
    CHECK("12", run, -1);
    CHECK("13_1", run, 5);
    CHECK("14_1", two, 1);
    CHECK(pl_run_dir(two), two, -1);
    CHECK(folder_trial, two, 3);
    assert_int_equal(pl_run_index_find("99", NULL, &ref, &err), -ENOENT);
    assert_int_equal(pl_run_index_find("13_2", NULL, &ref, &err), -ENOENT);
    assert_int_equal(pl_run_index_find("", NULL, &ref, &err), -ENOENT);
    assert_int_equal(pl_run_index_find("/", NULL, &ref, &err), -ENOENT);

    /* Two clusters have given the same number. */
    pl_run_add_submission(two, "13", 0, 6, &err);
    assert_int_equal(pl_run_set_cluster(two, "b"), 0);
    assert_int_equal(pl_run_index_add(two, &err), 0);
    CHECK("13_1", two, 1);
    for (int known = 0; known < 2; known++) {
        static const char *const here[] = {"a", "b", "c", NULL};

        for (int i = 0; i < 4; i++) {
            /* A line without a cluster may be of any. */
            const struct pl_run *of = i == 0 || (i == 2 && !known) ? run : two;

            assert_int_equal(pl_run_index_find("13", here[i], &ref, &err), 0);
            assert_string_equal(ref.folder, pl_run_dir(of));
            pl_run_ref_finish(&ref);
            assert_int_equal(pl_run_index_find("13_1", here[i], &ref, &err), 0);
            assert_int_equal(ref.trial, of == run ? 5 : 1);
            pl_run_ref_finish(&ref);
        }
        assert_int_equal(pl_run_set_cluster(run, "a"), 0);
        assert_int_equal(pl_run_index_add(run, &err), 0);
        assert_int_equal(pl_run_index_add(two, &err), 0);
    }
}

/* Steps of two clusters, and of one whose numbers have begun anew. */
static void test_index_steps(void **state)
{
    static const char *const argv[] = {"step", NULL};
    static const struct {
        const char *cluster, *word, *folder;
    } rows[] = {
        {"a", "7.0", "7.0"},     {"b", "7.0", "7.0~2"},   {NULL, "7.0", "7.0"},
        {"c", "7.0", "7.0"},     {"b", "7.0/0", "7.0~2"}, {"b", "7.0~1", "7.0~1"},
        {"a", "7.0~1", "7.0~1"}, {"a", "7.0~2", "7.0~2"},
    };
    static const char *const steps[] = {"7.0", "7.0~1", "7.0~2"}, *const of[] = {"a", "b", "b"};
    struct pl_run_ref ref = {0};

    for (size_t i = 0; i < PL_COUNT(steps); i++) {
        _cleanup_(pl_run_closep) struct pl_run *run = make(steps[i], argv);

        assert_int_equal(pl_run_set_cluster(run, of[i]), 0);
        assert_int_equal(pl_run_index_add(run, NULL), 0);
    }
    for (size_t i = 0; i < PL_COUNT(rows); i++) {
        assert_int_equal(pl_run_index_find(rows[i].word, rows[i].cluster, &ref, NULL), 0);
        assert_string_equal(strrchr(ref.folder, '/') + 1, rows[i].folder);
        pl_run_ref_finish(&ref);
    }
    assert_int_equal(pl_run_index_find("last", NULL, &ref, NULL), 0);
    assert_string_equal(strrchr(ref.folder, '/') + 1, "idx-bbb"); /* the newest sweep */
    pl_run_ref_finish(&ref);
    assert_int_equal(pl_run_index_find("7.", "b", &ref, NULL), -ENOENT);
    assert_int_equal(pl_run_index_find("7.1", "b", &ref, NULL), -ENOENT);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_index),
        cmocka_unit_test(test_index_steps),
    };
    int failed;

    if (setup(NULL) != 0)
        return 1;
    failed = cmocka_run_group_tests(tests, NULL, NULL);
    if (failed == 0)
        teardown(NULL); /* a failure leaves its files */
    return failed;
}
