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

/* In place of libc's, in this program: locks of NFS. That of a folder is of one host only. */
int flock(int fd, int how)
{
    struct stat st;
    int error = !has_locks ? ENOLCK : (fcntl(fd, F_GETFL) & O_ACCMODE) == O_RDONLY ? EBADF : 0;

    if (fstat(fd, &st) == 0 && S_ISDIR(st.st_mode))
        return 0;
    errno = error;
    return error ? -1 : (int)syscall(SYS_flock, fd, how);
}

static void test_lock_between_hosts(void **state)
{
    _cleanup_close_ int first = -EBADF, second = -EBADF;
    _cleanup_free_ char *key = NULL;
    struct pl_error err = {0};
    char dir[64];

    assert_int_equal(tmpdir_make(dir, sizeof(dir)), 0);
    key = pl_path_join(dir, "key");
    assert_int_equal(pl_file_replace(key, "", 0, 0600, NULL), 0);
    assert_int_equal(pl_change_lock(dir, &first, &err), 0);
    assert_int_equal(pl_change_lock(dir, &second, &err), -EBUSY);
    assert_non_null(strstr(pl_error_text(&err), "another plsubmit changes"));
    pl_closep(&first);
    first = -EBADF;
    assert_int_equal(pl_change_lock(dir, &second, &err), 0);
    has_locks = false;
    assert_int_equal(pl_change_lock(dir, &first, &err), 0);
    has_locks = true;
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
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_lock_between_hosts),
                                       cmocka_unit_test(test_command)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
