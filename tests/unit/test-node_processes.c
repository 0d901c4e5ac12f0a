/* SPDX-License-Identifier: MIT */
/* Processes of the node: what of theirs is read, and what a hostile one cannot make of it. */
#include "launcher/plstat/node_processes.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

/* Starts `sleep` with an environment, and waits until it runs. */
static pid_t start(char *const *env)
{
    char *argv[] = {(char *)(uintptr_t) "sleep", (char *)(uintptr_t) "300", NULL};
    int started[2];
    char byte;
    pid_t pid;

    assert_int_equal(pipe2(started, 02000000 /* O_CLOEXEC: closed by exec */), 0);
    pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        execvpe("sleep", argv, env);
        _exit(127);
    }
    close(started[1]);
    assert_int_equal(read(started[0], &byte, 1), 0);
    close(started[0]);
    return pid;
}

static void stop(pid_t pid)
{
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
}

static void test_environment(void **state)
{
    char *env[] = {
        (char *)(uintptr_t) "XPLUME_RUN_DIR=/no",      (char *)(uintptr_t) "SLURM_JOB_ID=4711",
        (char *)(uintptr_t) "PLUME_RUN_DIR=/a folder", (char *)(uintptr_t) "SLURM_CONF=/etc/x",
        (char *)(uintptr_t) "SLURM_JOB_ID=4712",       NULL};
    pid_t pid = start(env);
    struct pl_node_process p;

    assert_int_equal(pl_node_process_get(pid, &p), 0);
    assert_int_equal(p.pid, pid);
    assert_int_equal(p.uid, getuid());
    assert_true(p.start > 0 && p.age_s >= 0 && p.age_s < 3600);
    if (p.cgroup_job < 0)
        assert_int_equal(p.job, 4711);
    assert_true(p.seen);
    assert_string_equal(p.command, "sleep 300");
    assert_string_equal(p.run_dir, "/a folder");
    assert_string_equal(p.slurm_conf, "/etc/x");
    pl_node_process_finish(&p);
    stop(pid);
}

/* Numbers that are none, and an environment without end. */
static void test_hostile(void **state)
{
    static const char *const jobs[] = {"SLURM_JOB_ID=", "SLURM_JOB_ID=-4", "SLURM_JOB_ID=12x",
                                       "SLURM_JOB_ID=99999999999999999999", "SLURM_JOB_ID=0"};
    char *big = malloc(100000);
    struct pl_node_process p;

    memset(big, 'x', 99999);
    big[99999] = '\0';
    for (size_t i = 0; i < sizeof(jobs) / sizeof(*jobs); i++) {
        char *env[] = {big, (char *)(uintptr_t)jobs[i], NULL};
        pid_t pid = start(env);

        assert_int_equal(pl_node_process_get(pid, &p), 0);
        if (p.cgroup_job < 0)
            assert_int_equal(p.job, -1);
        assert_null(p.run_dir);
        pl_node_process_finish(&p);
        stop(pid);
    }
    free(big);
}

static void test_gone(void **state)
{
    char *env[] = {NULL};
    pid_t pid = start(env);
    struct pl_node_process p;

    kill(pid, SIGKILL);
    siginfo_t info;
    assert_int_equal(waitid(P_PID, (id_t)pid, &info, WEXITED | WNOWAIT), 0);
    assert_int_equal(pl_node_process_get(pid, &p), -ESRCH); /* a zombie has ended */
    waitpid(pid, NULL, 0);
    assert_int_equal(pl_node_process_get(pid, &p), -ESRCH);
}

static int find(void *ctx, struct pl_node_process *p)
{
    if (p->pid == *(pid_t *)ctx)
        *(pid_t *)ctx = 0;
    assert_int_not_equal(p->pid, getpid());
    return 0;
}

static void test_each(void **state)
{
    char *env[] = {NULL};
    pid_t pid = start(env), wanted = pid;

    assert_int_equal(pl_node_processes_each(find, &wanted, NULL), 0);
    assert_int_equal(wanted, 0);
    stop(pid);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_environment),
        cmocka_unit_test(test_hostile),
        cmocka_unit_test(test_gone),
        cmocka_unit_test(test_each),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
