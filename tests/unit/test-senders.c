/* SPDX-License-Identifier: MIT */
/* Which processes signal a rank and the processes over it at once. Wrappers replace the calls that
 * read an ancestor and the pending signals. */
#include "common/base/process.h"
#include "runtime/plrun/saver.h"
#include "runtime/plrun/senders.h"

#include <errno.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#define LIMIT_S 10

static pid_t hidden;   /* /proc hides it */
static pid_t executor; /* it has the executor's name */
static int ask =
    -EBADF; /* sigpending() asks here for a signal to the whole group, and waits for it */

int __real_pl_process_stat(pid_t pid, struct pl_process_stat *ret);
int __wrap_pl_process_stat(pid_t pid, struct pl_process_stat *ret);
int __real_sigpending(sigset_t *set);
int __wrap_sigpending(sigset_t *set);

int __wrap_pl_process_stat(pid_t pid, struct pl_process_stat *ret)
{
    int r = pid == hidden ? -ESRCH : __real_pl_process_stat(pid, ret);

    if (r == 0 && pid == executor)
        snprintf(ret->name, sizeof(ret->name), "%s", PL_PROCESS_EXECUTOR);
    return r;
}

int __wrap_sigpending(sigset_t *set)
{
    int r = __real_sigpending(set);

    if (ask >= 0 && write(ask, "", 1) == 1)
        while (r == 0 && sigismember(set, SIGHUP) != 1) {
            sched_yield();
            r = __real_sigpending(set);
        }
    return r;
}

/* Runs f in a grandchild, whose parent has the given name or none. Returns its status. */
static int below(bool named, void (*f)(pid_t parent, pid_t grandparent))
{
    pid_t own = getpid(), pid = fork();
    int status;

    assert_true(pid >= 0);
    if (pid == 0) {
        pid_t middle = getpid();

        executor = named ? middle : 0;
        pid = fork();
        if (pid == 0) {
            f(middle, own);
            _exit(0);
        }
        _exit(pid > 0 && waitpid(pid, &status, 0) == pid ? WEXITSTATUS(status) : 99);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    return WEXITSTATUS(status);
}

static void find_hidden(pid_t parent, pid_t grandparent)
{
    struct pl_senders s;

    hidden = grandparent;
    pl_senders_find(&s);
    if (s.stepd != (executor ? 0 : grandparent) || s.local[0] != executor || s.stepd_fd >= 0)
        _exit(1);
    hidden = parent;
    executor = 0;
    pl_senders_find(&s);
    if (s.stepd != parent || s.local[0])
        _exit(2);
}

static void test_find_where_proc_hides(void **state)
{
    assert_int_equal(below(false, find_hidden), 0);
}

static void test_find_where_proc_hides_above_an_executor(void **state)
{
    assert_int_equal(below(true, find_hidden), 0);
}

/* ---- a signal that comes just before the child ---- */

static int wait_for_signal(char *const *argv)
{
    alarm(LIMIT_S);
    pause();
    return 1;
}

/* Returns the status of the process over a program, whose whole group gets SIGHUP as it is made. */
static int signalled_before_fork(void)
{
    char *argv[] = {NULL};
    int asks[2], status = 0;
    char byte;
    pid_t pid;

    setpgid(0, 0);
    signal(SIGHUP, SIG_IGN);
    executor = getpid();
    if (pipe(asks) < 0)
        return -1;
    pid = fork();
    if (pid == 0) {
        signal(SIGHUP, SIG_DFL);
        ask = asks[1];
        _exit(pl_saver_run(":", argv, wait_for_signal));
    }
    if (read(asks[0], &byte, 1) == 1)
        kill(0, SIGHUP);
    return waitpid(pid, &status, 0) == pid ? status : -1;
}

static void test_saver_is_signalled_before_its_child(void **state)
{
    pid_t pid = fork();
    int status;

    if (pid == 0) {
        status = signalled_before_fork();
        _exit(WIFSIGNALED(status) ? WTERMSIG(status) : 0);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), SIGHUP); /* not that of alarm() */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_find_where_proc_hides),
        cmocka_unit_test(test_find_where_proc_hides_above_an_executor),
        cmocka_unit_test(test_saver_is_signalled_before_its_child),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
