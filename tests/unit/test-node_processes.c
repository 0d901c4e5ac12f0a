/* SPDX-License-Identifier: MIT */
/* Processes of the node: what of theirs is read, and what a hostile one cannot make of it. */
#include "common/base/process.h"
#include "launcher/plstat/node_processes_private.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

/* Starts a program with an environment, and waits until it runs. */
static pid_t start_program(const char *program, char *const *env)
{
    char *argv[] = {(char *)(uintptr_t) "sleep", (char *)(uintptr_t) "300", NULL};
    int started[2];
    char byte;
    pid_t pid;

    assert_int_equal(pipe2(started, 02000000 /* O_CLOEXEC: closed by exec */), 0);
    pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        execvpe(program, argv, env);
        _exit(127);
    }
    close(started[1]);
    assert_int_equal(read(started[0], &byte, 1), 0);
    close(started[0]);
    return pid;
}

static pid_t start(char *const *env)
{
    return start_program("sleep", env);
}

static void end_child(pid_t pid)
{
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
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

    if (pthread_create(&thread, NULL, stay, NULL) != 0)
        return 1;
    syscall(SYS_exit, 0); /* of the thread alone */
    return 1;
}

/* True once the kernel calls the first thread a zombie, and the process has others. */
static bool is_leaderless(pid_t pid)
{
    struct pl_process_stat stat = {0};

    return pl_process_stat(pid, &stat) == 0 && stat.thread != pid;
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
    end_child(pid);
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
        end_child(pid);
    }
    free(big);
}

/* Root's look at the node holds these of each process. */
static void test_long_values(void **state)
{
    static const char name[] = "PLUME_RUN_DIR=/";
    const size_t size = 100000; /* Linux takes 128 KiB */
    char *big = malloc(size);
    char *env[] = {(char *)(uintptr_t) "SLURM_JOB_ID=4294967296", big, NULL};
    struct pl_node_process p;
    pid_t pid;

    memset(big, 'x', size - 1);
    memcpy(big, name, sizeof(name) - 1);
    big[size - 1] = '\0';
    pid = start(env);
    assert_int_equal(pl_node_process_get(pid, &p), 0);
    assert_int_equal(strlen(p.run_dir), PATH_MAX - 1);
    if (p.cgroup_job < 0)
        assert_int_equal(p.job, -1); /* Slurm has no such number */
    pl_node_process_finish(&p);
    end_child(pid);
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

/* It has no files in /proc any more, but those of another thread. */
static void test_without_a_first_thread(void **state)
{
    char *env[] = {(char *)(uintptr_t) "PLUME_RUN_DIR=/leaderless", NULL};
    pid_t pid = start_program("/proc/self/exe", env);
    struct pl_node_process p;

    for (int i = 0; i < 6000 && !is_leaderless(pid); i++) {
        assert_int_equal(waitpid(pid, NULL, WNOHANG), 0);
        poll(NULL, 0, 10);
    }
    assert_true(is_leaderless(pid));
    assert_int_equal(pl_node_process_get(pid, &p), 0);
    assert_int_equal(p.pid, pid);
    assert_true(p.seen);
    assert_string_equal(p.run_dir, "/leaderless");
    assert_string_equal(p.command, "sleep 300");
    pl_node_process_finish(&p);
    end_child(pid);
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
    end_child(pid);
}

/* Notes a process that is that of ctx, and was not read for want of a process. */
static int find_unread(void *ctx, struct pl_node_process *p)
{
    if (p->pid == *(pid_t *)ctx && p->silent == -EAGAIN && p->command && !p->seen)
        *(pid_t *)ctx = 0;
    return 0;
}

/* As a user whose processes are as many as `ulimit -u` allows: no child can be had. */
static void test_no_process_to_read_with(void **state)
{
    const struct rlimit none = {0};
    char *env[] = {NULL};
    pid_t pid = start(env), child = fork(), wanted = pid;
    struct pl_node_process p;
    int status;

    assert_true(child >= 0);
    if (child == 0) { /* the limit is none to root */
        if (setrlimit(RLIMIT_NPROC, &none) < 0 ||
            (geteuid() == 0 && setresuid(65534, 65534, 65534) < 0))
            _exit(1);
        if (pl_node_process_get(pid, &p) < 0 || p.silent != -EAGAIN)
            _exit(2);
        pl_node_process_finish(&p);
        _exit(pl_node_processes_each(find_unread, &wanted, NULL) < 0 ? 3 : wanted ? 4 : 0);
    }
    waitpid(child, &status, 0);
    assert_int_equal(status, 0);
    end_child(pid);
}

static int any(void *ctx, struct pl_node_process *p)
{
    return 0;
}

/* A process that we cannot look at does not count as one that has ended. */
static void test_no_file_to_look_with(void **state)
{
    struct pl_error err = {0};
    int fds[1024], n = 0;
    struct rlimit before, few;

    assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
    few = (struct rlimit){PL_MIN(before.rlim_cur, (rlim_t)PL_COUNT(fds)), before.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &few), 0);
    while (n < (int)PL_COUNT(fds) && (fds[n] = open("/dev/null", O_RDONLY | O_CLOEXEC)) >= 0)
        n++;
    close(fds[--n]); /* for the list in /proc */
    assert_int_equal(pl_node_processes_each(any, NULL, &err), -EMFILE);
    while (n > 0)
        close(fds[--n]);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
}

/* Ends the child that reads, once; counts the processes that are not read. */
static int end_reader(void *ctx, struct pl_node_process *p)
{
    unsigned *n = ctx;
    char path[64];
    FILE *file;
    int reader;

    n[1] += p->silent == -EPIPE;
    if (n[0]++)
        return 0;
    snprintf(path, sizeof(path), "/proc/self/task/%d/children", (int)getpid());
    file = fopen(path, "re");
    assert_non_null(file);
    while (fscanf(file, "%d", &reader) == 1)
        kill(reader, SIGKILL);
    fclose(file);
    return 0;
}

/* As where memory is short: the next process is read by another. */
static void test_the_reader_is_killed(void **state)
{
    unsigned n[2] = {0};

    assert_int_equal(pl_node_processes_each(end_reader, n, NULL), 0);
    assert_true(n[0] > 1);
    assert_int_equal(n[1], 1);
}

static void test_group(void **state)
{
    static const struct {
        const char *text, *sluid;
        int64_t job;
    } cases[] = {
        {"5:freezer:/slurm/uid_0/job_12/step_0\n0::/\n", "", 12},
        {"0::/system.slice/slurmstepd.scope/job_7/step_0/user/task_1\n", "", 7},
        /* Slurm 26.05 */
        {"0::/system.slice/slurmstepd.scope/sEKNKTV3WPV500/step_0/user/task_1\n", "sEKNKTV3WPV500",
         -1},
        {"0::/system.slice/n1_slurmstepd.scope/sEKNKTV3WPV500/step_batch/slurm\n", "sEKNKTV3WPV500",
         -1},
        /* a hub that stays */
        {"0::/slurmstepd.scope/plume/job_7\n", "", 7},
        {"0::/slurmstepd.scope/plume/sEKNKTV3WPV500\n", "sEKNKTV3WPV500", -1},
        {"0::/slurmstepd.scope/sEKNKTV3WPV500/user\n", "", -1},  /* no step of it */
        {"0::/slurmstepd.scope/sEKNKTV3WPV50/step_0\n", "", -1}, /* too short, too long */
        {"0::/slurmstepd.scope/sEKNKTV3WPV5000/step_0\n", "", -1},
        {"0::/slurmstepd.scope/sEKNKTV3WPV5OI/step_0\n", "", -1}, /* letters that no SLUID has */
        {"0::/user.slice/sEKNKTV3WPV500/step_0\n", "", -1},
        {"0::/slurmstepd.scope/job_x\n", "", -1},
        {"", "", -1},
    };
    char sluid[PL_SLUID_SIZE];

    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        assert_int_equal(pl_node_process_group(cases[i].text, sluid), cases[i].job);
        assert_string_equal(sluid, cases[i].sluid);
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_group),
        cmocka_unit_test(test_environment),
        cmocka_unit_test(test_hostile),
        cmocka_unit_test(test_long_values),
        cmocka_unit_test(test_gone),
        cmocka_unit_test(test_without_a_first_thread),
        cmocka_unit_test(test_each),
        cmocka_unit_test(test_no_process_to_read_with),
        cmocka_unit_test(test_no_file_to_look_with),
        cmocka_unit_test(test_the_reader_is_killed),
    };

    if (argc > 1) /* started by a test, as "sleep 300" */
        return run_leaderless();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
