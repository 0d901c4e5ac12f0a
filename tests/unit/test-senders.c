/* SPDX-License-Identifier: MIT */
/* Processes that signal a rank and those over it at once. Wrappers replace the calls that read an
 * ancestor, the own control groups and the pending signals. */
#include "common/base/fs.h"
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

static pid_t hidden;       /* /proc hides it */
static pid_t executor;     /* it has the executor's name */
static const char *groups; /* of this process, in place of /proc/self/cgroup; NULL: no file */
static int ask =
    -EBADF; /* sigpending() asks here for a signal to the whole group, and waits for it */

int __real_pl_process_stat(pid_t pid, struct pl_process_stat *ret);
int __wrap_pl_process_stat(pid_t pid, struct pl_process_stat *ret);
int __wrap_pl_file_read(
    const char *path, size_t limit, char **ret_data, size_t *ret_len, struct pl_error *err);
int __real_sigpending(sigset_t *set);
int __wrap_sigpending(sigset_t *set);

int __wrap_pl_process_stat(pid_t pid, struct pl_process_stat *ret)
{
    int r = pid == hidden ? -ESRCH : __real_pl_process_stat(pid, ret);

    if (r == 0 && pid == executor)
        snprintf(ret->name, sizeof(ret->name), "%s", PL_PROCESS_EXECUTOR);
    return r;
}

int __wrap_pl_file_read(
    const char *path, size_t limit, char **ret_data, size_t *ret_len, struct pl_error *err)
{
    assert_string_equal(path, "/proc/self/cgroup");
    *ret_data = groups ? strdup(groups) : NULL;
    return *ret_data ? 0 : -ENOENT;
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

/* ---- who reaches the child ---- */

/* Slurm's cgroup plugin signals the tasks alone, and the others all processes of a step. */
static void test_find_how_slurm_signals(void **state)
{
    static const struct {
        const char *groups;
        bool all;
    } cases[] = {
        {"0::/\n", true},
        {"0::/system.slice/cron.service\n", true},
        {"1:freezer:/slurm_n1/uid_0/job_7/step_0/task_1\n0::/init.scope\n", false},
        {"0::/system.slice/slurmstepd.scope/job_7/step_0/user/task_1\n", false},
        {"0::/system.slice/n1_slurmstepd.scope/job_7\n", false},
        /* task/cgroup beside linuxproc: only the tracker's group matters. */
        {"6:freezer:/\n5:devices:/slurm_n1/uid_0/job_7/step_0/task_0\n"
         "3:cpuset:/slurm_n1/uid_0/job_7/step_0\n0::/\n",
         true},
        {"6:freezer:/slurm_n1/uid_0/job_7/step_0\n5:devices:/\n0::/\n", false},
        {"6:freezer:/\n0::/system.slice/slurmstepd.scope/job_7/step_0/user/task_1\n", false},
        {NULL, false},
    };
    struct pl_senders s;

    for (size_t i = 0; i < PL_COUNT(cases); i++) {
        groups = cases[i].groups;
        pl_senders_find(&s);
        assert_int_equal(s.slurm_signals_all, cases[i].all);
    }
}

static void test_reach(void **state)
{
    pid_t own = getpid(), child = fork();
    struct pl_senders s = {.stepd = 77, .local = {88, 99}};
    siginfo_t ended;

    assert_true(child >= 0);
    if (child == 0)
        _exit(0);
    assert_int_equal(waitid(P_PID, (id_t)child, &ended, WEXITED | WNOWAIT), 0);
    for (int all = 0; all < 2; all++) {
        s.slurm_signals_all = all;
        assert_int_equal(pl_senders_reach(&s, SI_USER, 77, SIGTERM, child), all);
        assert_false(pl_senders_reach(&s, SI_USER, own, SIGTERM, child));
        assert_true(pl_senders_reach(&s, SI_USER, 88, SIGTERM, child));
        assert_true(pl_senders_reach(&s, SI_USER, 99, SIGTERM, child));
    }
    sigaddset(&s.missed, SIGTERM);
    assert_true(pl_senders_reach(&s, SI_USER, 88, SIGHUP, child));
    assert_false(pl_senders_reach(&s, SI_USER, 88, SIGTERM, child)); /* it came before the child */
    assert_true(pl_senders_reach(&s, SI_USER, 88, SIGTERM, child));  /* and this one after */
    /* One without a known sender, as of a process of another PID namespace. */
    s.stepd = s.local[0] = s.local[1] = 0;
    assert_false(pl_senders_reach(&s, SI_USER, 0, SIGTERM, child));
    assert_int_equal(waitpid(child, NULL, 0), child);
}

/* A child in a group of its own does not get what the group gets. */
static void test_reach_another_group(void **state)
{
    struct pl_senders s = {.local = {88}};
    pid_t child = fork();

    assert_true(child >= 0);
    while (child == 0)
        pause();
    assert_int_equal(setpgid(child, child), 0);
    assert_false(pl_senders_reach(&s, SI_USER, 88, SIGTERM, child));
    kill(child, SIGKILL);
    assert_int_equal(waitpid(child, NULL, 0), child);
}

static int ready[2], go[2];

/* The program: exits with the number of SIGHUP before SIGPWR. */
static int count_hangups(char *const *argv)
{
    int n = 0, sig = 0;
    sigset_t set;

    alarm(LIMIT_S);
    sigemptyset(&set);
    sigaddset(&set, SIGHUP);
    sigaddset(&set, SIGPWR);
    sigprocmask(SIG_BLOCK, &set, NULL);
    do {
        n += sig == SIGHUP;
        if (write(ready[1], "", 1) != 1)
            return 99;
    } while (sigwait(&set, &sig) == 0 && sig == SIGHUP);
    return n;
}

/* An executor over a process that saves: its whole group gets SIGHUP once. */
static void run_executor(void)
{
    char *argv[] = {NULL}, byte;
    int status = 0;
    pid_t pid;

    setpgid(0, 0);
    signal(SIGHUP, SIG_IGN);
    executor = getpid();
    pid = fork();
    if (pid == 0) {
        signal(SIGHUP, SIG_DFL);
        _exit(pl_saver_run(":", argv, count_hangups));
    }
    if (write(ready[1], &pid, sizeof(pid)) == sizeof(pid) && read(go[0], &byte, 1) == 1)
        kill(0, SIGHUP);
    _exit(waitpid(pid, &status, 0) == pid && WIFEXITED(status) ? WEXITSTATUS(status) : 99);
}

static void test_saver_knows_an_executor(void **state)
{
    struct pl_process_stat stat = {0};
    pid_t pid, saver = 0;
    int status;
    char byte;

    assert_true(pipe(ready) == 0 && pipe(go) == 0);
    pid = fork();
    if (pid == 0)
        run_executor();
    assert_int_equal(read(ready[0], &saver, sizeof(saver)), sizeof(saver));
    assert_int_equal(read(ready[0], &byte, 1), 1);
    kill(saver, SIGSTOP);
    while (__real_pl_process_stat(saver, &stat) == 0 && stat.state != 'T')
        sched_yield();
    assert_int_equal(write(go[1], "", 1), 1);
    assert_int_equal(read(ready[0], &byte, 1), 1); /* the program has the first */
    kill(saver, SIGPWR);
    kill(saver, SIGCONT);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 1);
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
        cmocka_unit_test(test_find_how_slurm_signals),
        cmocka_unit_test(test_reach),
        cmocka_unit_test(test_reach_another_group),
        cmocka_unit_test(test_saver_knows_an_executor),
        cmocka_unit_test(test_saver_is_signalled_before_its_child),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
