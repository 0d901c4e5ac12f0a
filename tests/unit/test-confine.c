/* SPDX-License-Identifier: MIT */
/* The confinement of the node daemon: each case tries what a daemon in a stranger's hand would try,
 * in a process of its own. */
#include "common/base/fs.h"
#include "runtime/plrund/daemon/confine.h"
#include "tests/lib/tmpdir.h"

#include <fcntl.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <string.h>
#include <sys/msg.h>
#include <sys/ptrace.h>
#include <sys/sem.h>
#include <sys/shm.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <sys/xattr.h>

#include <cmocka.h>

#define ALL_PASSED 42
#define NO_LANDLOCK 77

static char top[64], inside[80], outside[80];

static int try_open(const char *folder, const char *name, int flags)
{
    _cleanup_free_ char *path = pl_strf("%s/%s", folder, name);
    int fd = open(path, flags | O_CLOEXEC, 0600);

    if (fd < 0)
        return errno;
    close(fd);
    return 0;
}

/* The exit status of a program that a child runs; 126 if it cannot be run. */
static int run(const char *path, const char *word)
{
    pid_t pid = fork();
    int status;

    if (pid == 0) {
        execl(path, path, word, NULL);
        _exit(errno == EACCES ? 126 : 125);
    }
    return waitpid(pid, &status, 0) == pid && WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

/* Runs `attack` in a confined child: it returns the line of what went wrong, or 0. */
static void confined(int (*attack)(void), const char *program)
{
    struct pl_confine what = {.folders = {inside}, .programs = {NULL, program}};
    struct pl_error err = {0};
    int status, r;
    pid_t pid = fork();

    if (pid == 0) {
        r = pl_confine_apply(&what, &err);
        if (r < 0)
            _exit(r == -EOPNOTSUPP ? NO_LANDLOCK : 1);
        r = attack();
        if (r)
            fprintf(stderr, "test-confine.c:%d: errno %d\n", r, errno);
        _exit(r ? 1 : ALL_PASSED);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    if (WIFEXITED(status) && WEXITSTATUS(status) == NO_LANDLOCK) {
        print_message("# skipped: no landlock\n");
        return;
    }
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), ALL_PASSED);
}

#define WANT(condition)                                                                            \
    do {                                                                                           \
        if (!(condition))                                                                          \
            return __LINE__;                                                                       \
    } while (0)

static int write_inside(void)
{
    _cleanup_free_ char *a = pl_strf("%s/a", inside), *b = pl_strf("%s/b", inside),
                        *folder = pl_strf("%s/folder", inside);
    struct pl_error err = {0};

    WANT(pl_file_write_atomic(a, "x", 1, 0600, &err) == 0);
    WANT(truncate(a, 0) == 0 && rename(a, b) == 0 && unlink(b) == 0);
    WANT(mkdir(folder, 0700) == 0 && try_open(folder, "c", O_WRONLY | O_CREAT | O_TRUNC) == 0);
    WANT(try_open("/dev", "null", O_RDWR) == 0);
    WANT(try_open("/proc/self", "stat", O_RDONLY) == 0 && try_open(outside, "old", O_RDONLY) == 0);
    return 0;
}

static int write_outside(void)
{
    _cleanup_free_ char *old = pl_strf("%s/old", outside), *name = pl_strf("%s/new", outside),
                        *moved = pl_strf("%s/moved", inside), *link_to = pl_strf("%s/link", inside);

    WANT(try_open(outside, "old", O_WRONLY) == EACCES);
    WANT(try_open(outside, "old", O_RDONLY | O_TRUNC) == EACCES);
    WANT(try_open(outside, "new", O_WRONLY | O_CREAT) == EACCES);
    WANT(try_open(inside, "../outside/new", O_WRONLY | O_CREAT) == EACCES);
    WANT(truncate(old, 0) < 0 && errno == EACCES);
    WANT(unlink(old) < 0 && errno == EACCES);
    WANT(mkdir(name, 0700) < 0 && errno == EACCES);
    WANT(rename(old, moved) < 0 && (errno == EACCES || errno == EXDEV));
    /* a link that was there: its target counts */
    WANT(try_open(inside, "planted", O_WRONLY) == EACCES);
    WANT(symlink(old, link_to) < 0 && errno == EACCES);
    WANT(try_open("/dev/shm", "plume-test-confine", O_WRONLY | O_CREAT) != 0);
    WANT(try_open("/proc/self", "oom_score_adj", O_WRONLY) == EACCES);
    return 0;
}

static int run_programs(void)
{
    _cleanup_free_ char *copy = pl_strf("%s/copy", inside);

    WANT(run("/bin/true", NULL) == 0);
    WANT(run("/bin/sh", NULL) == 126);
    WANT(run("/usr/bin/env", NULL) == 126);
    WANT(run(copy, NULL) == 126); /* what it has written itself */
    return 0;
}

static int reach_others(void)
{
    _cleanup_free_ char *parent = pl_strf("/proc/%d", (int)getppid());
    int fd, pair[2];

    WANT(try_open(parent, "stat", O_RDONLY) == 0 && kill(getppid(), 0) == 0);
    WANT(try_open(parent, "mem", O_RDONLY) == EACCES);
    WANT(ptrace(PTRACE_SEIZE, getppid(), 0, 0) < 0 && errno == EPERM);
    WANT(syscall(SYS_process_vm_readv, getppid(), NULL, 0, NULL, 0, 0) < 0 && errno == EPERM);
    WANT(syscall(SYS_memfd_create, "x", 0) < 0 && errno == EPERM);
    WANT(syscall(SYS_unshare, 0x10000000 /* CLONE_NEWUSER */) < 0 && errno == EPERM);
    WANT(syscall(SYS_bpf, 0, NULL, 0) < 0 && errno == EPERM);
    WANT(syscall(SYS_io_uring_setup, 1, NULL) < 0 && errno == ENOSYS);
    WANT(socket(AF_PACKET, SOCK_RAW, 0) < 0 && errno == EAFNOSUPPORT);
    WANT(socket(AF_ALG, SOCK_SEQPACKET, 0) < 0 && errno == EAFNOSUPPORT);
    for (int family = 0, n = 0; family < 4; family++) {
        static const int allowed[] = {AF_UNIX, AF_INET, AF_INET6, AF_NETLINK};

        fd = socket(allowed[family], family == 3 ? SOCK_RAW : SOCK_STREAM, 0);
        n += fd >= 0;
        WANT(fd >= 0 || allowed[family] == AF_INET6); /* a kernel may be without */
        WANT(family < 3 || n >= 3);
        close(fd);
    }
    WANT(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
    return 0;
}

/* Nobody else gets at the user's files by a new mode, owner or access list. */
static int change_modes(void)
{
    _cleanup_free_ char *old = pl_strf("%s/old", outside);
    _cleanup_close_ int fd = open(old, O_RDONLY | O_CLOEXEC);
    struct stat st;

    WANT(fd >= 0);
    WANT(chmod(old, 0666) < 0 && errno == EPERM);
    WANT(fchmod(fd, 0666) < 0 && errno == EPERM);
    WANT(fchmodat(AT_FDCWD, old, 0666, 0) < 0 && errno == EPERM);
    WANT(syscall(452 /* fchmodat2 */, AT_FDCWD, old, 0666, 0) < 0 && errno == EPERM);
    WANT(chown(old, geteuid(), getegid()) < 0 && errno == EPERM);
    WANT(lchown(old, geteuid(), getegid()) < 0 && errno == EPERM);
    WANT(fchown(fd, geteuid(), getegid()) < 0 && errno == EPERM);
    WANT(setxattr(old, "user.plume", "x", 1, 0) < 0 && errno == EPERM);
    WANT(fsetxattr(fd, "user.plume", "x", 1, 0) < 0 && errno == EPERM);
    WANT(stat(old, &st) == 0 && (st.st_mode & 07777) == 0600);
    return 0;
}

/* A child in namespaces of its own would have all capabilities there. */
static int make_namespaces(void)
{
    static const unsigned long flags[] = {CLONE_NEWUSER, CLONE_NEWNS, CLONE_NEWNET, CLONE_NEWPID,
                                          CLONE_NEWUSER | CLONE_NEWNS};
    pid_t pid;

    for (size_t i = 0; i < PL_COUNT(flags); i++) {
        pid = (pid_t)syscall(SYS_clone, flags[i] | SIGCHLD, NULL, NULL, NULL, NULL);
        if (pid == 0)
            _exit(0);
        WANT(pid < 0 && errno == EPERM);
    }
    WANT(syscall(435 /* clone3 */, NULL, 0) < 0 && errno == ENOSYS);
    WANT(run("/bin/true", NULL) == 0);
    return 0;
}

static int child_of_confined(void)
{
    int status;
    pid_t pid = fork();

    if (pid == 0)
        _exit(write_outside() ? 1 : 0);
    WANT(waitpid(pid, &status, 0) == pid && status == 0);
    return 0;
}

static void test_apply_writes_inside(void **state)
{
    confined(write_inside, "/bin/true");
}

static void test_apply_writes_nowhere_else(void **state)
{
    confined(write_outside, "/bin/true");
    confined(child_of_confined, "/bin/true");
}

static void test_apply_changes_no_mode(void **state)
{
    confined(change_modes, "/bin/true");
}

static void test_apply_makes_no_namespace(void **state)
{
    confined(make_namespaces, "/bin/true");
}

/* Shared memory, semaphores and queues of the user's other programs are no files. */
static int reach_ipc(void)
{
    WANT(shmget(0x706c, 4096, IPC_CREAT | 0600) < 0 && errno == EPERM);
    WANT(shmat(0, NULL, 0) == (void *)-1 && errno == EPERM);
    WANT(semget(0x706c, 1, IPC_CREAT | 0600) < 0 && errno == EPERM);
    WANT(msgget(0x706c, IPC_CREAT | 0600) < 0 && errno == EPERM);
    WANT(syscall(SYS_mq_open, "plume-test-confine", O_CREAT | O_RDWR, 0600, NULL) < 0 &&
         errno == EPERM);
    return 0;
}

static void test_apply_reaches_no_ipc(void **state)
{
    confined(reach_ipc, "/bin/true");
}

static void test_apply_runs_one_program(void **state)
{
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    print_message("# skipped: the sanitizer's symbolizer is a program\n");
    return;
#endif
    confined(run_programs, "/bin/true");
}

/* Its commands are not known: all may be run, but nothing may be written. */
static int run_script(void)
{
    _cleanup_free_ char *script = pl_strf("%s/script", outside);

    WANT(run(script, "-") == 3);
    WANT(write_outside() == 0);
    return 0;
}

static void test_apply_script(void **state)
{
    _cleanup_free_ char *script = pl_strf("%s/script", outside);

    confined(run_script, script);
}

static void test_apply_reaches_no_other_process(void **state)
{
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    print_message("# skipped: LeakSanitizer traces its own process\n");
    return;
#endif
    confined(reach_others, "/bin/true");
}

static void test_apply_missing_folder(void **state)
{
    struct pl_confine what = {.folders = {"/nonexistent/folder"}};
    struct pl_error err = {0};
    int status;
    pid_t pid = fork();

    if (pid == 0) {
        int r = pl_confine_apply(&what, &err);

        _exit(r == -EOPNOTSUPP                                            ? NO_LANDLOCK
              : r == -ENOENT && strstr(err.text, "'/nonexistent/folder'") ? 0
                                                                          : 1);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    if (WEXITSTATUS(status) == NO_LANDLOCK) {
        print_message("# skipped: no landlock\n");
        return;
    }
    assert_int_equal(status, 0);
}

static void test_find_by_path(void **state)
{
    _cleanup_free_ char *found = NULL, *full = NULL, *path = pl_strf("/nonexistent:%s", outside);

    setenv("PATH", path, 1);
    found = pl_confine_find("script");
    assert_non_null(found);
    assert_string_equal(strrchr(found, '/'), "/script");
    full = pl_confine_find(found);
    assert_string_equal(full, found);
    assert_null(pl_confine_find("old")); /* not executable */
    assert_null(pl_confine_find("missing"));
    assert_null(pl_confine_find(""));
}

static void test_read_values(void **state)
{
    struct pl_error err = {0};
    bool off, require;

    unsetenv("PLUME_CONFINE");
    assert_int_equal(pl_confine_read(&off, &require, &err), 0);
    assert_true(!off && !require);
    setenv("PLUME_CONFINE", "require", 1);
    assert_int_equal(pl_confine_read(&off, &require, &err), 0);
    assert_true(!off && require);
    setenv("PLUME_CONFINE", "off", 1);
    assert_int_equal(pl_confine_read(&off, &require, &err), 0);
    assert_true(off && !require);
    setenv("PLUME_CONFINE", "none", 1);
    assert_int_equal(pl_confine_read(&off, &require, &err), -EINVAL);
}

static int make_folders(void **state)
{
    static const char commands[] = "#!/bin/sh\nexec env sh -c 'exit 3'\n";
    _cleanup_free_ char *old = NULL, *planted = NULL, *script = NULL, *copy = NULL, *text = NULL;
    size_t size;

    if (tmpdir_make(top, sizeof(top)) < 0)
        return -1;
    snprintf(inside, sizeof(inside), "%s/inside", top);
    snprintf(outside, sizeof(outside), "%s/outside", top);
    old = pl_strf("%s/old", outside);
    planted = pl_strf("%s/planted", inside);
    script = pl_strf("%s/script", outside);
    copy = pl_strf("%s/copy", inside);
    if (mkdir(inside, 0700) < 0 || mkdir(outside, 0700) < 0 ||
        pl_file_write_atomic(old, "old", 3, 0600, NULL) < 0 || symlink(old, planted) < 0 ||
        pl_file_write_atomic(script, commands, strlen(commands), 0755, NULL) < 0 ||
        pl_file_read("/bin/true", 1 << 24, &text, &size, NULL) < 0)
        return -1;
    return pl_file_write_atomic(copy, text, size, 0755, NULL);
}

static int remove_folders(void **state)
{
    return tmpdir_remove(top);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_apply_writes_inside),
        cmocka_unit_test(test_apply_writes_nowhere_else),
        cmocka_unit_test(test_apply_changes_no_mode),
        cmocka_unit_test(test_apply_makes_no_namespace),
        cmocka_unit_test(test_apply_reaches_no_ipc),
        cmocka_unit_test(test_apply_runs_one_program),
        cmocka_unit_test(test_apply_script),
        cmocka_unit_test(test_apply_reaches_no_other_process),
        cmocka_unit_test(test_apply_missing_folder),
        cmocka_unit_test(test_find_by_path),
        cmocka_unit_test(test_read_values),
    };

    return cmocka_run_group_tests(tests, make_folders, remove_folders);
}
