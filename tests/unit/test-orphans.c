/* SPDX-License-Identifier: MIT */
/* Processes that ranks have left behind, by /proc. */
#include "common/base/fs.h"
#include "common/base/process.h"
#include "runtime/plrund/daemon/daemon.h"

#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>

#include <cmocka.h>

#define PLAIN_UID 65534
#define LIMIT_MS 30000 /* processes of other programs may start all the time */

static struct pl_slurm_step step = {.id = {.step = "7"}, .node_id = 2, .local_ntasks = 1};
static char node[] = "SLURM_NODEID=2";
static void (*on_pause)(void); /* what happens while the daemon waits for processes */
static unsigned pauses, paused_ms;
static pid_t between; /* this process looks as if it were between two programs */

/* Instead of libc's: the test need not be fast. */
int nanosleep(const struct timespec *pause, struct timespec *left)
{
    pauses++;
    paused_ms += (unsigned)(pause->tv_nsec / 1000000);
    if (on_pause)
        on_pause();
    else
        poll(NULL, 0, (int)(pause->tv_nsec / 1000000 + 1));
    return 0;
}

/* In the midst of execve(2) the kernel shows nothing of a process's environment, and 0 as its
 * place. No test can hold a process there. */
int openat(int dir, const char *path, int flags, ...)
{
    char own[40];

    snprintf(own, sizeof(own), "%d/environ", (int)between);
    if (between && strcmp(path, own) == 0)
        path = "/dev/null";
    return (int)syscall(SYS_openat, dir, path, flags, 0);
}

int __wrap_pl_process_stat(pid_t pid, struct pl_process_stat *ret);
int __real_pl_process_stat(pid_t pid, struct pl_process_stat *ret);
int __wrap_pl_process_stat(pid_t pid, struct pl_process_stat *ret)
{
    int r = __real_pl_process_stat(pid, ret);

    if (pid == between)
        ret->bare = false;
    return r;
}

static void init(void)
{
    /* No process of another job has it. */
    snprintf(step.id.job, sizeof(step.id.job), "%d", (int)getpid());
}

/* ---- a process ---- */

static struct {
    pid_t pid;
    int in; /* a line here has it go on */
} process;

/* A shell with nothing in its environment; after a line it becomes a program with that of rank 0.
 */
static void start(void)
{
    static char script[256];
    char *argv[] = {"sh", "-c", script, NULL}, *none[] = {NULL};
    int pair[2];

    snprintf(script, sizeof(script),
             "read -r x; exec /usr/bin/env - SLURM_JOB_ID=%s SLURM_STEP_ID=7 %s SLURM_PROCID=0 "
             "/usr/bin/tail -f /dev/null",
             step.id.job, node);
    assert_int_equal(pipe(pair), 0);
    process.pid = fork();
    assert_true(process.pid >= 0);
    if (process.pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL); /* of the test, should it fail */
        dup2(pair[0], 0);
        pl_close_from(3, NULL, 0);
        execve("/bin/sh", argv, none);
        _exit(127);
    }
    close(pair[0]);
    process.in = pair[1];
}

/* Bytes of its environment; of the program alone: 0 where it is another's. A shell without an
 * environment gives PWD to what it executes, here env(1), which then executes the program. */
static size_t environment(bool of_program)
{
    _cleanup_free_ char *path = pl_strf("/proc/%d/environ", (int)process.pid);
    static const char mark[] = "SLURM_PROCID=0";
    FILE *f = fopen(path, "re");
    char text[4096];
    size_t n = f ? fread(text, 1, sizeof(text), f) : 0;

    if (f)
        fclose(f);
    return of_program && !memmem(text, n, mark, sizeof(mark)) ? 0 : n;
}

static void become_program(void)
{
    assert_int_equal(write(process.in, "\n", 1), 1);
    for (int i = 0; i < 6000 && environment(true) == 0; i++)
        poll(NULL, 0, 10);
    assert_true(environment(true) > 0);
}

static void go_on(void)
{
    on_pause = NULL;
    become_program();
    between = 0;
}

/* A busy machine takes its time: many times what an idle one needs. */
static void go_on_late(void)
{
    if (paused_ms >= 250)
        go_on();
}

/* waitpid(2), for at most a minute. */
static int reap(pid_t pid, int options)
{
    pid_t got = 0;
    int status = 0;

    for (int i = 0; i < 6000 && (got = waitpid(pid, &status, options | WNOHANG)) == 0; i++)
        poll(NULL, 0, 10);
    assert_int_equal(got, pid);
    return status;
}

static int end(void)
{
    close(process.in);
    return reap(process.pid, 0);
}

static void wait_empty(void)
{
    for (int i = 0; i < 6000 && environment(false) > 0; i++)
        poll(NULL, 0, 10);
    assert_true(environment(false) == 0);
}

/* ---- tests ---- */

static unsigned kill_orphans(unsigned limit_ms, bool *ret_all)
{
    pauses = paused_ms = 0;
    return pl_kill_orphans(&step, UINT_MAX, 0, 0, limit_ms, ret_all);
}

static void test_kill_orphans_between_two_programs(void **state)
{
    bool all = false;

    init();
    start();
    wait_empty();
    between = process.pid;
    on_pause = go_on;
    assert_true(kill_orphans(LIMIT_MS, &all) > 0);
    assert_true(all);
    assert_int_equal(end(), SIGKILL);
}

static void test_kill_orphans_between_two_programs_for_long(void **state)
{
    bool all = false;

    init();
    start();
    wait_empty();
    between = process.pid;
    on_pause = go_on_late;
    assert_true(kill_orphans(LIMIT_MS, &all) > 0);
    assert_true(all);
    assert_int_equal(end(), SIGKILL);
}

static void nothing(void) {}

/* Also if no time is left at the first look: as after a stand-still of the machine. */
static void test_kill_orphans_between_two_programs_for_too_long(void **state)
{
    bool all = true;

    init();
    start();
    wait_empty();
    between = process.pid;
    on_pause = nothing;
    assert_int_equal(kill_orphans(0, &all), 0);
    assert_false(all);
    assert_int_equal(pauses, 10);
    on_pause = NULL;
    between = 0;
    kill(process.pid, SIGKILL);
    end();
}

/* A process that got SIGKILL ends when it is given a processor; a tracer can keep it from its end.
 */
static void test_kill_orphans_that_take_long_to_end(void **state)
{
    pid_t slow;
    int slow_in, status;
    bool all = false;

    init();
    start();
    wait_empty();
    become_program();
    slow = process.pid;
    slow_in = process.in;
    if (ptrace(PTRACE_SEIZE, slow, 0, PTRACE_O_TRACEEXIT) < 0) {
        kill(slow, SIGKILL);
        end();
        print_message("# skipped: nobody may trace here\n");
        return;
    }
    start();
    wait_empty();
    between = process.pid;
    on_pause = go_on_late;
    assert_int_equal(kill_orphans(LIMIT_MS, &all), 2);
    assert_true(all);
    assert_int_equal(end(), SIGKILL);
    status = reap(slow, __WALL); /* it has stopped on its way */
    assert_true(WIFSTOPPED(status));
    ptrace(PTRACE_DETACH, slow, 0, 0);
    process.pid = slow;
    process.in = slow_in;
    assert_int_equal(end(), SIGKILL);
}

static void test_kill_orphans_leaves_others_alone(void **state)
{
    int status;
    bool all = false;

    init();
    node[sizeof(node) - 2] = '3';
    start();
    wait_empty();
    between = process.pid;
    on_pause = go_on;
    assert_int_equal(kill_orphans(LIMIT_MS, &all), 0);
    assert_true(all);
    assert_int_equal(waitpid(process.pid, &status, WNOHANG), 0);
    kill(process.pid, SIGKILL);
    end();
    node[sizeof(node) - 2] = '2';
}

/* Some programs are started without any variable: nobody waits for one. */
static void test_kill_orphans_waits_for_no_empty_environment(void **state)
{
    bool all = false;
    int status;

    init();
    start();
    wait_empty();
    on_pause = nothing;
    assert_int_equal(kill_orphans(LIMIT_MS, &all), 0);
    assert_true(all);
    on_pause = NULL;
    assert_int_equal(waitpid(process.pid, &status, WNOHANG), 0);
    kill(process.pid, SIGKILL);
    end();
}

static void *stay(void *ctx)
{
    for (;;)
        pause();
    return NULL;
}

/* This program, as a process whose first thread ends. */
static int run_leaderless(void)
{
    pthread_t thread;

    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (pthread_create(&thread, NULL, stay, NULL) != 0)
        return 1;
    syscall(SYS_exit, 0); /* of the thread alone */
    return 1;
}

/* Its files in /proc are those of its first thread, which has none any more: of others it has. */
static void test_kill_orphans_without_a_first_thread(void **state)
{
    char job[80], *argv[] = {(char *)(uintptr_t) "orphans", (char *)(uintptr_t) "leaderless", NULL},
                  *env[] = {job, (char *)(uintptr_t) "SLURM_STEP_ID=7", node,
                            (char *)(uintptr_t) "SLURM_PROCID=0", NULL};
    struct pl_process_stat stat = {0};
    bool root = geteuid() == 0;
    int status;
    pid_t pid;

    init();
    snprintf(job, sizeof(job), "SLURM_JOB_ID=%s", step.id.job);
    if (root) /* root may read what others may not */
        assert_int_equal(seteuid(PLAIN_UID), 0);
    pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        if (root && setresuid(PLAIN_UID, PLAIN_UID, PLAIN_UID) < 0)
            _exit(126);
        execve("/proc/self/exe", argv, env);
        _exit(127);
    }
    for (int i = 0; i < 6000 && stat.thread <= pid; i++) {
        assert_int_equal(waitpid(pid, &status, WNOHANG), 0);
        assert_int_equal(pl_process_stat(pid, &stat), 0);
        poll(NULL, 0, 10);
    }
    assert_true(stat.thread > pid);
    assert_true(stat.state != 'Z' && !stat.exiting && !stat.bare);
    assert_int_equal(stat.parent, getpid());
    assert_int_equal(kill_orphans(LIMIT_MS, NULL), 1); /* others of that user may start */
    if (root)
        assert_int_equal(seteuid(0), 0);
    assert_int_equal(reap(pid, 0), SIGKILL);
}

int main(int argc, char **argv)
{
    if (argc > 1 && strcmp(argv[1], "leaderless") == 0)
        return run_leaderless();

    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_kill_orphans_between_two_programs),
        cmocka_unit_test(test_kill_orphans_between_two_programs_for_long),
        cmocka_unit_test(test_kill_orphans_between_two_programs_for_too_long),
        cmocka_unit_test(test_kill_orphans_that_take_long_to_end),
        cmocka_unit_test(test_kill_orphans_leaves_others_alone),
        cmocka_unit_test(test_kill_orphans_waits_for_no_empty_environment),
        cmocka_unit_test(test_kill_orphans_without_a_first_thread),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
