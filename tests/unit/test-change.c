/* SPDX-License-Identifier: MIT */
#include "common/base/fs.h"
#include "launcher/plsubmit/change.h"
#include "tests/lib/tmpdir.h"

#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#include <cmocka.h>

static bool has_locks = true; /* the file system */
static bool other_host;       /* calls that host */

/* In place of libc's, in this program: locks of NFS. That of a folder is of one host only. */
int flock(int fd, int how)
{
    struct stat st;
    bool is_folder = fstat(fd, &st) == 0 && S_ISDIR(st.st_mode);
    int error = is_folder                                      ? 0
                : !has_locks                                   ? ENOLCK
                : (fcntl(fd, F_GETFL) & O_ACCMODE) == O_RDONLY ? EBADF
                                                               : 0;

    if (is_folder && other_host)
        return 0;
    errno = error;
    return error ? -1 : (int)syscall(SYS_flock, fd, how);
}

static void unlock(int locks[2])
{
    for (int i = 0; i < 2; i++) {
        pl_closep(&locks[i]);
        locks[i] = -EBADF;
    }
}

static void is_busy(const char *dir)
{
    int locks[2] = {-EBADF, -EBADF};
    struct pl_error err = {0};

    assert_int_equal(pl_change_lock(dir, locks, &err), -EBUSY);
    assert_non_null(strstr(pl_error_text(&err), "another plsubmit changes"));
    assert_int_equal(locks[0], -EBADF);
    assert_int_equal(locks[1], -EBADF);
}

static char *make_folder(char *dir, size_t size)
{
    char *key;

    assert_int_equal(tmpdir_make(dir, size), 0);
    key = pl_path_join(dir, "key");
    assert_int_equal(pl_file_replace(key, "", 0, 0600, NULL), 0);
    return key;
}

static void test_lock_between_hosts(void **state)
{
    int first[2] = {-EBADF, -EBADF}, second[2] = {-EBADF, -EBADF};
    struct pl_error err = {0};
    _cleanup_free_ char *key = NULL;
    char dir[64];

    key = make_folder(dir, sizeof(dir));
    assert_int_equal(pl_change_lock(dir, first, &err), 0);
    is_busy(dir);
    other_host = true;
    is_busy(dir);
    unlock(first);
    assert_int_equal(pl_change_lock(dir, second, &err), 0);
    other_host = false;
    is_busy(dir);
    unlock(second);
    assert_int_equal(tmpdir_remove(dir), 0);
}

/* As a release does that locks nothing else, or one plsubmit on a server that refuses locks for a
 * moment. */
static void test_lock_of_the_folder_alone(void **state)
{
    int first[2] = {-EBADF, -EBADF};
    struct pl_error err = {0};
    _cleanup_free_ char *key = NULL;
    char dir[64];

    key = make_folder(dir, sizeof(dir));
    first[0] = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    assert_int_equal(flock(first[0], LOCK_EX | LOCK_NB), 0);
    is_busy(dir);
    unlock(first);
    has_locks = false;
    assert_int_equal(pl_change_lock(dir, first, &err), 0);
    has_locks = true;
    is_busy(dir);
    unlock(first);
    assert_int_equal(pl_change_lock(dir, first, &err), 0);
    has_locks = false;
    is_busy(dir);
    has_locks = true;
    unlock(first);
    assert_int_equal(tmpdir_remove(dir), 0);
}

/* As a release does that locks nothing else. */
static void test_lock_of_the_key_alone(void **state)
{
    _cleanup_free_ char *key = NULL;
    _cleanup_close_ int fd = -EBADF;
    char dir[64];

    key = make_folder(dir, sizeof(dir));
    fd = open(key, O_RDWR | O_CLOEXEC);
    assert_int_equal(flock(fd, LOCK_EX | LOCK_NB), 0);
    is_busy(dir);
    assert_int_equal(tmpdir_remove(dir), 0);
}

/* The message of a command of Slurm that ends with 1 and has written this to stderr. */
static void says(const char *text, int want, bool want_ended)
{
    const char *argv[] = {"sh", "-c", "printf %s \"$0\" >&2; exit 1", text, NULL};
    struct pl_error err = {0};
    bool ended = !want_ended;

    assert_int_equal(pl_change_command(argv, &ended, &err), want);
    assert_int_equal(ended, want_ended);
}

static void test_command(void **state)
{
    says("Invalid job id specified for job 12\n", 0, true);
    says("12_0: Job has already finished\n", 0, true);
    says("Access/permission denied for job 12\n", -EREMOTEIO, false);
    /* An array of which some tasks have ended: Slurm has changed the others. */
    says("12_[2-9]: No error\n12_[0-1]: Job has already finished\n", 0, false);
    says("12_[0-1]: Job has already finished\n12_[2-9]: No error\n", 0, false);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_lock_between_hosts), cmocka_unit_test(test_lock_of_the_folder_alone),
        cmocka_unit_test(test_lock_of_the_key_alone), cmocka_unit_test(test_command)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
