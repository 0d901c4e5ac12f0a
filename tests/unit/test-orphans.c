/* SPDX-License-Identifier: MIT */
/* Processes that ranks have left behind, by /proc. */
#include "common/base/fs.h"
#include "runtime/plrund/daemon/daemon.h"

#include <limits.h>
#include <poll.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>

#include <cmocka.h>

static struct pl_slurm_step step = {.id = {.step = "7"}, .node_id = 2, .local_ntasks = 1};
static char node[] = "SLURM_NODEID=2";
static void (*on_pause)(void); /* what happens while the daemon waits for processes */

/* Instead of libc's: the test need not be fast. */
int nanosleep(const struct timespec *pause, struct timespec *left)
{
    if (on_pause)
        on_pause();
    else
        poll(NULL, 0, (int)(pause->tv_nsec / 1000000 + 1));
    return 0;
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

static void go_on(void)
{
    on_pause = NULL;
    assert_int_equal(write(process.in, "\n", 1), 1);
    for (int i = 0; i < 6000 && environment(true) == 0; i++)
        poll(NULL, 0, 10);
    assert_true(environment(true) > 0);
}

static int end(void)
{
    int status;

    close(process.in);
    assert_int_equal(waitpid(process.pid, &status, 0), process.pid);
    return status;
}

static void wait_empty(void)
{
    for (int i = 0; i < 6000 && environment(false) > 0; i++)
        poll(NULL, 0, 10);
    assert_true(environment(false) == 0);
}

/* ---- tests ---- */

static void test_kill_orphans_between_two_programs(void **state)
{
    init();
    start();
    wait_empty();
    on_pause = go_on;
    assert_true(pl_kill_orphans(&step, UINT_MAX, 0, 0) > 0);
    assert_int_equal(end(), SIGKILL);
}

static void test_kill_orphans_leaves_others_alone(void **state)
{
    int status;

    init();
    node[sizeof(node) - 2] = '3';
    start();
    wait_empty();
    on_pause = go_on;
    assert_int_equal(pl_kill_orphans(&step, UINT_MAX, 0, 0), 0);
    assert_int_equal(waitpid(process.pid, &status, WNOHANG), 0);
    kill(process.pid, SIGKILL);
    end();
    node[sizeof(node) - 2] = '2';
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_kill_orphans_between_two_programs),
        cmocka_unit_test(test_kill_orphans_leaves_others_alone),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
