/* SPDX-License-Identifier: MIT */
/* Files that several hosts use at the same time. The calls below stand in for libc's, in this
 * program: they answer as the client of a network file system does. */
#include "common/base/fs.h"
#include "common/base/shared_fs.h"
#include "tests/lib/tmpdir.h"

#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include <cmocka.h>

#define HOSTS 4
#define LINES 100

static char top[64];
static bool unseen;    /* "late" was looked for before another host made it */
static int append_fd;  /* open with O_APPEND */
static off_t known;    /* its size, as the client knows it */
static bool has_locks; /* the file system */

static off_t real_size(int fd)
{
    struct stat st;

    assert_int_equal(fstat(fd, &st), 0);
    return st.st_size;
}

int open(const char *path, int flags, ...)
{
    va_list ap;
    int fd;

    va_start(ap, flags);
    fd = unseen && strcmp(path, "late") == 0
             ? -ENOENT
             : (int)syscall(SYS_openat, AT_FDCWD, path, flags & ~O_APPEND, va_arg(ap, unsigned));
    va_end(ap);
    if (fd == -ENOENT)
        errno = ENOENT;
    if (fd < 0)
        return -1;
    unseen = unseen && !(flags & O_DIRECTORY);
    if (flags & O_APPEND) {
        append_fd = fd;
        known = real_size(fd);
    }
    return fd;
}

int access(const char *path, int how)
{
    errno = ENOENT;
    return unseen && strcmp(path, "late") == 0 ? -1 : (int)syscall(SYS_access, path, how);
}

int flock(int fd, int how)
{
    int r = has_locks ? (int)syscall(SYS_flock, fd, how) : -1;

    if (!has_locks)
        errno = ENOLCK;
    if (r == 0 && fd == append_fd)
        known = real_size(fd);
    return r;
}

off_t lseek(int fd, off_t at, int whence)
{
    return fd == append_fd && whence == SEEK_END ? known + at
                                                 : (off_t)syscall(SYS_lseek, fd, at, whence);
}

ssize_t write(int fd, const void *data, size_t len)
{
    ssize_t n =
        fd == append_fd ? pwrite(fd, data, len, known) : (ssize_t)syscall(SYS_write, fd, data, len);

    known += fd == append_fd && n > 0 ? n : 0;
    return n;
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
    append_fd = -1;
    has_locks = true;
    unseen = false;
    unlink("f");
    return pl_file_replace("late", "late\n", 5, 0644, NULL);
}

static void test_read_of_another_hosts_file(void **state)
{
    _cleanup_free_ char *text = NULL;

    (void)state;
    unseen = true;
    assert_int_equal(pl_file_read("late", 100, &text, NULL, NULL), 0);
    assert_string_equal(text, "late\n");
    assert_int_equal(pl_file_read("none", 100, &text, NULL, NULL), -ENOENT);
    assert_int_equal(pl_file_read("none/late", 100, &text, NULL, NULL), -ENOENT);
}

static void test_look_for_another_hosts_file(void **state)
{
    (void)state;
    unseen = true;
    assert_int_equal(pl_file_look("late"), 0);
    assert_int_equal(pl_file_look("none"), -ENOENT);
    assert_int_equal(pl_file_look("none/late"), -ENOENT);
    assert_int_equal(pl_file_look("late/f"), -ENOTDIR);
}

static void append_lines(int host)
{
    char line[32];

    for (int i = 0; i < LINES; i++) {
        snprintf(line, sizeof(line), "host %d line %d\n", host, i);
        if (pl_file_append("f", line, strlen(line), 0644, NULL) < 0)
            _exit(1);
    }
    _exit(0);
}

static void test_append_of_many_hosts(void **state)
{
    _cleanup_free_ char *text = NULL;
    int status;

    (void)state;
    for (int host = 0; host < HOSTS; host++) {
        pid_t pid = fork();

        assert_true(pid >= 0);
        if (pid == 0)
            append_lines(host);
    }
    for (int host = 0; host < HOSTS; host++)
        assert_true(wait(&status) > 0 && status == 0);
    assert_int_equal(pl_file_read("f", 1 << 20, &text, NULL, NULL), 0);
    for (int host = 0; host < HOSTS; host++)
        for (int i = 0; i < LINES; i++) {
            char line[32];

            snprintf(line, sizeof(line), "host %d line %d\n", host, i);
            if (!strstr(text, line))
                fail_msg("no %s", line);
        }
}

static void test_append_without_locks(void **state)
{
    _cleanup_free_ char *text = NULL;

    (void)state;
    has_locks = false;
    assert_int_equal(pl_file_append("f", "1\n", 2, 0644, NULL), 0);
    assert_int_equal(pl_file_append("f", "2\n", 2, 0644, NULL), 0);
    assert_int_equal(pl_file_read("f", 100, &text, NULL, NULL), 0);
    assert_string_equal(text, "1\n2\n");
}

static void test_lock_of_another_process(void **state)
{
    _cleanup_close_ int held = open("late", O_RDWR | O_CLOEXEC);
    _cleanup_close_ int fd = open("late", O_RDWR | O_CLOEXEC);

    (void)state;
    assert_int_equal(pl_file_lock(held, 0), 0);
    assert_int_equal(pl_file_lock(fd, 20), -ETIMEDOUT);
    pl_closep(&held);
    held = -EBADF;
    assert_int_equal(pl_file_lock(fd, 20), 0);
    has_locks = false;
    assert_int_equal(pl_file_lock(fd, 20), -ENOLCK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(test_read_of_another_hosts_file, set_up),
        cmocka_unit_test_setup(test_look_for_another_hosts_file, set_up),
        cmocka_unit_test_setup(test_append_of_many_hosts, set_up),
        cmocka_unit_test_setup(test_append_without_locks, set_up),
        cmocka_unit_test_setup(test_lock_of_another_process, set_up),
    };

    return cmocka_run_group_tests(tests, make_top, remove_top);
}
