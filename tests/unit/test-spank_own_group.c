/* SPDX-License-Identifier: MIT */
/* The daemon's control group next to slurmstepd's. tests/cluster/cgroup2.bats has real ones. */
#include "spank_plugin/own_group_private.h"
#include "tests/lib/tmpdir.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

static void expect(const char *cgroup, const char *group, const char *job)
{
    char text[2 * PATH_MAX], path[PATH_MAX];
    size_t at = 0;

    snprintf(text, sizeof(text), "%s", cgroup);
    assert_int_equal(pl_own_group_path(text, path, &at), group != NULL);
    if (group) {
        assert_string_equal(path, group);
        assert_string_equal(path + at, job);
    }
}

#define SCOPE "/system.slice/slurmstepd.scope"

static void test_own_group_path_of_job(void **state)
{
    expect("0::" SCOPE "/job_12/step_0/slurm\n", "/sys/fs/cgroup" SCOPE "/job_12/step_0/plume",
           "/job_12/step_0/plume");
    expect("4:cpu:/slurm/uid_0/job_1/step_2\n0::/job_7/step_batch/slurm\n",
           "/sys/fs/cgroup/job_7/step_batch/plume", "/job_7/step_batch/plume");
}

/* Slurm 26.05, without CgroupJobIdPaths=yes in cgroup.conf. */
static void test_own_group_path_of_sluid(void **state)
{
    expect("0::" SCOPE "/sEKNKTV3WPV500/step_0/slurm\n",
           "/sys/fs/cgroup" SCOPE "/sEKNKTV3WPV500/step_0/plume", "/sEKNKTV3WPV500/step_0/plume");
    expect("0::/job_9/sEKNKTV3WPV500/step_0+1/slurm\n",
           "/sys/fs/cgroup/job_9/sEKNKTV3WPV500/step_0+1/plume", "/sEKNKTV3WPV500/step_0+1/plume");
}

static void test_own_group_path_of_others(void **state)
{
    static const char *const texts[] = {
        "",
        "0::/\n",
        "0::/slurm\n",
        "0::/step_0/slurm\n",
        "0::/job_1/slurm\n",
        "0::/job_1/step_0/user/task_0\n",
        "0::/job_1/step_0/plume\n",
        "0::/job_1/step_0/slurm", /* cut off */
        "0::/job_/step_0/slurm\n",
        "0::/job_1x/step_0/slurm\n",
        "0::/job_1X/step_0/slurm\n",
        "0::/job_1/stop_0/slurm\n",
        "0::/job_1/more/step_0/slurm\n",
        "0::/job_1/step_0/more/slurm\n",
        "0::/session-1.scope/step_0/slurm\n",
        "0::/sEKNKTV3WPV50/step_0/slurm\n",
        "0::/sEKNKTV3WPV5000/step_0/slurm\n",
        "0::/sEKNKTV3WPV50-/step_0/slurm\n",
        "0::/seknktv3wpv500/step_0/slurm\n",
        "1:freezer:/slurm/uid_0/job_1/step_0/slurm\n",
    };

    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++)
        expect(texts[i], NULL, NULL);
}

/* The path has room for the file's name, or there is none. */
static void test_own_group_path_too_long(void **state)
{
    char text[2 * PATH_MAX], path[PATH_MAX];
    size_t at;

    for (int len = PATH_MAX - 64; len < PATH_MAX; len++) {
        snprintf(text, sizeof(text), "0::/%0*d/job_1/step_0/slurm\n", len, 0);
        if (pl_own_group_path(text, path, &at))
            assert_true(strlen(path) + sizeof("/cgroup.procs") <= sizeof(path));
        else
            assert_true(len + strlen("/sys/fs/cgroup//job_1/step_0/slurm/cgroup.procs") >=
                        PATH_MAX);
    }
}

static char dir[64];

/* True if a process is killed whose number stands in cgroup.procs after `pad` bytes of others. */
static bool is_killed(int pad, const char *after)
{
    pid_t pid = fork();
    char path[PATH_MAX];
    int status;
    FILE *f;

    assert_true(pid >= 0);
    while (pid == 0)
        pause();
    snprintf(path, sizeof(path), "%s/cgroup.procs", dir);
    f = fopen(path, "w");
    assert_non_null(f);
    if (pad)
        fprintf(f, "%0*d\n", pad - 1, 0);
    assert_true(fprintf(f, "%d%s", (int)pid, after) > 0);
    assert_int_equal(fclose(f), 0);
    pl_own_group_kill_each(dir);
    assert_int_equal(kill(pid, SIGTERM), 0); /* does nothing to what is killed */
    assert_int_equal(waitpid(pid, &status, 0), pid);
    return WTERMSIG(status) == SIGKILL;
}

static void test_own_group_kills_by_whole_numbers(void **state)
{
    char pid[16];
    int len = snprintf(pid, sizeof(pid), "%d", (int)getpid());

    assert_true(is_killed(0, "\n"));
    assert_true(is_killed(2000, "\n"));
    /* One read ends in a number: its beginning is another process's. */
    for (int pad = 4095 - len - 4; pad < 4096; pad++)
        assert_false(is_killed(pad, "777"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_own_group_path_of_job),
        cmocka_unit_test(test_own_group_path_of_sluid),
        cmocka_unit_test(test_own_group_path_of_others),
        cmocka_unit_test(test_own_group_path_too_long),
        cmocka_unit_test(test_own_group_kills_by_whole_numbers),
    };
    int r;

    if (tmpdir_make(dir, sizeof(dir)) < 0)
        return 1;
    r = cmocka_run_group_tests(tests, NULL, NULL);
    tmpdir_remove(dir);
    return r;
}
