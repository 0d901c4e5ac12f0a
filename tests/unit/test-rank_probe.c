/* SPDX-License-Identifier: MIT */
/* The state of a process, from recorded texts of proc(5) and of real children. */
#include "common/base/macros.h"
#include "runtime/plrund/daemon/probe.h"
#include "tests/lib/tmpdir.h"

#include <fcntl.h>
#include <poll.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#define TEXT_(x) #x
#define TEXT(x) TEXT_(x)

static void test_classify_recorded(void **state)
{
    static const struct {
        char letter;
        const char *syscall, *wchan;
        enum pl_probe_state want;
    } rows[] = {
        {'S', "", "hrtimer_nanosleep", PL_PROBE_SLEEP},
        {'S', "", "futex_wait_queue", PL_PROBE_WAIT},
        {'S', "", "locks_lock_inode_wait", PL_PROBE_SLEEP},
        {'S', "", "ep_poll", PL_PROBE_WAIT},
        {'S', "", "0", PL_PROBE_WAIT},
        {'S', "", "", PL_PROBE_WAIT},
        {'R', "running", "0", PL_PROBE_BUSY},
        {'D', "", "folio_wait_bit_common", PL_PROBE_BUSY},
        {'T', "", "do_signal_stop", PL_PROBE_STOPPED},
        {'t', "", "ptrace_stop", PL_PROBE_STOPPED},
        {'Z', "", "", PL_PROBE_GONE},
        {0, "", "", PL_PROBE_GONE},
        {'S', TEXT(SYS_clock_nanosleep) " 0x1 0x0 0x7ffe 0x0 0x0 0x0 0x7ffd 0x7f5e", "",
         PL_PROBE_SLEEP},
        {'S', TEXT(SYS_flock) " 0x3 0x2 0x0 0x0 0x0 0x0 0x7ffd 0x7f5e", "", PL_PROBE_SLEEP},
        {'S', TEXT(SYS_fsync) " 0x3 0x2 0x0 0x0 0x0 0x0 0x7ffd 0x7f5e", "", PL_PROBE_BUSY},
        {'S', TEXT(SYS_futex) " 0x3 0x2 0x0 0x0 0x0 0x0 0x7ffd 0x7f5e", "", PL_PROBE_WAIT},
        /* of no descriptor: time.sleep() of Python 3.10; of some: a server */
        {'S', TEXT(SYS_pselect6) " 0x0 0x0 0x0 0x0 0x7ffe 0x0 0x7ffd 0x7f5e", "do_select",
         PL_PROBE_SLEEP},
        {'S', TEXT(SYS_pselect6) " 0x9 0x7f 0x0 0x0 0x7ffe 0x0 0x7ffd 0x7f5e", "do_select",
         PL_PROBE_WAIT},
        {'S', TEXT(SYS_ppoll) " 0x0 0x0 0x7ffe 0x0 0x8 0x0 0x7ffd 0x7f5e", "", PL_PROBE_SLEEP},
        {'S', TEXT(SYS_ppoll) " 0x7f 0x2 0x7ffe 0x0 0x8 0x0 0x7ffd 0x7f5e", "", PL_PROBE_WAIT},
        {'S', "garbage", "garbage", PL_PROBE_WAIT},
    };

    for (size_t i = 0; i < PL_COUNT(rows); i++) {
        enum pl_probe_state got = pl_probe_classify(rows[i].letter, rows[i].syscall, rows[i].wchan);

        if (got != rows[i].want)
            fail_msg("row %zu (%c, %s, %s): %s, want %s", i, rows[i].letter, rows[i].syscall,
                     rows[i].wchan, pl_probe_state_name(got), pl_probe_state_name(rows[i].want));
    }
}

/* Looks until the child has come to that state. */
static void expect(pid_t pid, enum pl_probe_state want, pid_t worker)
{
    struct pl_probe probe = {0};

    for (int i = 0; i < 2000; i++) {
        pl_probe_look(pid, &probe);
        if (probe.state == want && (!worker || probe.pid == worker))
            return;
        poll(NULL, 0, 5);
    }
    fail_msg("%s, pid %d, want %s", pl_probe_state_name(probe.state), (int)probe.pid,
             pl_probe_state_name(want));
}

static void end(pid_t pid)
{
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
}

/* Sleeping looks like waiting if the kernel shows neither file. */
static bool has_places(void)
{
    if (access("/proc/self/wchan", R_OK) == 0 || access("/proc/self/syscall", R_OK) == 0)
        return true;
    print_message("# skipped: no wchan and no syscall in this /proc\n");
    return false;
}

static void test_look_at_child(void **state)
{
    pid_t pid;

    if (!has_places())
        return;
    pid = fork();

    if (pid == 0)
        for (;;)
            pause();
    expect(pid, PL_PROBE_SLEEP, pid);
    kill(pid, SIGSTOP);
    expect(pid, PL_PROBE_STOPPED, pid);
    end(pid);
    expect(pid, PL_PROBE_GONE, 0);
}

/* A shell that waits for its child does nothing itself: the child counts. */
static void test_look_behind_a_shell(void **state)
{
    int fds[2];
    pid_t pid, child = 0;

    if (!has_places())
        return;
    assert_int_equal(pipe(fds), 0);
    pid = fork();
    if (pid == 0) {
        child = fork();
        if (child == 0)
            for (;;)
                pause();
        if (write(fds[1], &child, sizeof(child)) != (ssize_t)sizeof(child))
            _exit(1);
        waitpid(child, NULL, 0);
        _exit(0);
    }
    assert_int_equal(read(fds[0], &child, sizeof(child)), sizeof(child));
    close(fds[0]);
    close(fds[1]);
    expect(pid, PL_PROBE_SLEEP, child);
    kill(child, SIGKILL);
    waitpid(pid, NULL, 0);
}

/* A call that waits for a file names it, by its link alone. */
static void test_file_of_a_call(void **state)
{
    char dir[64], path[160], text[64], got[64];
    int fd, ends[2];

    (void)state;
    assert_int_equal(tmpdir_make(dir, sizeof(dir)), 0);
    snprintf(path, sizeof(path), "%s/a-folder-with-a-long-name-%060d", dir, 7);
    assert_int_equal(mkdir(path, 0700), 0);
    snprintf(path + strlen(path), sizeof(path) - strlen(path), "/last\001.ckpt");
    fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    assert_true(fd >= 0);
    snprintf(text, sizeof(text), TEXT(SYS_write) " %#x 0x7f 0x1000 0x0 0x0 0x0 0x7ffe 0x7f5e", fd);
    assert_true(pl_probe_file(getpid(), text, "", got, sizeof(got)));
    assert_string_equal(got, "at ...0000000000000000000000000000000000007/last?.ckpt");
    snprintf(text, sizeof(text), TEXT(SYS_futex) " %#x 0x7f 0x1000 0x0 0x0 0x0 0x7ffe 0x7f5e", fd);
    assert_false(pl_probe_file(getpid(), text, "", got, sizeof(got)));
    assert_false(pl_probe_file(getpid(), "running", "", got, sizeof(got)));
    close(fd);
    assert_int_equal(pipe(ends), 0);
    snprintf(text, sizeof(text), TEXT(SYS_read) " %#x 0x7f 0x1000 0x0 0x0 0x0 0x7f 0x7f", ends[0]);
    assert_false(pl_probe_file(getpid(), text, "", got, sizeof(got)));
    close(ends[0]);
    close(ends[1]);
    fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
    snprintf(text, sizeof(text), TEXT(SYS_read) " %#x 0x7f 0x1000 0x0 0x0 0x0 0x7f 0x7f", fd);
    assert_false(pl_probe_file(getpid(), text, "", got, sizeof(got)));
    close(fd);
    tmpdir_remove(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_classify_recorded),
        cmocka_unit_test(test_file_of_a_call),
        cmocka_unit_test(test_look_at_child),
        cmocka_unit_test(test_look_behind_a_shell),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
