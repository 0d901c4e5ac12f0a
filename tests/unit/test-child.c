/* SPDX-License-Identifier: MIT */
#include "common/base/child.h"
#include "common/base/fs.h"

#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <cmocka.h>

static void test_run_captures(void **state)
{
    static const char *const argv[] = {"sh", "-c",    "echo \"out $1\"; echo err $A >&2; exit 3",
                                       "sh", "a'b c", NULL};
    char *env[] = {"A=x", "PATH=/usr/bin:/bin", NULL};
    _cleanup_(pl_child_finish) struct pl_child child = {0};
    struct pl_error err = {0};

    assert_int_equal(pl_child_run(argv, env, 10000, &child, &err), 0);
    assert_true(WIFEXITED(child.status));
    assert_int_equal(WEXITSTATUS(child.status), 3);
    assert_string_equal(pl_buf_str(&child.out), "out a'b c\n");
    assert_string_equal(pl_buf_str(&child.err), "err x\n");
}

/* As in a program whose caller ignores SIGCHLD. */
static void test_run_after_ignored_signal(void **state)
{
    static const char *const argv[] = {"sh", "-c", "exit 3", NULL};
    _cleanup_(pl_child_finish) struct pl_child child = {0};
    struct pl_error err = {0};

    signal(SIGCHLD, SIG_IGN);
    pl_child_init();
    assert_int_equal(pl_child_run(argv, NULL, 10000, &child, &err), 0);
    assert_int_equal(WEXITSTATUS(child.status), 3);
}

/* The error of the call that failed, and not of one after it. */
static void test_run_without_descriptors(void **state)
{
    static const char *const argv[] = {"true", NULL};
    _cleanup_(pl_child_finish) struct pl_child child = {0};
    struct pl_error err = {0};
    struct rlimit before, few;
    int fd = open("/dev/null", O_RDONLY | O_CLOEXEC);

    assert_true(fd >= 0);
    close(fd);
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
    few = (struct rlimit){(rlim_t)fd + 6, before.rlim_max}; /* enough for the pipes */
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &few), 0);
    assert_int_equal(pl_child_run(argv, NULL, 10000, &child, &err), -EMFILE);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
}

static void test_said(void **state)
{
    static const struct {
        const char *text, *line;
    } cases[] = {
        {"", ""},
        {"plstat: no run\n", "plstat: no run"},
        {"plstat: warning: PLUME_LOG is 'x'\nplstat: no run\nmore\n", "plstat: no run"},
        {"0: plstat: warning: a\n0: plstat: warning: b\n0: no", "0: no"},
        {"srun: warning: a\nsrun: warning: b\n", "srun: warning: a"},
        {"srun: warning: a", "srun: warning: a"},
        {"no\nplstat: warning: a\n", "no"},
    };

    for (size_t i = 0; i < PL_COUNT(cases); i++) {
        _cleanup_(pl_child_finish) struct pl_child child = {0};
        _cleanup_free_ char *line = NULL;
        const char *said;
        int len;

        assert_int_equal(pl_buf_adds(&child.err, cases[i].text), 0);
        len = pl_child_said(&child, &said);
        line = strndup(said, (size_t)len);
        assert_string_equal(line, cases[i].line);
    }
}

static void test_run_big_output(void **state)
{
    static const char *const argv[] = {"head", "-c", "3000000", "/dev/zero", NULL};
    _cleanup_(pl_child_finish) struct pl_child child = {0};
    struct pl_error err = {0};

    assert_int_equal(pl_child_run(argv, NULL, 60000, &child, &err), 0);
    assert_int_equal(child.out.len, 3000000);
}

static void test_run_missing(void **state)
{
    static const char *const argv[] = {"plume-no-such-program", NULL};
    _cleanup_(pl_child_finish) struct pl_child child = {0};
    struct pl_error err = {0};

    assert_int_equal(pl_child_run(argv, NULL, 10000, &child, &err), -ENOENT);
    assert_non_null(strstr(err.text, "plume-no-such-program"));
}

static void test_run_timeout(void **state)
{
    static const char *const argv[] = {"sh", "-c", "trap '' TERM; echo hello; sleep 60; true",
                                       NULL};
    _cleanup_(pl_child_finish) struct pl_child child = {0};
    uint64_t start = pl_now_ns();
    struct pl_error err = {0};

    assert_int_equal(pl_child_run(argv, NULL, 300, &child, &err), -ETIMEDOUT);
    assert_true(pl_now_ns() - start < 20000000000u);
    assert_true(WIFSIGNALED(child.status));
    assert_string_equal(pl_buf_str(&child.out), "hello\n");
}

static int asked;

static int yes(struct pl_error *err)
{
    asked++;
    return 0;
}

static int no(struct pl_error *err)
{
    asked++;
    return pl_error_set(err, -EHOSTUNREACH, "nobody there");
}

/* A child may live after it has closed its pipes. Its wait keeps its limit, and no descriptor. */
static void test_run_closed_pipes(void **state)
{
    static const char *const late[] = {"sh", "-c", "exec >&- 2>&-; sleep 0.3; exit 3", NULL};
    static const char *const never[] = {"sh", "-c", "exec >&- 2>&- sleep 60", NULL};
    int before = open("/dev/null", O_RDONLY | O_CLOEXEC), after;
    uint64_t start = pl_now_ns();

    for (int i = 0; i < 2; i++) {
        _cleanup_(pl_child_finish) struct pl_child child = {0};
        struct pl_error err = {0};

        assert_int_equal(pl_child_run(i ? never : late, NULL, i ? 300 : 30000, &child, &err),
                         i ? -ETIMEDOUT : 0);
        assert_true(i || WEXITSTATUS(child.status) == 3);
    }
    assert_true(pl_now_ns() - start < UINT64_C(25000000000));
    after = open("/dev/null", O_RDONLY | O_CLOEXEC);
    assert_int_equal(after, before + 1);
    close(after);
    close(before);
}

/* A process that ignores SIGCHLD gets no status of its children. */
static void test_run_with_ignored_signal(void **state)
{
    static const char *const argv[] = {"sh", "-c", "exec >&- 2>&-; sleep 0.1", NULL};
    _cleanup_(pl_child_finish) struct pl_child child = {0};
    struct pl_error err = {0};

    signal(SIGCHLD, SIG_IGN);
    assert_int_equal(pl_child_run(argv, NULL, 2000, &child, &err), -ECHILD);
    signal(SIGCHLD, SIG_DFL);
}

static int n_notices;

static void notice(const char *said)
{
    assert_true(strncmp(said, "full\n2", 5 * (n_notices == 0)) == 0);
    n_notices++;
}

static void test_run_patiently(void **state)
{
    static const char *const quick[] = {"true", NULL}, *const stuck[] = {"sleep", "60", NULL},
                             *const slow[] = {"sh", "-c", "echo full >&2; sleep 0.3", NULL},
                             *const noticed[] = {"sh", "-c", "echo full >&2; sleep 0.3; echo 2 >&2",
                                                 NULL};
    static const struct pl_child_limits late = {30000, 29000, 29000, no, notice},
                                        go = {30000, 50, 29000, yes, notice},
                                        stop = {30000, 50, 29000, no, notice},
                                        tell = {30000, 150, 100, yes, notice},
                                        never = {200, 0, 100, NULL, notice};
    struct pl_child child = {0};
    struct pl_error err = {0};

    asked = 0;
    assert_int_equal(pl_child_run_patiently(quick, NULL, &late, &child, &err), 0);
    assert_int_equal(asked, 0);
    assert_int_equal(pl_child_run_patiently(slow, NULL, &go, &child, &err), 0);
    assert_int_equal(asked, 1);
    assert_int_equal(child.status, 0);
    assert_int_equal(pl_child_run_patiently(stuck, NULL, &stop, &child, &err), -EHOSTUNREACH);
    assert_string_equal(err.text, "nobody there");
    assert_true(WIFSIGNALED(child.status));
    assert_int_equal(n_notices, 0);
    pl_child_finish(&child);
    child = (struct pl_child){0};
    assert_int_equal(pl_child_run_patiently(noticed, NULL, &tell, &child, &err), 0);
    assert_int_equal(n_notices, 1);
    assert_int_equal(asked, 3);
    assert_string_equal(pl_buf_str(&child.err), "full\n2\n");
    assert_int_equal(pl_child_run_patiently(stuck, NULL, &never, &child, &err), -ETIMEDOUT);
    assert_int_equal(n_notices, 2);
    pl_child_finish(&child);
}

static int answer(void *ctx, int fd)
{
    printf("not seen\n");
    fflush(stdout);
    return pl_write_all(fd, ctx, strlen(ctx)) < 0 ? 9 : 7;
}

static int hang(void *ctx, int fd)
{
    pause();
    return 0;
}

/* Each of two jobs waits for the other. */
static void test_jobs_run_at_the_same_time(void **state)
{
    static const char script[] = "read -r line <\"$1\"; echo \"$line\"; echo there >\"$2\"";
    static const char later[] = "echo here >\"$1\"; read -r line <\"$2\"; echo \"$line\"; exit 4";
    char dir[] = "/tmp/test-child-XXXXXX", ping[64], pong[64];
    const char *const first[] = {"sh", "-c", script, "sh", ping, pong, NULL};
    const char *const second[] = {"sh", "-c", later, "sh", ping, pong, NULL};
    _cleanup_(pl_child_finish) struct pl_child one = {0}, two = {0};
    struct pl_child_job jobs[2];
    struct pl_error err = {0};

    assert_non_null(mkdtemp(dir));
    snprintf(ping, sizeof(ping), "%s/ping", dir);
    snprintf(pong, sizeof(pong), "%s/pong", dir);
    assert_int_equal(mkfifo(ping, 0600), 0);
    assert_int_equal(mkfifo(pong, 0600), 0);
    assert_int_equal(pl_child_start(first, NULL, &jobs[0], &err), 0);
    assert_int_equal(pl_child_start(second, NULL, &jobs[1], &err), 0);
    assert_int_equal(pl_child_wait(&jobs[0], 10000, &one, &err), 0);
    assert_int_equal(pl_child_wait(&jobs[1], 10000, &two, &err), 0);
    assert_string_equal(pl_buf_str(&one.out), "here\n");
    assert_string_equal(pl_buf_str(&two.out), "there\n");
    assert_int_equal(WEXITSTATUS(one.status), 0);
    assert_int_equal(WEXITSTATUS(two.status), 4);
    unlink(ping);
    unlink(pong);
    rmdir(dir);
}

static void test_job_that_cannot_start(void **state)
{
    static const char *const argv[] = {"plume-no-such-program", NULL};
    _cleanup_(pl_child_finish) struct pl_child child = {0};
    struct pl_child_job job;
    struct pl_error err = {0};

    assert_int_equal(pl_child_start(argv, NULL, &job, &err), 0);
    assert_int_equal(pl_child_wait(&job, 10000, &child, &err), -ENOENT);
    assert_non_null(strstr(err.text, "plume-no-such-program"));
    assert_int_equal(waitpid(job.pid, NULL, WNOHANG), -1); /* nothing is left */
}

static void test_call(void **state)
{
    _cleanup_(pl_child_finish) struct pl_child child = {0}, stuck = {0};
    struct pl_error err = {0};
    char text[] = "text";

    assert_int_equal(pl_child_call(answer, text, 10000, &child, &err), 0);
    assert_string_equal(pl_buf_str(&child.out), "text");
    assert_int_equal(WEXITSTATUS(child.status), 7);
    assert_int_equal(pl_child_call(hang, NULL, 100, &stuck, &err), -ETIMEDOUT);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_run_captures),
        cmocka_unit_test(test_run_without_descriptors),
        cmocka_unit_test(test_said),
        cmocka_unit_test(test_run_big_output),
        cmocka_unit_test(test_run_missing),
        cmocka_unit_test(test_run_timeout),
        cmocka_unit_test(test_run_closed_pipes),
        cmocka_unit_test(test_run_with_ignored_signal),
        cmocka_unit_test(test_run_patiently),
        cmocka_unit_test(test_jobs_run_at_the_same_time),
        cmocka_unit_test(test_job_that_cannot_start),
        cmocka_unit_test(test_call),
        cmocka_unit_test(test_run_after_ignored_signal),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
