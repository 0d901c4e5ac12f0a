/* SPDX-License-Identifier: MIT */
/* A trial of --local that is cancelled while its process is being made does not start. The guard's
 * setsid() is ours (--wrap), so that SIGTERM comes before the guard has a group. */
#include "common/base/fs.h"
#include "common/base/parse.h"
#include "common/run/run_local.h"
#include "launcher/plsubmit/local_run.h"
#include "tests/lib/tmpdir.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#define JOB "1000000000"
#define LIMIT_S 5

static char top[64];

pid_t __real_setsid(void);
pid_t __wrap_setsid(void);

/* In the guard: cancels the trial, and returns when the executor has sent SIGTERM. */
pid_t __wrap_setsid(void)
{
    _cleanup_free_ char *dir = pl_path_join(top, "sweep");
    char *jobs[] = {(char[]){JOB "_[0]"}, NULL};
    struct pl_run *run = NULL;
    sigset_t set;

    if (pl_run_open_own(dir, &run, NULL) < 0 || pl_run_add_cancelled(run, jobs, NULL) < 0)
        _exit(1);
    kill(getppid(), SIGUSR1);
    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    if (sigtimedwait(&set, NULL, &(struct timespec){.tv_sec = LIMIT_S}) == SIGTERM)
        kill(getpid(), SIGTERM); /* it waits for the guard, as before */
    return __real_setsid();
}

static int no_values(void *ctx, unsigned trial, const char **ret)
{
    return 0;
}

static void test_cancelled_before_the_group(void **state)
{
    static const char *const argv[] = {"/bin/true", NULL}, *const axes[] = {NULL};
    _cleanup_free_ char *dir = pl_path_join(top, "sweep"), *mark = pl_path_join(top, "mark");
    _cleanup_free_ char *script = pl_strf("#!/bin/bash\n: >%s\n", mark);
    _cleanup_(json_decrefp) json_t *options = json_pack("{s:{s:i}}", "local", "value", 1);
    struct pl_run_desc desc = {.sweep = "sweep",
                               .name = "sweep",
                               .n_trials = 1,
                               .argv = argv,
                               .axes = axes,
                               .options = options,
                               .script = script,
                               .values = no_values};
    struct pl_run *run = NULL;
    struct pl_error err = {0};
    int lock, status;
    pid_t pid;

    assert_int_equal(pl_run_create(dir, &desc, &err), 0);
    assert_int_equal(pl_run_open_own(dir, &run, &err), 0);
    assert_int_equal(pl_run_add_submission(run, JOB, 0, 1, &err), 0);
    assert_int_equal(pl_run_local_lock(run, &lock, &err), 0);
    pid = fork();
    assert_true(pid >= 0);
    if (pid == 0)
        _exit(pl_executor_run(dir, JOB, environ, lock));
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    assert_int_not_equal(access(mark, F_OK), 0);
    close(lock);
    pl_run_close(run);
}

static int setup(void **state)
{
    return tmpdir_make(top, sizeof(top));
}

static int teardown(void **state)
{
    return tmpdir_remove(top);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cancelled_before_the_group),
    };

    return cmocka_run_group_tests(tests, setup, teardown);
}
