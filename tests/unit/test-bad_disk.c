/* SPDX-License-Identifier: MIT */
/* Files on network file systems and on disks that are full or broken. The calls below stand in for
 * libc's, in this program. */
#include "common/base/fs.h"
#include "tests/lib/tmpdir.h"

#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#include <cmocka.h>

static char top[64];
static int close_error;  /* a server tells only then what it could not write */
static int rename_error; /* the file has its new name all the same */
static int rename_fails; /* it has not */
static int sync_error;

int close(int fd)
{
    bool is_file = close_error && (fcntl(fd, F_GETFL) & O_ACCMODE) != O_RDONLY;
    int r = (int)syscall(SYS_close, fd);

    if (!is_file)
        return r;
    errno = close_error;
    return -1;
}

int renameat(int from_dir, const char *from, int to_dir, const char *to)
{
    errno = rename_fails;
    if (rename_fails || syscall(SYS_renameat2, from_dir, from, to_dir, to, 0) < 0)
        return -1;
    errno = rename_error;
    return rename_error ? -1 : 0;
}

int fsync(int fd)
{
    errno = sync_error;
    return sync_error ? -1 : (int)syscall(SYS_fsync, fd);
}

static int make_top(void **state)
{
    (void)state;
    return tmpdir_make(top, sizeof(top)) < 0 || chdir(top) < 0;
}

static int remove_top(void **state)
{
    (void)state;
    return chdir("/") < 0 || tmpdir_remove(top) < 0;
}

static int set_up(void **state)
{
    (void)state;
    close_error = rename_error = rename_fails = sync_error = 0;
    unlink("f");
    return pl_file_replace("f", "old\n", 4, 0644, NULL);
}

static void holds(const char *want)
{
    _cleanup_free_ char *text = NULL;

    assert_int_equal(pl_file_read("f", 100, &text, NULL, NULL), 0);
    assert_string_equal(text, want);
    unlink("f");
    assert_int_equal(chdir("/"), 0);
    assert_int_equal(rmdir(top), 0); /* no temporary file is left */
    assert_int_equal(mkdir(top, 0700), 0);
    assert_int_equal(chdir(top), 0);
}

static void test_replace_tells_what_close_reports(void **state)
{
    struct pl_error err = {0};

    (void)state;
    close_error = EDQUOT;
    assert_int_equal(pl_file_replace("f", "new\n", 4, 0644, &err), -EDQUOT);
    assert_non_null(strstr(pl_error_text(&err), "quota"));
    close_error = 0;
    holds("old\n");
}

static void test_append_tells_what_close_reports(void **state)
{
    (void)state;
    close_error = ENOSPC;
    assert_int_equal(pl_file_append("f", "new\n", 4, 0644, NULL), -ENOSPC);
}

static void test_place_without_an_answer(void **state)
{
    (void)state;
    rename_error = ENOENT;
    assert_int_equal(pl_file_replace("f", "new\n", 4, 0644, NULL), 0);
    holds("new\n");
}

static void test_place_a_folder_without_an_answer(void **state)
{
    (void)state;
    assert_int_equal(mkdir("a", 0700), 0);
    assert_int_equal(mkdir("b", 0700), 0);
    rename_error = ENOENT;
    assert_int_equal(pl_file_place(AT_FDCWD, "a", "c"), 0);
    assert_int_equal(pl_file_replace("c/f", "", 0, 0644, NULL), 0);
    assert_int_equal(pl_file_place(AT_FDCWD, "b", "c"), -ENOTEMPTY); /* somebody else's */
    assert_int_equal(unlink("c/f") | rmdir("c") | rmdir("b"), 0);
}

static void test_place_that_failed(void **state)
{
    (void)state;
    rename_fails = EIO;
    assert_int_equal(pl_file_replace("f", "new\n", 4, 0644, NULL), -EIO);
    holds("old\n");
}

/* A file system that became read-only has not written what is asked for. */
static void test_sync_of_a_read_only_disk(void **state)
{
    (void)state;
    sync_error = EROFS;
    assert_int_equal(pl_file_write_atomic("f", "new\n", 4, 0644, NULL), -EROFS);
    assert_int_equal(pl_dir_sync(".", NULL, 0, NULL), -EROFS);
    holds("old\n");
}

static void test_append_ends_a_line_that_was_cut(void **state)
{
    (void)state;
    assert_int_equal(pl_file_replace("f", "one\ntw", 6, 0644, NULL), 0);
    assert_int_equal(pl_file_append("f", "three\n", 6, 0644, NULL), 0);
    assert_int_equal(pl_file_append("f", "", 0, 0644, NULL), 0);
    assert_int_equal(pl_file_append("f", "four\n", 5, 0644, NULL), 0);
    holds("one\ntw\nthree\nfour\n");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(test_replace_tells_what_close_reports, set_up),
        cmocka_unit_test_setup(test_append_tells_what_close_reports, set_up),
        cmocka_unit_test_setup(test_place_without_an_answer, set_up),
        cmocka_unit_test_setup(test_place_a_folder_without_an_answer, set_up),
        cmocka_unit_test_setup(test_place_that_failed, set_up),
        cmocka_unit_test_setup(test_sync_of_a_read_only_disk, set_up),
        cmocka_unit_test_setup(test_append_ends_a_line_that_was_cut, set_up),
    };

    return cmocka_run_group_tests(tests, make_top, remove_top);
}
