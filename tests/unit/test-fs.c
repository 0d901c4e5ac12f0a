/* SPDX-License-Identifier: MIT */
#include "common/base/close_from_private.h"
#include "common/base/fs.h"
#include "tests/lib/tmpdir.h"

#include <dirent.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <cmocka.h>

static char top[64];

static int make_top(void **state)
{
    umask(022);
    return tmpdir_make(top, sizeof(top)) < 0 || chdir(top) < 0;
}

static int remove_top(void **state)
{
    return chdir("/") < 0 || tmpdir_remove(top) < 0;
}

static mode_t mode_of(const char *path)
{
    struct stat st;

    assert_int_equal(lstat(path, &st), 0);
    return st.st_mode & 07777;
}

/* Entries of the current folder, so that a temporary file left behind shows. */
static unsigned count_names(void)
{
    unsigned n = 0;
    DIR *dir = opendir(".");

    assert_non_null(dir);
    while (readdir(dir))
        n++;
    closedir(dir);
    return n - 2; /* . and .. */
}

static void test_path_join_forms(void **state)
{
    static const char *const rows[][3] = {
        {"a", "b", "a/b"}, {"a/", "b", "a/b"}, {"/", "b", "/b"}, {"a", "/b", "/b"}, {"", "b", "b"}};

    for (size_t i = 0; i < PL_COUNT(rows); i++) {
        _cleanup_free_ char *s = pl_path_join(rows[i][0], rows[i][1]);

        assert_string_equal(s, rows[i][2]);
    }
}

static void test_mkdir_p_forms(void **state)
{
    struct pl_error err = {0};

    assert_int_equal(pl_mkdir_p("a/b//c/", 0750, &err), 0);
    assert_int_equal(mode_of("a/b/c"), 0750);
    assert_int_equal(pl_mkdir_p("a/b", 0700, &err), 0); /* there already: kept as it is */
    assert_int_equal(mode_of("a/b"), 0750);
    assert_int_equal(pl_mkdir_p("/", 0700, &err), 0);
    assert_int_equal(pl_mkdir_p(".", 0700, &err), 0);
    assert_true(pl_mkdir_p("", 0700, &err) < 0);
    assert_int_equal(pl_file_append("file", "x", 1, 0644, &err), 0);
    assert_int_equal(pl_mkdir_p("file", 0700, &err), -ENOTDIR);
    assert_int_equal(pl_mkdir_p("file/x", 0700, &err), -ENOTDIR);
    assert_non_null(strstr(err.text, "file"));
}

static void test_mkdir_private_checks(void **state)
{
    struct pl_error err = {0};

    umask(0);
    assert_int_equal(pl_mkdir_private("p", &err), 0);
    assert_int_equal(mode_of("p"), 0700);
    assert_int_equal(pl_mkdir_private("p", &err), 0);
    chmod("p", 0710);
    assert_int_equal(pl_mkdir_private("p", &err), -EPERM);
    assert_non_null(strstr(err.text, "chmod 700"));
    assert_int_equal(symlink("p", "link"), 0);
    chmod("p", 0700);
    assert_int_equal(pl_mkdir_private("link", &err), -ENOTDIR);
    assert_int_equal(pl_mkdir_private("none/p", &err), -ENOENT);
    if (geteuid() == 0) {
        assert_int_equal(chown("p", 12345, 12345), 0);
        assert_int_equal(pl_mkdir_private("p", &err), -EPERM);
        assert_non_null(strstr(err.text, "12345"));
    }
    umask(022);
}

static void test_file_read_limits(void **state)
{
    struct pl_error err = {0};
    char *text = NULL;
    size_t len;

    assert_int_equal(pl_file_append("f", "ab\0cd", 5, 0644, &err), 0);
    assert_int_equal(pl_file_read("f", 5, &text, &len, &err), 0);
    assert_int_equal(len, 5);
    assert_memory_equal(text, "ab\0cd", 6);
    free(PL_TAKE(text));
    assert_int_equal(pl_file_read("f", 4, &text, &len, &err), -EFBIG);
    assert_int_equal(pl_file_read("none", 4, &text, &len, &err), -ENOENT);
    assert_int_equal(pl_file_read(".", 4, &text, &len, &err), -EINVAL);
    assert_int_equal(mkfifo("fifo", 0600), 0);
    assert_int_equal(pl_file_read("fifo", 4, &text, &len, &err), -EINVAL); /* and does not hang */
    assert_null(text);
    assert_int_equal(pl_file_append("empty", "", 0, 0644, &err), 0);
    assert_int_equal(pl_file_read("empty", 0, &text, NULL, &err), 0);
    assert_string_equal(text, "");
    free(PL_TAKE(text));
    /* No size of its own, so it is counted while it is read. */
    assert_int_equal(pl_file_read("/proc/self/maps", 100, &text, NULL, &err), -EFBIG);
    assert_int_equal(pl_file_read("/proc/self/maps", 1 << 24, &text, NULL, &err), 0);
    free(text);
}

static void test_file_write_atomic_mode(void **state)
{
    struct pl_error err = {0};
    struct stat before, after;
    char *text;

    assert_int_equal(pl_file_write_atomic("f", "one", 3, 0666, &err), 0);
    assert_int_equal(mode_of("f"), 0644);
    assert_int_equal(stat("f", &before), 0);
    assert_int_equal(pl_file_write_atomic("f", "two!", 4, 0600, &err), 0);
    assert_int_equal(stat("f", &after), 0);
    assert_true(before.st_ino != after.st_ino); /* a reader keeps the old one, whole */
    assert_int_equal(pl_file_read("f", 99, &text, NULL, &err), 0);
    assert_string_equal(text, "two!");
    free(text);
    assert_int_equal(mkdir("d", 0755), 0);
    assert_int_equal(mkdir("d/x", 0755), 0);
    assert_int_equal(pl_file_replace("f", "three", 5, 0600, &err), 0);
    assert_int_equal(pl_dir_sync(".", (const char *const[]){"f"}, 1, &err), 0);
    assert_int_equal(pl_dir_sync(".", (const char *const[]){"f", "none"}, 2, &err), -ENOENT);
    assert_int_equal(pl_dir_sync("none", NULL, 0, &err), -ENOENT);
    assert_true(pl_file_write_atomic("d", "x", 1, 0600, &err) < 0);
    assert_int_equal(pl_file_write_atomic("none/f", "x", 1, 0600, &err), -ENOENT);
    assert_int_equal(count_names(), 2); /* nothing left behind */
}

/* The part of a line that fitted on a full disk stays a line of its own. */
static void test_file_append_after_a_torn_line(void **state)
{
    struct pl_error err = {0};
    char *text;

    assert_int_equal(pl_file_append("torn", "", 0, 0644, &err), 0);
    assert_int_equal(pl_file_append("torn", "one\n", 4, 0644, &err), 0);
    assert_int_equal(pl_file_append("torn", "tw", 2, 0644, &err), 0);
    assert_int_equal(pl_file_append("torn", "three\n", 6, 0644, &err), 0);
    assert_int_equal(pl_file_read("torn", 99, &text, NULL, &err), 0);
    assert_string_equal(text, "one\ntw\nthree\n");
    free(text);
}

static void test_file_append_whole_lines(void **state)
{
    struct pl_error err = {0};
    enum { WRITERS = 6, LINES = 1000 }; /* many a line goes over the end of a page */
    char *text, *line, *next;
    unsigned n = 0;

    for (int w = 0; w < WRITERS; w++)
        if (fork() == 0) {
            char row[100];

            memset(row, 'a' + w, sizeof(row));
            row[99] = '\n';
            for (int i = 0; i < LINES; i++)
                if (pl_file_append("log", row, sizeof(row), 0644, NULL) < 0)
                    _exit(1);
            _exit(0);
        }
    for (int w = 0; w < WRITERS; w++) {
        int status;

        assert_true(wait(&status) > 0);
        assert_int_equal(status, 0);
    }
    assert_int_equal(pl_file_read("log", 1 << 20, &text, NULL, &err), 0);
    for (line = text; *line; line = next + 1, n++) {
        next = strchr(line, '\n');
        assert_int_equal(next - line, 99);
        assert_int_equal(strspn(line, (char[]){line[0], '\0'}), 99);
    }
    assert_int_equal(n, WRITERS * LINES);
    free(text);
}

static void put_key(const char *path, size_t len, mode_t mode)
{
    char data[64] = "0123456789abcdef0123456789abcdef";

    unlink(path);
    assert_int_equal(pl_file_append(path, data, len, mode, NULL), 0);
    assert_int_equal(chmod(path, mode), 0);
}

static void test_secret_read_permissions(void **state)
{
    static const mode_t bad[] = {0640, 0604, 0660, 0601, 0610, 0777, 0644, 04640};
    struct pl_error err = {0};
    char key[33] = {0};

    put_key("key", 32, 0600);
    assert_int_equal(pl_secret_read("key", key, 32, &err), 0);
    assert_string_equal(key, "0123456789abcdef0123456789abcdef");
    put_key("key", 32, 0400);
    assert_int_equal(pl_secret_read("key", key, 32, &err), 0);
    for (size_t i = 0; i < PL_COUNT(bad); i++) {
        put_key("key", 32, bad[i]);
        assert_int_equal(pl_secret_read("key", key, 32, &err), -EPERM);
        assert_non_null(strstr(err.text, "chmod 600"));
    }
}

static void test_secret_read_planted(void **state)
{
    struct pl_error err = {0};
    char key[33];

    put_key("key", 32, 0600);
    assert_int_equal(symlink("key", "link"), 0);
    assert_true(pl_secret_read("link", key, 32, &err) < 0);
    assert_int_equal(mkfifo("fifo", 0600), 0);
    assert_int_equal(pl_secret_read("fifo", key, 32, &err), -EPERM); /* and does not hang */
    assert_int_equal(mkdir("d", 0700), 0);
    assert_int_equal(pl_secret_read("d", key, 32, &err), -EPERM);
    assert_int_equal(link("key", "second"), 0);
    assert_int_equal(link("key", "third"), 0);
    assert_int_equal(pl_secret_read("key", key, 32, &err), -EPERM);
    assert_int_equal(pl_secret_read("none", key, 32, &err), -ENOENT);
    if (geteuid() == 0) {
        put_key("theirs", 32, 0600);
        assert_int_equal(chown("theirs", 12345, 12345), 0);
        assert_int_equal(pl_secret_read("theirs", key, 32, &err), -EPERM);
    }
}

static void test_secret_read_length(void **state)
{
    struct pl_error err = {0};
    char key[64];

    put_key("key", 31, 0600);
    assert_int_equal(pl_secret_read("key", key, 32, &err), -EINVAL);
    put_key("key", 33, 0600);
    assert_int_equal(pl_secret_read("key", key, 32, &err), -EINVAL);
    put_key("key", 0, 0600);
    assert_int_equal(pl_secret_read("key", key, 32, &err), -EINVAL);
    assert_non_null(strstr(err.text, "32 bytes"));
}

/* Many makers at once: one wins, all read the same. */
static void test_secret_create_race(void **state)
{
    enum { MAKERS = 16 };
    int pipes[2];
    char first[32], other[32];

    assert_int_equal(pipe2(pipes, O_CLOEXEC), 0);
    for (int i = 0; i < MAKERS; i++)
        if (fork() == 0) {
            char mine[32], got[32];

            memset(mine, 'a' + i, sizeof(mine));
            if (pl_secret_create("key", mine, 32, NULL) < 0 ||
                pl_secret_read("key", got, 32, NULL) < 0 || write(pipes[1], got, 32) != 32)
                _exit(1);
            _exit(0);
        }
    close(pipes[1]);
    for (int i = 0; i < MAKERS; i++) {
        int status;

        assert_true(wait(&status) > 0);
        assert_int_equal(status, 0);
        assert_int_equal(read(pipes[0], i ? other : first, 32), 32);
        if (i)
            assert_memory_equal(first, other, 32);
    }
    close(pipes[0]);
    assert_int_equal(mode_of("key"), 0600);
    assert_int_equal(count_names(), 1);
}

static void test_home_dir_choice(void **state)
{
    struct pl_error err = {0};
    _cleanup_free_ char *a = NULL, *b = NULL;
    char home[128];

    snprintf(home, sizeof(home), "%s/mine", top);
    setenv("PLUME_HOME", home, 1);
    a = pl_home_dir(&err);
    assert_string_equal(a, home);
    assert_int_equal(mode_of(home), 0700);
    unsetenv("PLUME_HOME");
    setenv("HOME", top, 1);
    b = pl_home_dir(&err);
    assert_string_equal(b + strlen(top), "/.plume");
    chmod(b, 0755);
    assert_null(pl_home_dir(&err));
    assert_int_equal(err.code, -EPERM);
    assert_null(strstr(err.text, "PLUME_HOME")); /* another folder is not the way */
}

/* As on a node that does not have the users' homes. */
static void test_home_dir_missing(void **state)
{
    struct pl_error err = {0};
    char home[128];

    snprintf(home, sizeof(home), "%s/not/there", top);
    setenv("HOME", home, 1);
    assert_null(pl_home_dir(&err));
    assert_int_equal(err.code, -ENOENT);
    assert_non_null(
        strstr(err.text, "set PLUME_HOME to a folder that all nodes share: cannot make"));
}

static void test_send_fds_with_data(void **state)
{
    int pair[2], fds[2], got[4], pipes[2];
    char data[16] = {0};
    size_t n = 0;

    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
    assert_int_equal(pipe2(pipes, 0), 0);
    fds[0] = pipes[0];
    fds[1] = pipes[1];
    assert_int_equal(pl_send_fds(pair[0], "hello", 5, fds, 2), 0);
    assert_int_equal(pl_recv_fds(pair[1], data, sizeof(data), got, 4, &n), 5);
    assert_int_equal(n, 2);
    assert_string_equal(data, "hello");
    for (int i = 0; i < 2; i++)
        assert_true(fcntl(got[i], F_GETFD) & FD_CLOEXEC);
    assert_int_equal(write(got[1], "x", 1), 1);
    assert_int_equal(read(pipes[0], data, 1), 1);
    for (int i = 0; i < 2; i++) {
        close(got[i]);
        close(pipes[i]);
    }
    assert_int_equal(pl_send_fds(pair[0], "x", 1, fds, 5), -EINVAL);
    close(pair[0]);
    assert_int_equal(pl_recv_fds(pair[1], data, sizeof(data), got, 4, &n), 0);
    assert_int_equal(pl_send_fds(pair[1], "x", 1, NULL, 0), -EPIPE); /* and no SIGPIPE */
    close(pair[1]);
}

static unsigned count_fds(void)
{
    unsigned n = 0;

    for (int fd = 0; fd < 256; fd++)
        n += fcntl(fd, F_GETFD) >= 0;
    return n;
}

/* More descriptors than asked for must not stay open. */
static void test_recv_fds_too_many(void **state)
{
    int pair[2], fds[4] = {0, 0, 0, 0}, got[1];
    unsigned before;
    char data[4];
    size_t n;

    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair), 0);
    before = count_fds();
    assert_int_equal(pl_recv_fds(pair[1], data, sizeof(data), got, 1, &n), -EAGAIN);
    assert_int_equal(pl_send_fds(pair[0], "x", 1, fds, 4), 0);
    assert_int_equal(pl_recv_fds(pair[1], data, sizeof(data), got, 1, &n), 1);
    assert_int_equal(n, 1);
    close(got[0]);
    assert_int_equal(count_fds(), before);
    close(pair[0]);
    close(pair[1]);
}

static void test_write_all_reports(void **state)
{
    int fd = open("/dev/full", O_WRONLY | O_CLOEXEC);

    assert_int_equal(pl_write_all(fd, "x", 1), -ENOSPC);
    assert_int_equal(pl_write_all(fd, "", 0), 0);
    close(fd);
    assert_int_equal(pl_write_all(fd, "x", 1), -EBADF);
}

static void test_close_from_keeps(void **state)
{
    pid_t pid = fork();
    int status;

    if (pid == 0) {
        int keep[] = {40, 50, 51};

        for (int fd = 30; fd < 60; fd++)
            dup2(0, fd);
        pl_close_from(30, keep, 3);
        for (int fd = 30; fd < 60; fd++) {
            int open_now = fcntl(fd, F_GETFD) >= 0;

            if (open_now != (fd == 40 || fd == 50 || fd == 51))
                _exit(fd);
        }
        _exit(fcntl(2, F_GETFD) < 0);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
}

/* A file that a program opens never gets the number of a descriptor that its caller has closed. */
static void test_std_open_of_closed(void **state)
{
    for (int closed = 0; closed < 8; closed++) {
        pid_t pid = fork();
        int status;

        if (pid == 0) {
            for (int fd = 0; fd < 3; fd++)
                if (closed & 1 << fd)
                    close(fd);
            pl_std_open();
            for (int fd = 0; fd < 3; fd++) {
                int flags = fcntl(fd, F_GETFL);

                if (flags < 0)
                    _exit(1);
                if (closed & 1 << fd && (flags & O_ACCMODE) != (fd ? O_RDONLY : O_WRONLY))
                    _exit(2);
            }
            _exit(open("/dev/null", O_RDONLY | O_CLOEXEC) > 2 ? 0 : 3);
        }
        assert_int_equal(waitpid(pid, &status, 0), pid);
        assert_int_equal(status, 0);
    }
}

/* Without close_range(2), far above the descriptors that a short loop would try. */
static void test_close_from_old_kernel(void **state)
{
    pid_t pid = fork();
    int status;

    if (pid == 0) {
        struct rlimit limit;
        int keep[] = {40}, high;

        limit = (struct rlimit){80000, 80000}; /* root may */
        setrlimit(RLIMIT_NOFILE, &limit);
        getrlimit(RLIMIT_NOFILE, &limit);
        high = limit.rlim_max > 70000 ? 70000 : (int)limit.rlim_max - 1;
        limit.rlim_cur = limit.rlim_max;
        setrlimit(RLIMIT_NOFILE, &limit);
        if (dup2(0, high) < 0 || dup2(0, 40) < 0 || dup2(0, 41) < 0)
            _exit(1);
        limit.rlim_cur = 64; /* open descriptors may lie above the limit */
        setrlimit(RLIMIT_NOFILE, &limit);
        pl_close_from_slow(30, keep, 1);
        _exit(fcntl(high, F_GETFD) >= 0 ? 2 : fcntl(41, F_GETFD) >= 0 ? 3 : fcntl(40, F_GETFD) < 0);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
}

#define IN_TOP(f) cmocka_unit_test_setup_teardown(f, make_top, remove_top)

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_path_join_forms),
        IN_TOP(test_mkdir_p_forms),
        IN_TOP(test_mkdir_private_checks),
        IN_TOP(test_file_read_limits),
        IN_TOP(test_file_write_atomic_mode),
        IN_TOP(test_file_append_after_a_torn_line),
        IN_TOP(test_file_append_whole_lines),
        IN_TOP(test_secret_read_permissions),
        IN_TOP(test_secret_read_planted),
        IN_TOP(test_secret_read_length),
        IN_TOP(test_secret_create_race),
        IN_TOP(test_home_dir_choice),
        IN_TOP(test_home_dir_missing),
        cmocka_unit_test(test_send_fds_with_data),
        cmocka_unit_test(test_recv_fds_too_many),
        cmocka_unit_test(test_write_all_reports),
        cmocka_unit_test(test_close_from_keeps),
        cmocka_unit_test(test_close_from_old_kernel),
        cmocka_unit_test(test_std_open_of_closed),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
