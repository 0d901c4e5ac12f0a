/* SPDX-License-Identifier: MIT */
/* The scontrol that the daemon runs, and the limits that it runs under. */
#include "common/base/fs.h"
#include "runtime/node/scontrol.h"
#include "runtime/plrund/daemon/step_limits.h"
#include "tests/lib/tmpdir.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <cmocka.h>

#define ANSWER_MS 60000

static char top[64];

static void make_program(const char *folder, const char *says)
{
    _cleanup_free_ char *dir = pl_path_join(top, folder);
    _cleanup_free_ char *path = pl_path_join(dir, "scontrol");
    _cleanup_free_ char *text = pl_strf("#!/bin/sh\necho %s $*\n", says);

    assert_int_equal(pl_mkdir_p(dir, 0755, NULL), 0);
    assert_int_equal(pl_file_replace(path, text, strlen(text), 0755, NULL), 0);
}

static int make_programs(void **state)
{
    if (tmpdir_make(top, sizeof(top)) < 0)
        return -1;
    make_program("path", "by-path");
    make_program("own", "absolute");
    return 0;
}

static int remove_programs(void **state)
{
    return tmpdir_remove(top);
}

static void on_answer(void *ctx, const char *output)
{
    char **ret = ctx;

    *ret = strdup(output ? output : "none\n");
}

/* Checks the daemon's answer with this value of PLUME_SCONTROL; NULL: not set. */
static void answers(const char *program, const char *expected)
{
    const char *args[] = {"show", NULL};
    char *text = NULL;
    uv_loop_t loop;

    program ? setenv("PLUME_SCONTROL", program, 1) : unsetenv("PLUME_SCONTROL");
    uv_loop_init(&loop);
    pl_scontrol_run(&loop, args, ANSWER_MS, on_answer, &text);
    uv_run(&loop, UV_RUN_DEFAULT);
    assert_int_equal(uv_loop_close(&loop), 0);
    assert_string_equal(text, expected);
    free(text);
}

static void test_program(void **state)
{
    _cleanup_free_ char *path = pl_strf("%s/path:/usr/bin:/bin", top);
    _cleanup_free_ char *own = pl_path_join(top, "own/scontrol");

    setenv("PATH", path, 1);
    answers(NULL, "by-path show\n");
    answers(own, "absolute show\n"); /* the plugin's: a job's PATH has no say */
    answers("", "none\n");
    answers("/nonexistent", "none\n");
}

static void test_step_limits(void **state)
{
    pid_t pid = fork();
    int status;

    if (pid == 0) {
        char *env[] = {"SLURM_RLIMIT_CORE=4096", "SLURM_RLIMIT_NOFILE=18446744073709551615",
                       "SLURM_RLIMIT_CPU=",      "SLURM_RLIMIT_CPUX=1",
                       "SLURM_RLIMIT_STACK=-1",  "SLURM_RLIMIT_DATA=99999999999999999999",
                       "SLURM_RLIMIT_FSIZE=12x", "SLURM_RLIMIT_MEMLOCK",
                       "XSLURM_RLIMIT_AS=1",     NULL};
        struct rlimit before[RLIM_NLIMITS], core = {0, 8192}, now;

        setrlimit(RLIMIT_CORE, &core);
        for (int i = 0; i < RLIM_NLIMITS; i++)
            getrlimit(i, &before[i]);
        pl_step_limits_apply(env);
        for (int i = 0; i < RLIM_NLIMITS; i++) {
            rlim_t expected = i == RLIMIT_CORE     ? 4096
                              : i == RLIMIT_NOFILE ? before[i].rlim_max
                                                   : before[i].rlim_cur;

            if (getrlimit(i, &now) < 0 || now.rlim_cur != expected ||
                now.rlim_max != before[i].rlim_max)
                _exit(i + 1);
        }
        _exit(0);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_program),
        cmocka_unit_test(test_step_limits),
    };

    return cmocka_run_group_tests(tests, make_programs, remove_programs);
}
