/* SPDX-License-Identifier: MIT */
/* The claim of a trial in its job script, and the program. */
#include "common/base/fs.h"
#include "runtime/plrun/trial.h"
#include "tests/unit/bad_close.h"
#include "tests/unit/trial_run.h"

#include <limits.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include <cmocka.h>

static int bad_sync; /* the disk does not take the claim: the errno */

static bool has_path(int fd, const char *part)
{
    char path[PATH_MAX], link[32];
    ssize_t n;

    snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
    n = readlink(link, path, sizeof(path) - 1);
    path[n > 0 ? n : 0] = '\0';
    return strstr(path, part) != NULL;
}

int fsync(int fd)
{
    if (bad_sync && has_path(fd, "/claim")) {
        errno = bad_sync;
        return -1;
    }
    return (int)syscall(SYS_fsync, fd);
}

/* The server has forgotten the folder that is open. */
int unlinkat(int fd, const char *name, int flags)
{
    if (bad_sync == ESTALE && has_path(fd, "/attempt-0.")) {
        errno = ESTALE;
        return -1;
    }
    return (int)syscall(SYS_unlinkat, fd, name, flags);
}

static void test_claim_first_and_again(void **state)
{
    struct pl_error err = {0};
    unsigned attempt = 77;

    assert_int_equal(pl_trial_claim(&attempt, &err), 0);
    assert_int_equal(attempt, 0);
    assert_int_equal(access(in_run("trial-0000/attempt-0/claim"), F_OK), 0);
    assert_int_equal(pl_trial_claim(&attempt, &err), 0); /* the very same job asks again */
    assert_int_equal(attempt, 0);
    as_job("100", "1"); /* requeued */
    assert_int_equal(pl_trial_claim(&attempt, &err), 0);
    assert_int_equal(attempt, 1);
    as_job("100", "2");
    assert_int_equal(pl_trial_claim(&attempt, &err), 0);
    assert_int_equal(attempt, 2);
    as_job("101", NULL);
    attempt = 77;
    assert_int_equal(pl_trial_claim(&attempt, &err), -EEXIST);
    assert_non_null(strstr(err.text, "100"));
    assert_int_equal(attempt, 77);
}

/* A claim that is not on the disk is none: the next job of the trial takes it. */
static void test_claim_refused_at_close(void **state)
{
    struct pl_error err = {0};
    unsigned attempt = 77;

    bad_close = "/claim";
    assert_int_equal(pl_trial_claim(&attempt, &err), -EDQUOT);
    bad_close = NULL;
    assert_int_equal(attempt, 77);
    assert_int_not_equal(access(in_run("trial-0000/attempt-0"), F_OK), 0);
    as_job("101", NULL);
    assert_int_equal(pl_trial_claim(&attempt, &err), 0);
    assert_int_equal(attempt, 0);
}

/* A node that fails now must not leave an empty claim: no later attempt could start. */
static void test_claim_refused_by_disk(void **state)
{
    struct pl_error err = {0};
    unsigned attempt = 77;

    bad_sync = EIO;
    assert_int_equal(pl_trial_claim(&attempt, &err), -EIO);
    bad_sync = 0;
    assert_int_not_equal(access(in_run("trial-0000/attempt-0"), F_OK), 0);
    assert_int_equal(pl_trial_claim(&attempt, &err), 0);
    assert_int_equal(attempt, 0);
}

static void test_claim_in_a_stale_folder(void **state)
{
    struct pl_error err = {0};
    unsigned attempt = 77;

    bad_sync = ESTALE;
    assert_int_equal(pl_trial_claim(&attempt, &err), -ESTALE);
    bad_sync = 0;
    assert_int_equal(rmdir(in_run("trial-0000")), 0); /* nothing is left */
    assert_int_equal(pl_trial_claim(&attempt, &err), 0);
    assert_int_equal(attempt, 0);
}

static void test_claim_by_array(void **state)
{
    struct pl_error err = {0};
    unsigned attempt;

    setenv("SLURM_ARRAY_JOB_ID", "90", 1);
    setenv("SLURM_ARRAY_TASK_ID", "0", 1);
    assert_int_equal(pl_trial_claim(&attempt, &err), 0);
    setenv("SLURM_ARRAY_TASK_ID", "1", 1); /* the same array, but not its element */
    assert_int_equal(pl_trial_claim(&attempt, &err), -EEXIST);
    setenv("SLURM_ARRAY_TASK_ID", "0", 1);
    as_job("777", "1"); /* an element's own job number may change, the array's does not */
    assert_int_equal(pl_trial_claim(&attempt, &err), 0);
    assert_int_equal(attempt, 1);
}

/* A retry takes the next attempt; a task of the first submission that starts late does nothing. */
static void test_claim_by_retry(void **state)
{
    struct pl_error err = {0};
    unsigned attempt = 77;

    assert_int_equal(pl_trial_claim(&attempt, &err), 0);
    as_job("200", NULL);
    setenv("PLUME_RETRY", "1", 1);
    assert_int_equal(pl_trial_claim(&attempt, &err), 0);
    assert_int_equal(attempt, 1);
    assert_int_equal(pl_trial_claim(&attempt, &err), 0); /* the very same job asks again */
    assert_int_equal(attempt, 1);
    as_job("200", "1"); /* requeued */
    assert_int_equal(pl_trial_claim(&attempt, &err), 0);
    assert_int_equal(attempt, 2);
    as_job("201", NULL); /* the same retry, found twice */
    assert_int_equal(pl_trial_claim(&attempt, &err), -EEXIST);
    as_job("202", NULL);
    setenv("PLUME_RETRY", "2", 1);
    assert_int_equal(pl_trial_claim(&attempt, &err), 0);
    assert_int_equal(attempt, 3);
    as_job("100", "1");
    unsetenv("PLUME_RETRY");
    assert_int_equal(pl_trial_claim(&attempt, &err), -EEXIST);
}

/* A program that has said that it is complete does not start again after a requeue; a retry does.
 */
static void test_claim_finished(void **state)
{
    static const char theirs[] = "{\"schema\":\"plume-result/1\",\"trial\":0,\"state\":\"failed\","
                                 "\"attempt\":0,\"finished\":true}";
    struct pl_error err = {0};
    unsigned attempt = 77;

    assert_int_equal(pl_trial_claim(&attempt, &err), 0);
    assert_int_equal(
        pl_file_append(in_run("trial-0000/result.json"), theirs, strlen(theirs), 0666, NULL), 0);
    assert_int_equal(pl_trial_claim(&attempt, &err), 0); /* the very same job asks again */
    as_job("100", "1");                                  /* requeued */
    assert_int_equal(pl_trial_claim(&attempt, &err), -EEXIST);
    assert_non_null(strstr(err.text, "complete"));
    as_job("200", NULL);
    setenv("PLUME_RETRY", "1", 1);
    assert_int_equal(pl_trial_claim(&attempt, &err), 0);
    assert_int_equal(attempt, 1);
    as_job("200", "1"); /* the result is not of this attempt */
    assert_int_equal(pl_trial_claim(&attempt, &err), 0);
    assert_int_equal(attempt, 2);
}

/* Many arrays of one submission at once: exactly one gets the trial, the others are told. */
static void test_claim_race(void **state)
{
    enum { JOBS = 40, ROUNDS = 5 };

    for (int round = 0; round < ROUNDS; round++) {
        unsigned won = 0, lost = 0;
        int go[2];

        assert_int_equal(pipe(go), 0);
        for (int i = 0; i < JOBS; i++)
            if (fork() == 0) {
                struct pl_error err = {0};
                unsigned attempt = 99;
                char job[16], c;
                int r;

                snprintf(job, sizeof(job), "%d", 1000 + i);
                as_job(job, NULL);
                close(go[1]);
                if (read(go[0], &c, 1) != 0)
                    _exit(9);
                r = pl_trial_claim(&attempt, &err);
                _exit(r == 0 && attempt == 0 ? 0 : r == -EEXIST ? 1 : 2);
            }
        close(go[0]);
        close(go[1]); /* all start now */
        for (int i = 0; i < JOBS; i++) {
            int status;

            assert_true(wait(&status) > 0);
            assert_true(WIFEXITED(status));
            won += WEXITSTATUS(status) == 0;
            lost += WEXITSTATUS(status) == 1;
        }
        assert_int_equal(won, 1);
        assert_int_equal(lost, JOBS - 1);
        remove_run(NULL);
        make_run(NULL);
    }
}

static void test_claim_damaged(void **state)
{
    struct pl_error err = {0};
    unsigned attempt = 77;

    assert_int_equal(pl_mkdir_p(in_run("trial-0000/attempt-0"), 0777, &err), 0);
    assert_int_equal(pl_file_append(in_run("trial-0000/attempt-0/claim"), "{}", 2, 0666, &err), 0);
    assert_int_equal(pl_trial_claim(&attempt, &err), -EINVAL);
    assert_int_equal(attempt, 77);
    assert_non_null(strstr(err.text, in_run("trial-0000/attempt-0/claim' is damaged")));
}

/* The line names the file: the job's output does not tell which disk is full. */
static void test_claim_without_room(void **state)
{
    struct rlimit before, none;
    struct pl_error err = {0};
    unsigned attempt = 77;

    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    none = (struct rlimit){0, before.rlim_max};
    signal(SIGXFSZ, SIG_IGN);
    setrlimit(RLIMIT_FSIZE, &none);
    assert_int_equal(pl_trial_claim(&attempt, &err), -EFBIG);
    setrlimit(RLIMIT_FSIZE, &before);
    signal(SIGXFSZ, SIG_DFL);
    assert_int_equal(attempt, 77);
    assert_non_null(strstr(err.text, in_run("trial-0000/attempt-0/claim': File too large")));
    assert_int_equal(rmdir(in_run("trial-0000")), 0); /* nothing is left */
}

/* Everything that runs or writes in the run folder refuses it with one line. */
static void refuses(const char *what, const char *mode)
{
    char **argv = NULL, *program = NULL;
    unsigned attempt;
    int code;

    for (int i = 0; i < 4; i++) {
        struct pl_error err = {0};
        int r = i == 0   ? pl_trial_claim(&attempt, &err)
                : i == 1 ? pl_trial_program(&argv, &err)
                : i == 2 ? pl_trial_finish(0, &code, &err)
                         : pl_trial_find_program("no-such-program", &program, &err);

        assert_int_equal(r, -EPERM);
        assert_non_null(strstr(err.text, what));
        assert_non_null(strstr(err.text, mode));
        assert_null(strchr(err.text, '\n'));
    }
}

static void test_folder_that_others_may_write(void **state)
{
    struct pl_error err = {0};
    unsigned attempt;

    setenv("PLUME_ATTEMPT", "0", 1);
    assert_int_equal(chmod(dir, 0775), 0);
    refuses(dir, "mode 0775");
    assert_int_equal(chmod(dir, 02757), 0);
    refuses(dir, "mode 2757");
    assert_int_equal(chmod(dir, 0755), 0);
    assert_int_equal(chmod(in_run("sweep.json"), 0664), 0); /* edited while the job pends */
    refuses(in_run("sweep.json"), "mode 0664");
    assert_int_equal(chmod(in_run("sweep.json"), 0644), 0);
    assert_int_equal(pl_trial_claim(&attempt, &err), 0);
    assert_int_equal(chmod(in_run("trial-0000"), 0775), 0);
    assert_int_equal(pl_trial_claim(&attempt, &err), -EPERM);
    assert_non_null(strstr(err.text, in_run("trial-0000")));
}

static void test_folder_of_another_user(void **state)
{
    if (getuid() != 0) {
        print_message("# skipped: only root can give a folder away\n");
        return;
    }
    setenv("PLUME_ATTEMPT", "0", 1);
    assert_int_equal(chown(dir, 65534, -1), 0);
    refuses(dir, "nobody");
    assert_int_equal(chown(dir, 0, -1), 0);
    assert_int_equal(chown(in_run("sweep.json"), 65534, -1), 0);
    refuses(in_run("sweep.json"), "nobody");
}

/* A file system may name a folder's files what it likes: none is followed out of it. */
static void test_planted_links(void **state)
{
    struct pl_error err = {0};
    unsigned attempt;
    char other[128];

    assert_int_equal(mkdir(in_run("elsewhere"), 0755), 0);
    assert_int_equal(symlink("elsewhere", in_run("trial-0000")), 0);
    assert_int_equal(pl_trial_claim(&attempt, &err), -ELOOP);
    assert_int_equal(unlink(in_run("trial-0000")), 0);
    snprintf(other, sizeof(other), "%s/other.json", dir);
    assert_int_equal(rename(in_run("sweep.json"), other), 0);
    assert_int_equal(symlink("other.json", in_run("sweep.json")), 0);
    assert_int_equal(pl_trial_claim(&attempt, &err), -ELOOP);
}

static void test_claim_umask(void **state)
{
    struct pl_error err = {0};
    mode_t before = umask(0);
    struct stat st;
    unsigned attempt;

    assert_int_equal(pl_trial_claim(&attempt, &err), 0);
    umask(before);
    assert_int_equal(stat(in_run("trial-0000"), &st), 0);
    assert_int_equal(st.st_mode & 0777, 0755);
    assert_int_equal(stat(in_run("trial-0000/attempt-0"), &st), 0);
    assert_int_equal(st.st_mode & 0777, 0755);
    assert_int_equal(stat(in_run("trial-0000/attempt-0/claim"), &st), 0);
    assert_int_equal(st.st_mode & 0777, 0644);
}

static void test_claim_outside_script(void **state)
{
    static const char *const bad[][2] = {
        {"PLUME_RUN_DIR", NULL},     {"PLUME_RUN_DIR", "/nonexistent"},
        {"PLUME_TRIAL", NULL},       {"PLUME_TRIAL", "2"},
        {"PLUME_TRIAL", "-1"},       {"SLURM_JOB_ID", NULL},
        {"SLURM_RESTART_COUNT", "x"}};

    for (size_t i = 0; i < PL_COUNT(bad); i++) {
        struct pl_error err = {0};
        unsigned attempt;

        remove_run(NULL);
        make_run(NULL);
        bad[i][1] ? setenv(bad[i][0], bad[i][1], 1) : unsetenv(bad[i][0]);
        assert_true(pl_trial_claim(&attempt, &err) < 0);
        assert_int_not_equal(err.text[0], '\0');
        assert_int_not_equal(access(in_run("trial-0000/attempt-0"), F_OK), 0);
    }
}

static void test_program_values(void **state)
{
    struct pl_error err = {0};
    char **argv = NULL;

    setenv("PLUME_TRIAL", "1", 1);
    unsetenv("PLUME_ATTEMPT");
    assert_int_equal(pl_trial_program(&argv, &err), -ENOENT);
    assert_non_null(strstr(err.text, "PLUME_ATTEMPT is not set"));
    setenv("PLUME_ATTEMPT", "0", 1);
    assert_int_equal(pl_trial_program(&argv, &err), 0);
    assert_string_equal(argv[0], "prog");
    assert_string_equal(argv[1], "--x=b c");
    assert_null(argv[2]);
    assert_string_equal(getenv("PLUME_PARAM_lr"), "b c");
    assert_string_equal(getenv("PLUME_PARAMS"), "{\"lr\":\"b c\"}");
    pl_strv_free(argv);
}

/* After the set-up PATH decides, and where it has none the program that plsubmit found. */
static void test_find_program(void **state)
{
    _cleanup_free_ char *path = pl_strf("%s/tool", top), *found = NULL, *missing = NULL;
    const char *before = getenv("PATH");
    _cleanup_free_ char *old = strdup(before ? before : ""), *new = pl_strf("/bin:%s", top);
    struct pl_error err = {0};

    assert_int_equal(pl_file_write_atomic(path, "#!/bin/sh\n", 10, 0700, &err), 0);
    setenv("PATH", new, 1);
    assert_int_equal(pl_trial_find_program("tool", &found, &err), 0);
    assert_string_equal(found, path);
    assert_int_equal(pl_trial_find_program("no-such-tool", &missing, &err), 0);
    assert_string_equal(missing, "prog");
    setenv("PATH", old, 1);
}

static void test_program_found(void **state)
{
    struct pl_error err = {0};
    char **argv = NULL;

    setenv("PLUME_PROGRAM", "/venv/bin/prog", 1);
    setenv("PLUME_ATTEMPT", "0", 1);
    assert_int_equal(pl_trial_program(&argv, &err), 0);
    assert_string_equal(argv[0], "/venv/bin/prog");
    assert_string_equal(argv[1], "--x=a");
    pl_strv_free(argv);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        IN_RUN(test_claim_first_and_again),
        IN_RUN(test_claim_refused_at_close),
        IN_RUN(test_claim_refused_by_disk),
        IN_RUN(test_claim_in_a_stale_folder),
        IN_RUN(test_claim_by_array),
        IN_RUN(test_claim_by_retry),
        IN_RUN(test_claim_finished),
        IN_RUN(test_claim_race),
        IN_RUN(test_claim_damaged),
        IN_RUN(test_claim_without_room),
        IN_RUN(test_folder_that_others_may_write),
        IN_RUN(test_folder_of_another_user),
        IN_RUN(test_planted_links),
        IN_RUN(test_claim_umask),
        IN_RUN(test_claim_outside_script),
        IN_RUN(test_program_values),
        IN_RUN(test_find_program),
        IN_RUN(test_program_found),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
