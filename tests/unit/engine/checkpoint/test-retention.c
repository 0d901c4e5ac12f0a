/* SPDX-License-Identifier: MIT */
/* The checkpoints that are kept, and the one that a run resumes. */
#include "common/base/fs.h"
#include "runtime/engine/checkpoint/resume_file.h"
#include "runtime/engine/checkpoint/retention.h"
#include "runtime/engine/train/train_state.h"
#include "tests/unit/engine/checkpoint/checkpoint_dir.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>
#include <sys/stat.h>

#include <cmocka.h>

static int add(struct pl_retention *b, uint64_t n, double value, char **path, char **gone)
{
    free(*path);
    free(*gone);
    *path = *gone = NULL;
    return pl_retention_add(b, n, n * 10, value, path, gone);
}

static void touch(const char *path)
{
    assert_int_equal(pl_file_replace(path, "x", 1, 0600, NULL), 0);
}

static void test_best_keeps_k(void **state)
{
    _cleanup_(pl_buf_finish) struct pl_buf json = {0};
    _cleanup_free_ char *path = NULL, *gone = NULL, *first = in_dir("epoch=4-step=40.ckpt");
    struct pl_retention b, again;

    assert_int_equal(pl_retention_init(&b, dir, NULL, false, 2, NULL), -EINVAL);
    assert_int_equal(pl_retention_init(&b, dir, "val_acc", true, 2, NULL), 0);
    assert_int_equal(add(&b, 0, NAN, &path, &gone), 1);
    assert_null(gone);
    assert_int_equal(add(&b, 1, 0.5, &path, &gone), 1);
    assert_null(gone);
    assert_int_equal(add(&b, 2, 0.4, &path, &gone), 1);
    assert_non_null(strstr(gone, "/epoch=0-step=0.ckpt"));
    assert_int_equal(add(&b, 3, 0.4, &path, &gone), 0); /* no better than the worst */
    assert_int_equal(add(&b, 4, 0.7, &path, &gone), 1);
    assert_string_equal(path, first);
    assert_non_null(strstr(gone, "/epoch=2-step=20.ckpt"));
    assert_true(b.kept[0].value == 0.7 && b.kept[1].value == 0.5);
    touch(path);
    assert_int_equal(pl_retention_save(&b, &json), 0);
    assert_int_equal(pl_retention_init(&again, dir, "val_acc", true, 2, NULL), 0);
    assert_int_equal(pl_retention_load(&again, pl_buf_str(&json)), 0);
    assert_int_equal(again.n, 1); /* the other file is not there */
    assert_string_equal(again.kept[0].path, first);
    assert_true(again.kept[0].value == 0.7);
    pl_retention_finish(&again);
    assert_int_equal(pl_retention_init(&again, dir, "val_loss", true, 2, NULL), 0);
    assert_int_equal(pl_retention_load(&again, pl_buf_str(&json)), 0);
    assert_int_equal(again.n, 0);
    assert_int_equal(pl_retention_load(&again, "{\"mode\":\"max\"}"), -EINVAL);
    pl_retention_finish(&again);
    pl_retention_finish(&b);
}

/* The folder by another name, and another folder, whose files are not this run's to remove. */
static void test_best_is_of_the_own_folder(void **state)
{
    _cleanup_(pl_buf_finish) struct pl_buf json = {0};
    _cleanup_free_ char *path = NULL, *gone = NULL, *again = pl_strf("%s/.", dir),
                        *other = in_dir("other");
    struct pl_retention b;

    assert_int_equal(pl_retention_init(&b, dir, NULL, false, 1, NULL), 0);
    assert_int_equal(add(&b, 1, NAN, &path, &gone), 1);
    touch(path);
    assert_int_equal(pl_retention_save(&b, &json), 0);
    pl_retention_finish(&b);
    assert_int_equal(pl_retention_init(&b, again, NULL, false, 1, NULL), 0);
    assert_int_equal(pl_retention_load(&b, pl_buf_str(&json)), 0);
    assert_int_equal(add(&b, 1, NAN, &path, &gone), 1); /* the same file anew */
    assert_null(gone);
    assert_int_equal(add(&b, 2, NAN, &path, &gone), 1);
    assert_non_null(strstr(gone, "/./epoch=1-step=10.ckpt"));
    pl_retention_finish(&b);
    assert_int_equal(mkdir(other, 0700), 0);
    for (int same_name = 0; same_name < 2; same_name++) {
        assert_int_equal(pl_retention_init(&b, other, NULL, false, 1, NULL), 0);
        assert_int_equal(pl_retention_load(&b, pl_buf_str(&json)), 0);
        assert_int_equal(add(&b, 2, NAN, &path, &gone), 1);
        assert_null(gone);
        pl_retention_finish(&b);
        free(path);
        path = pl_path_join(other, "epoch=1-step=10.ckpt");
        touch(path);
    }
}

static void test_without_a_monitor_the_newest_is_kept(void **state)
{
    _cleanup_free_ char *path = NULL, *gone = NULL;
    struct pl_retention b;

    assert_int_equal(pl_retention_init(&b, dir, NULL, false, 1, NULL), 0);
    assert_int_equal(add(&b, 1, NAN, &path, &gone), 1);
    assert_int_equal(add(&b, 2, NAN, &path, &gone), 1);
    assert_non_null(strstr(gone, "epoch=1-"));
    assert_int_equal(add(&b, 2, NAN, &path, &gone), 1); /* the same file anew */
    assert_null(gone);
    assert_int_equal(b.n, 1);
    pl_retention_finish(&b);
    assert_int_equal(pl_retention_init(&b, dir, NULL, false, 0, NULL), 0);
    assert_int_equal(add(&b, 1, 1, &path, &gone), 0);
    pl_retention_finish(&b);
    assert_int_equal(pl_retention_init(&b, dir, NULL, false, -1, NULL), 0);
    for (uint64_t i = 0; i < 9; i++) {
        assert_int_equal(add(&b, i, NAN, &path, &gone), 1);
        assert_null(gone);
    }
    pl_retention_finish(&b);
}

static void test_hpc_numbers(void **state)
{
    static const char *const names[] = {"hpc_ckpt_2.ckpt", "hpc_ckpt_10.ckpt", "hpc_ckpt_x.ckpt",
                                        "hpc_ckpt_99.ckpt.tmp", "hpc_ckpt_.ckpt"};
    _cleanup_free_ char *sub = in_dir("hpc"), *path = NULL;

    assert_int_equal(pl_hpc_latest(sub, &path, NULL), 0);
    assert_null(path);
    assert_int_equal(pl_hpc_next(sub, &path, NULL), 0);
    assert_non_null(strstr(path, "/hpc/hpc_ckpt_1.ckpt"));
    assert_int_equal(mkdir(sub, 0700), 0);
    for (size_t i = 0; i < PL_COUNT(names); i++) {
        _cleanup_free_ char *full = pl_path_join(sub, names[i]);

        touch(full);
    }
    free(path);
    assert_int_equal(pl_hpc_next(sub, &path, NULL), 0);
    assert_non_null(strstr(path, "/hpc_ckpt_11.ckpt"));
    free(path);
    assert_int_equal(pl_hpc_latest(sub, &path, NULL), 0);
    assert_non_null(strstr(path, "/hpc_ckpt_10.ckpt"));
}

/* A complete checkpoint, or one with weights only, of a step. */
static void put_step(const char *folder, const char *name, int step, bool complete)
{
    _cleanup_(pl_checkpoint_finish) struct pl_checkpoint c = {0};
    _cleanup_free_ char *path = pl_path_join(folder, name);
    char number[16];

    snprintf(number, sizeof(number), "%d", step);
    assert_int_equal(pl_checkpoint_set(&c, "global_step", number), 0);
    if (complete)
        assert_int_equal(pl_checkpoint_set(&c, "optimizer_states", "[]"), 0);
    assert_int_equal(pl_checkpoint_write(&c, path, NULL), 0);
}

static void expect_resume(const char *folder, const char *asked, const char *name)
{
    _cleanup_free_ char *path = NULL;

    assert_int_equal(pl_resume_file(folder, asked, &path, NULL), 0);
    if (!name)
        assert_null(path);
    else
        assert_string_equal(strrchr(path, '/') + 1, name);
}

static void test_resume_file_has_the_highest_step(void **state)
{
    _cleanup_free_ char *sub = in_dir("resume"), *other = in_dir("other.ckpt"), *bad = NULL;

    expect_resume(NULL, NULL, NULL);
    expect_resume(NULL, other, "other.ckpt");
    assert_int_equal(mkdir(sub, 0700), 0);
    put_step(sub, "last.ckpt", 40000, true);
    expect_resume(sub, NULL, NULL); /* nothing was interrupted */
    expect_resume(sub, "last", "last.ckpt");
    put_step(sub, "hpc_ckpt_1.ckpt", 100, true);
    put_step(sub, "hpc_ckpt_2.ckpt", 200, true);
    expect_resume(sub, NULL, "last.ckpt");
    expect_resume(sub, "last", "last.ckpt");
    put_step(sub, "last.ckpt", 200, true);
    expect_resume(sub, "last", "hpc_ckpt_2.ckpt"); /* it may be inside an epoch */
    put_step(sub, "last.ckpt", 40000, false);
    expect_resume(sub, NULL, "hpc_ckpt_2.ckpt");
    put_step(sub, "epoch=3-step=250.ckpt", 250, true);
    put_step(sub, "epoch=2-step=90.ckpt", 90, true);
    put_step(sub, "epoch=9-step=900.ckptx", 900, true);
    expect_resume(sub, NULL, "epoch=3-step=250.ckpt");
    put_step(dir, "other.ckpt", 300, true);
    expect_resume(sub, other, "other.ckpt");
    expect_resume(sub, "/none.ckpt", "epoch=3-step=250.ckpt");
    put_step(sub, "hpc_ckpt_3.ckpt", 500, true);
    expect_resume(sub, other, "hpc_ckpt_3.ckpt");
    bad = pl_path_join(sub, "hpc_ckpt_4.ckpt");
    touch(bad);
    expect_resume(sub, other, "other.ckpt");
    /* Only the highest stays. */
    assert_int_equal(pl_hpc_remove_older(sub, NULL), 0);
    assert_false(is_there("resume/hpc_ckpt_1.ckpt"));
    assert_false(is_there("resume/hpc_ckpt_3.ckpt"));
    assert_true(is_there("resume/hpc_ckpt_4.ckpt"));
    assert_true(is_there("resume/last.ckpt"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_best_keeps_k),
        cmocka_unit_test(test_best_is_of_the_own_folder),
        cmocka_unit_test(test_without_a_monitor_the_newest_is_kept),
        cmocka_unit_test(test_hpc_numbers),
        cmocka_unit_test(test_resume_file_has_the_highest_step),
    };

    return cmocka_run_group_tests(tests, make_dir, remove_dir);
}
