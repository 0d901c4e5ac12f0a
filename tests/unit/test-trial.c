/* SPDX-License-Identifier: MIT */
#include "common/base/fs.h"
#include "common/proto/json.h"
#include "runtime/plrun/trial.h"
#include "tests/lib/tmpdir.h"

#include <fcntl.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>

#include <cmocka.h>

static char top[64], dir[80];
static const char *signal_option, *max_fail_option; /* --signal and --max-fail of the next run */

static int one_value(void *ctx, unsigned trial, const char **values)
{
    values[0] = trial ? "b c" : "a";
    return 0;
}

/* Removes what Slurm and Plume set; the test runner's own variables stay. */
static void clear_env(void)
{
    for (char **e = environ; *e;) {
        char name[64];

        snprintf(name, sizeof(name), "%.*s", (int)strcspn(*e, "="), *e);
        if (strncmp(name, "SLURM", 5) == 0 || strncmp(name, "PLUME", 5) == 0)
            unsetenv(name); /* moves the rest up */
        else
            e++;
    }
}

/* A run of two trials, and the environment of the first one's job script. */
static int make_run(void **state)
{
    static const char *const argv[] = {"prog", "--x={lr}", NULL}, *const axes[] = {"lr", NULL};
    json_t *options = json_pack("{s:{s:s*}, s:{s:s*}}", "signal", "value", signal_option,
                                "max-fail", "value", max_fail_option);
    struct pl_run_desc desc = {.sweep = "s-1",
                               .name = "s",
                               .n_trials = 2,
                               .argv = argv,
                               .axes = axes,
                               .options = options,
                               .values = one_value};
    struct pl_error err = {0};
    int r;

    if (tmpdir_make(top, sizeof(top)) < 0)
        return -1;
    snprintf(dir, sizeof(dir), "%s/run", top);
    r = pl_run_create(dir, &desc, &err);
    json_decref(options);
    clear_env();
    setenv("PATH", top, 1); /* no scontrol */
    setenv("PLUME_RUN_DIR", dir, 1);
    setenv("PLUME_TRIAL", "0", 1);
    setenv("SLURM_JOB_ID", "100", 1);
    return r;
}

static int remove_run(void **state)
{
    return tmpdir_remove(top);
}

static char *in_run(const char *name)
{
    static char path[256];

    snprintf(path, sizeof(path), "%s/%s", dir, name);
    return path;
}

static void as_job(const char *job, const char *restart)
{
    setenv("SLURM_JOB_ID", job, 1);
    restart ? setenv("SLURM_RESTART_COUNT", restart, 1) : unsetenv("SLURM_RESTART_COUNT");
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

static json_t *result(void)
{
    struct pl_error err = {0};
    json_t *o = NULL;

    if (pl_json_load_file(in_run("trial-0000/result.json"), 1 << 20, &o, &err) < 0)
        fail_msg("%s", err.text);
    return o;
}

static void finish_with(int code, int want_code, const char *state, const char *kind)
{
    struct pl_error err = {0};
    int ret = 77;
    json_t *o;
    const char *have;

    setenv("PLUME_ATTEMPT", "0", 1);
    if (pl_trial_finish(code, &ret, &err) < 0)
        fail_msg("%s", err.text);
    assert_int_equal(ret, want_code);
    o = result();
    assert_string_equal(pl_json_string(o, "state"), state);
    have = pl_json_string(json_object_get(o, "cause"), "kind");
    if (kind)
        assert_string_equal(have, kind);
    else
        assert_null(have);
    json_decref(o);
}

static void claim(void)
{
    unsigned attempt;

    assert_int_equal(pl_trial_claim(&attempt, NULL), 0);
}

static void test_finish_setup_failed(void **state)
{
    claim();
    finish_with(5, 5, "failed", "setup");
}

/* A hub that was killed has left the room for its result. */
static void test_finish_uses_the_room_of_a_killed_hub(void **state)
{
    char room[4096];

    memset(room, ' ', sizeof(room));
    claim();
    assert_int_equal(
        pl_file_append(in_run("trial-0000/result.json.tmp"), room, sizeof(room), 0666, NULL), 0);
    finish_with(5, 5, "failed", "setup");
    assert_int_not_equal(access(in_run("trial-0000/result.json.tmp"), F_OK), 0);
}

static void test_finish_launch_failed(void **state)
{
    claim();
    setenv("PLUME_HUB", "n1:5", 1);
    finish_with(1, 1, "failed", "launch");
}

static void test_finish_terminated(void **state)
{
    claim();
    finish_with(143, 143, "cancelled", "cancelled");
}

static void test_finish_asks_slurm(void **state)
{
    char path[128];

    claim();
    snprintf(path, sizeof(path), "%s/scontrol", top);
    assert_int_equal(pl_file_append(path, "#!/bin/sh\necho JobState=TIMEOUT\n", 32, 0755, NULL), 0);
    finish_with(143, 143, "timed-out", "timeout");
}

static void test_finish_good_without_step(void **state)
{
    claim();
    finish_with(0, 0, "done", NULL);
}

/* A log that the hub last wrote to a minute ago, with this line. */
static void begin_log(const char *last)
{
    const struct timespec old[2] = {{.tv_sec = time(NULL) - 60}, {.tv_sec = time(NULL) - 60}};
    static const char log[] =
        "{\"type\":\"attempt\",\"job\":\"7\",\"step\":\"0\",\"world_size\":1}\n"
        "{\"type\":\"node\",\"node_id\":0,\"node\":\"n1\",\"state\":\"joined\"}\n"
        "{\"type\":\"rank\",\"rank\":0,\"state\":\"running\"}\n";
    char path[256];

    snprintf(path, sizeof(path), "%s", in_run("trial-0000/attempt-0/events.jsonl"));
    assert_int_equal(pl_file_append(path, log, strlen(log), 0666, NULL), 0);
    assert_int_equal(pl_file_append(path, last, strlen(last), 0666, NULL), 0);
    assert_int_equal(utimensat(AT_FDCWD, path, old, 0), 0);
}

/* Waits, ten seconds at most, until our parent is asleep. */
static bool parent_sleeps(void)
{
    double limit = pl_wall_s() + 10;
    char path[64], state = '?';

    snprintf(path, sizeof(path), "/proc/%d/stat", (int)getppid());
    while (state != 'S' && pl_wall_s() < limit) {
        FILE *f = fopen(path, "re");

        if (!f || fscanf(f, "%*d (%*[^)]) %c", &state) != 1)
            state = '?';
        if (f)
            fclose(f);
        sched_yield();
    }
    return state == 'S';
}

/* srun can end before the hub has written the result; its log is young then. */
static void test_finish_waits_for_the_hub(void **state)
{
    static const char log[] = "{\"type\":\"attempt\",\"world_size\":1}\n";
    static const char done[] =
        "{\"schema\":\"" PL_RESULT_SCHEMA "\",\"trial\":0,\"state\":\"done\",\"attempt\":0,"
        "\"attempts\":1,\"job\":\"100\",\"exit_code\":0}\n";
    char path[256];
    pid_t hub;
    int status;

    claim();
    snprintf(path, sizeof(path), "%s", in_run("trial-0000/attempt-0/events.jsonl"));
    assert_int_equal(pl_file_append(path, log, strlen(log), 0666, NULL), 0);
    hub = fork();
    if (hub == 0) {
        /* pl_trial_finish() sleeps only where it waits for us */
        if (!parent_sleeps())
            _exit(2);
        _exit(pl_file_append(in_run("trial-0000/result.json"), done, strlen(done), 0666, NULL) < 0);
    }
    finish_with(0, 0, "done", NULL);
    assert_int_equal(waitpid(hub, &status, 0), hub);
    assert_int_equal(status, 0);
}

/* The hub began a log and never ended it: its node is gone, unless we run there. Success is not
 * claimed. */
static void test_finish_hub_vanished(void **state)
{
    claim();
    begin_log("");
    setenv("SLURMD_NODENAME", "n2", 1);
    finish_with(0, 1, "node-failed", "node");
}

static void test_finish_hub_killed(void **state)
{
    claim();
    begin_log("");
    setenv("SLURMD_NODENAME", "n1", 1);
    finish_with(143, 143, "failed", "runtime");
}

/* Nobody knows who sent a SIGKILL, unless Slurm says in the job's output that it ended the step. */
static void test_finish_all_killed(void **state)
{
    claim();
    begin_log("");
    finish_with(137, 137, "failed", "signal");
}

/* Finishes with 137 a trial whose hub did not end its log, which ends with this line, and whose
 * output said this before the attempt began, and after. */
static json_t *finish_with_outputs(const char *line, const char *before, const char *said)
{
    char path[128];
    int saved = dup(2), fd;

    snprintf(path, sizeof(path), "%s/slurm.out", top);
    fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC, 0600);
    assert_int_equal(pl_write_all(fd, before, strlen(before)), 0);
    dup2(fd, 2);
    claim();
    begin_log(line);
    assert_int_equal(pl_write_all(fd, said, strlen(said)), 0);
    setenv("PLUME_ATTEMPT", "0", 1);
    assert_int_equal(pl_trial_finish(137, &(int){0}, NULL), 0);
    dup2(saved, 2);
    close(saved);
    close(fd);
    return result();
}

static json_t *finish_with_output(const char *line, const char *said)
{
    return finish_with_outputs(line, "", said);
}

#define STEP_CANCELLED                                                                             \
    "slurmstepd-n1: error: *** STEP 7.0 ON n1 CANCELLED AT 2026-01-01T00:00:00 ***\n"              \
    "srun: error: n1: task 0: Killed\n"

static void test_finish_step_cancelled(void **state)
{
    json_t *o = finish_with_output("", STEP_CANCELLED);

    assert_string_equal(pl_json_string(o, "state"), "cancelled");
    assert_string_equal(pl_json_string(json_object_get(o, "cause"), "confidence"), "inferred");
    json_decref(o);
}

/* srun writes a line for each node after Slurm's word. */
static void test_finish_step_cancelled_on_many_nodes(void **state)
{
    _cleanup_(pl_buf_finish) struct pl_buf said = {0};
    json_t *o;

    assert_int_equal(pl_buf_adds(&said, STEP_CANCELLED), 0);
    for (int i = 2; i < 400; i++)
        assert_int_equal(pl_buf_addf(&said, "srun: error: n%d: task %d: Killed\n", i, i), 0);
    o = finish_with_output("", pl_buf_str(&said));
    assert_string_equal(pl_json_string(o, "state"), "cancelled");
    json_decref(o);
}

static void test_finish_step_cancelled_before(void **state)
{
    static const struct {
        const char *before, *said, *kind;
    } cases[] = {
        /* a requeued job appends to the output of the attempt before, with the same numbers */
        {STEP_CANCELLED, "srun: error: n1: task 0: Killed\n", "signal"},
        {"srun: error: Terminating job step 7.0\n", STEP_CANCELLED, "cancelled"},
        {"plrun: the node daemon is gone; ending rank 0\n", "", "signal"},
        /* of another job that writes into the same file, or of another step of the script */
        {"", "slurmstepd-n1: error: *** STEP 17.0 ON n1 CANCELLED AT 2026-01-01T00:00:00 ***\n",
         "signal"},
        {"", "slurmstepd-n1: error: *** STEP 7.1 ON n1 CANCELLED AT 2026-01-01T00:00:00 ***\n",
         "signal"},
        {"", "slurmstepd-n1: error: *** STEP 7.01 ON n1 CANCELLED AT 2026-01-01T00:00:00 ***\n",
         "signal"},
        {"", "slurmstepd-n1: error: *** JOB 7 ON n1 CANCELLED AT 2026-01-01T00:00:00 ***\n",
         "signal"},
        {"", "slurmstepd-n1: error: *** STEP 7.0 ON n1 FAILED (non-zero exit code) ***\n",
         "signal"},
    };

    for (size_t i = 0; i < PL_COUNT(cases); i++) {
        json_t *o = finish_with_outputs("", cases[i].before, cases[i].said), *cause;

        cause = json_object_get(o, "cause");
        assert_string_equal(pl_json_string(cause, "kind"), cases[i].kind);
        if (!*cases[i].said)
            assert_null(json_object_get(cause, "text"));
        else if (*cases[i].before)
            assert_null(strstr(pl_json_string(cause, "text"), cases[i].before));
        json_decref(o);
        assert_int_equal(remove_run(NULL), 0);
        assert_int_equal(make_run(NULL), 0);
    }
}

/* The script's set-up has turned its stderr to a file of which the claim knows nothing, or a
 * program has cut off what there was before. */
static void test_finish_stderr_changed(void **state)
{
    static const char twice[] = STEP_CANCELLED STEP_CANCELLED;
    int saved = dup(2);

    for (int cut = 0; cut < 2; cut++) {
        _cleanup_free_ char *path = pl_strf("%s/slurm.out", top), *other = pl_strf("%s/other", top);
        int fd = open(path, O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
        json_t *o;

        assert_int_equal(pl_write_all(fd, twice, strlen(twice)), 0);
        dup2(fd, 2);
        close(fd);
        claim();
        begin_log("");
        fd = open(cut ? path : other, O_RDWR | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC, 0600);
        assert_int_equal(pl_write_all(fd, STEP_CANCELLED, strlen(STEP_CANCELLED)), 0);
        dup2(fd, 2);
        close(fd);
        setenv("PLUME_ATTEMPT", "0", 1);
        assert_int_equal(pl_trial_finish(137, &(int){0}, NULL), 0);
        dup2(saved, 2);
        o = result();
        assert_string_equal(pl_json_string(o, "state"), cut ? "cancelled" : "failed");
        assert_non_null(pl_json_string(json_object_get(o, "cause"), "text"));
        json_decref(o);
        assert_int_equal(remove_run(NULL), 0);
        assert_int_equal(make_run(NULL), 0);
    }
    close(saved);
}

/* SIGKILL came to other nodes first, and the hub has named a cause before its own came. Other
 * causes stay, and so does any where srun has ended the step as a rank had failed. */
static void test_finish_step_cancelled_with_a_cause(void **state)
{
    static const struct {
        const char *cause, *before, *kind;
    } cases[] = {
        {"\"kind\":\"runtime\",\"rank\":0", "", "cancelled"},
        {"\"kind\":\"node\",\"rank\":0", "", "cancelled"},
        {"\"kind\":\"signal\",\"signal\":9", "", "cancelled"},
        {"\"kind\":\"signal\",\"signal\":11", "", "signal"},
        {"\"kind\":\"exit\",\"exit\":1", "", "exit"},
        {"\"kind\":\"runtime\"", "srun: Terminating StepId=7.0\n", "runtime"},
        {"\"kind\":\"runtime\"", "srun: error: Terminating job step 7.0\n", "runtime"},
    };

    for (size_t i = 0; i < PL_COUNT(cases); i++) {
        _cleanup_free_ char *line =
            pl_strf("{\"type\":\"cause\",\"cause\":{%s}}\n", cases[i].cause);
        _cleanup_free_ char *said = pl_strf("%s" STEP_CANCELLED, cases[i].before);
        json_t *o = finish_with_output(line, said);

        assert_string_equal(pl_json_string(json_object_get(o, "cause"), "kind"), cases[i].kind);
        json_decref(o);
        assert_int_equal(remove_run(NULL), 0);
        assert_int_equal(make_run(NULL), 0);
    }
}

/* Slurm says as well why it ended the step, where that was no scancel: the hub's cause stays. */
static void test_finish_step_ended_by_slurm(void **state)
{
    static const char *const reasons[] = {"NODE FAILURE, SEE SLURMCTLD LOG FOR DETAILS",
                                          "TIME LIMIT", "PREEMPTION", "JOB REQUEUE"};

    for (size_t i = 0; i < PL_COUNT(reasons); i++) {
        _cleanup_free_ char *said = pl_strf("slurmstepd-n1: error: *** STEP 7.0 ON n1 CANCELLED AT "
                                            "2026-01-01T00:00:00 DUE TO %s ***\n"
                                            "srun: error: n1: task 0: Killed\n",
                                            reasons[i]);
        json_t *o = finish_with_output(
            "{\"type\":\"cause\",\"cause\":{\"kind\":\"node\",\"rank\":0}}\n", said);

        assert_string_equal(pl_json_string(json_object_get(o, "cause"), "kind"), "node");
        json_decref(o);
        assert_int_equal(remove_run(NULL), 0);
        assert_int_equal(make_run(NULL), 0);
    }
}

/* plrun itself kills a rank that ignores SIGTERM after the node's daemon, which has the hub, was
 * killed. The node is well: plrun has spoken there. */
static void test_finish_ranks_killed_by_plrun(void **state)
{
    const json_t *cause;
    json_t *o;

    setenv("SLURMD_NODENAME", "n2", 1);
    o = finish_with_output("", "plrun: the node daemon is gone; ending rank 0\n"
                               "srun: error: n1: task 0: Exited with exit code 137\n");
    cause = json_object_get(o, "cause");
    assert_string_equal(pl_json_string(o, "state"), "failed");
    assert_string_equal(pl_json_string(cause, "kind"), "runtime");
    assert_string_equal(pl_json_string(cause, "confidence"), "inferred");
    json_decref(o);
}

static void test_finish_cause_in_log(void **state)
{
    static const char log[] = "{\"type\":\"attempt\",\"world_size\":1}\n"
                              "{\"type\":\"cause\",\"cause\":{\"kind\":\"oom\"}}\n";

    claim();
    assert_int_equal(
        pl_file_append(in_run("trial-0000/attempt-0/events.jsonl"), log, strlen(log), 0666, NULL),
        0);
    finish_with(137, 137, "failed", "oom");
}

/* The hub's result stands; its code is the script's. An earlier attempt's does not. */
static void test_finish_result_there(void **state)
{
    static const char theirs[] = "{\"schema\":\"plume-result/1\",\"trial\":0,\"state\":\"failed\","
                                 "\"attempt\":0,\"exit_code\":3,\"cause\":{\"kind\":\"exit\"}}\n";
    struct pl_error err = {0};
    json_t *o;
    int ret;

    claim();
    assert_int_equal(
        pl_file_append(in_run("trial-0000/result.json"), theirs, strlen(theirs), 0666, NULL), 0);
    finish_with(0, 3, "failed", "exit");
    setenv("PLUME_ATTEMPT", "1", 1);
    assert_int_equal(pl_trial_finish(9, &ret, &err), 0);
    assert_int_equal(ret, 9);
    o = result();
    assert_int_equal(json_integer_value(json_object_get(o, "attempt")), 1);
    json_decref(o);
}

/* The end of a program that has left at a signal, where Slurm has this record of the job. */
static void
stopped_with(const char *keys, const char *record, int code, const char *state, const char *kind)
{
    char path[128], text[512];
    int len;

    remove_run(NULL);
    make_run(NULL);
    claim();
    snprintf(path, sizeof(path), "%s/scontrol", top);
    len = snprintf(text, sizeof(text), "#!/bin/sh\n%s\n", record);
    assert_int_equal(pl_file_append(path, text, (size_t)len, 0755, NULL), 0);
    len = snprintf(text, sizeof(text),
                   "{\"schema\":\"plume-result/1\",\"trial\":0,\"attempt\":0,%s}\n", keys);
    assert_int_equal(
        pl_file_append(in_run("trial-0000/result.json"), text, (size_t)len, 0666, NULL), 0);
    finish_with(0, code, state, kind);
}

/* Who saves and leaves at SIGUSR1 is not done: Slurm sends it before the time limit. */
static void test_finish_stopped(void **state)
{
    static const char good[] = "\"state\":\"done\",\"exit_code\":0,\"stopped\":\"USR1\"";
    static const char pltrain[] = "\"state\":\"failed\",\"exit_code\":130,\"stopped\":\"USR1\","
                                  "\"cause\":{\"kind\":\"exit\",\"exit\":130,\"rank\":1}";
    static const char near[] = "echo JobState=RUNNING RunTime=01:58:00 TimeLimit=02:00:00";

    signal_option = "USR1@60";
    stopped_with(good, near, 138, "timed-out", "timeout");
    stopped_with(pltrain, near, 130, "timed-out", "timeout");
    stopped_with(good, "echo JobState=RUNNING RunTime=1-00:00:00 TimeLimit=1-00:02:31", 138,
                 "cancelled", "cancelled");
    stopped_with(good, "echo JobState=RUNNING RunTime=00:00:05 TimeLimit=UNLIMITED", 138,
                 "cancelled", "cancelled");
    stopped_with(good,
                 "echo JobState=RUNNING PreemptTime=2026-11-26T09:00:00 RunTime=00:00:05 "
                 "TimeLimit=02:00:00",
                 138, "preempted", "preempted");
    stopped_with(good, "exit 1", 138, "timed-out", "timeout"); /* Slurm does not answer */
    signal_option = "R:USR1";                                  /* 60 s */
    stopped_with(good, near, 138, "timed-out", "timeout");
    signal_option = NULL;
    stopped_with(good, near, 138, "cancelled", "cancelled");
    stopped_with(good, "exit 1", 138, "cancelled", "cancelled");
    /* What it reported as complete, a failure of its own, and what the hub knows. */
    signal_option = "USR1@60";
    stopped_with("\"state\":\"done\",\"stopped\":\"USR1\",\"finished\":true", near, 0, "done",
                 NULL);
    stopped_with("\"state\":\"failed\",\"exit_code\":1,\"stopped\":\"USR1\","
                 "\"cause\":{\"kind\":\"exit\",\"exit\":1}",
                 near, 1, "failed", "exit");
    stopped_with("\"state\":\"failed\",\"exit_code\":139,\"stopped\":\"USR1\","
                 "\"cause\":{\"kind\":\"signal\",\"signal\":11}",
                 near, 139, "failed", "signal");
    stopped_with("\"state\":\"preempted\",\"exit_code\":143,\"stopped\":\"USR1\","
                 "\"cause\":{\"kind\":\"preempted\"}",
                 near, 143, "preempted", "preempted");
    stopped_with("\"state\":\"done\",\"exit_code\":0,\"stopped\":\"TERM\"", near, 0, "done", NULL);
    stopped_with("\"state\":\"done\",\"exit_code\":0", near, 0, "done", NULL);
    signal_option = NULL;
}

/* The state that a preempted attempt gets where the job's output has these lines of earlier
 * attempts and of its own. */
static void
requeued_with(const char *before, const char *lines, const char *state, const char *node)
{
    static const char theirs[] =
        "{\"schema\":\"plume-result/1\",\"trial\":0,\"state\":\"preempted\","
        "\"attempt\":0,\"exit_code\":143,\"cause\":{\"kind\":\"preempted\"}}\n";
    char path[128];
    int saved = dup(2), fd;
    const char *have;
    json_t *o;

    remove_run(NULL);
    make_run(NULL);
    snprintf(path, sizeof(path), "%s/slurm.out", top);
    fd = open(path, O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    assert_int_equal(pl_write_all(fd, before, strlen(before)), 0);
    dup2(fd, 2);
    claim();
    assert_int_equal(
        pl_file_append(in_run("trial-0000/result.json"), theirs, strlen(theirs), 0666, NULL), 0);
    assert_int_equal(pl_write_all(fd, lines, strlen(lines)), 0);
    setenv("PLUME_ATTEMPT", "0", 1);
    assert_int_equal(pl_trial_finish(143, &(int){0}, NULL), 0);
    dup2(saved, 2);
    close(saved);
    close(fd);
    o = result();
    assert_string_equal(pl_json_string(o, "state"), state);
    have = pl_json_string(json_object_get(o, "cause"), "node");
    assert_true(node ? have && strcmp(have, node) == 0 : !have);
    json_decref(o);
}

/* Slurm's record of a requeued job is the same for a lost node; its words in the output are not. */
static void test_finish_node_failure(void **state)
{
    static const char lost[] =
        "srun: error: Node failure on n6\n"
        "slurmstepd-n1: error: *** JOB 100 ON n1 CANCELLED AT 2026-11-26T09:21:16 DUE TO NODE "
        "FAILURE, SEE SLURMCTLD LOG FOR DETAILS ***\n";
    static const char other[] = "slurmstepd-n1: error: *** JOB 100 ON n1 CANCELLED AT "
                                "2026-11-26T09:21:16 DUE TO JOB REQUEUE ***\n";

    max_fail_option = "0"; /* Slurm starts it again: it has not failed */
    requeued_with("", lost, "node-failed", "n6");
    assert_int_equal(access(in_run("stopped.json"), F_OK), -1);
    max_fail_option = NULL;
    requeued_with(other, lost, "node-failed", "n6");
    requeued_with("", strchr(lost, '\n') + 1, "node-failed", NULL); /* which one is not said */
    requeued_with("", other, "preempted", NULL);
    requeued_with(lost, other, "preempted", NULL); /* an earlier attempt's */
    requeued_with(lost, "", "preempted", NULL);
    requeued_with("", "*** JOB 1007 ON n1 CANCELLED AT T DUE TO NODE FAILURE, SEE LOG ***\n",
                  "preempted", NULL); /* another job that has the same file */
    requeued_with("", "*** JOB 1 ON n1 CANCELLED AT\n DUE TO NODE FAILURE", "preempted", NULL);
    requeued_with("", "", "preempted", NULL);
}

/* Its own stderr, where that is a file, says why set-up failed. */
static void test_finish_stderr_tail(void **state)
{
    char path[128];
    int saved = dup(2), fd;
    json_t *o;

    claim();
    snprintf(path, sizeof(path), "%s/slurm.out", top);
    fd = open(path, O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    assert_int_equal(pl_write_all(fd, "first\nmodule: \xff not found\n\n", 27), 0);
    dup2(fd, 2);
    setenv("PLUME_ATTEMPT", "0", 1);
    assert_int_equal(pl_trial_finish(1, &(int){0}, NULL), 0);
    dup2(saved, 2);
    close(saved);
    close(fd);
    o = result();
    assert_string_equal(pl_json_string(json_object_get(o, "cause"), "text"),
                        "first\nmodule: \xef\xbf\xbd not found");
    json_decref(o);
}

static void test_program_values(void **state)
{
    struct pl_error err = {0};
    char **argv = NULL;

    setenv("PLUME_TRIAL", "1", 1);
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
    assert_int_equal(pl_trial_program(&argv, &err), 0);
    assert_string_equal(argv[0], "/venv/bin/prog");
    assert_string_equal(argv[1], "--x=a");
    pl_strv_free(argv);
}

#define IN_RUN(f) cmocka_unit_test_setup_teardown(f, make_run, remove_run)

int main(void)
{
    const struct CMUnitTest tests[] = {
        IN_RUN(test_claim_first_and_again),
        IN_RUN(test_claim_by_array),
        IN_RUN(test_claim_by_retry),
        IN_RUN(test_claim_finished),
        IN_RUN(test_claim_race),
        IN_RUN(test_claim_damaged),
        IN_RUN(test_folder_that_others_may_write),
        IN_RUN(test_folder_of_another_user),
        IN_RUN(test_planted_links),
        IN_RUN(test_claim_umask),
        IN_RUN(test_claim_outside_script),
        IN_RUN(test_finish_setup_failed),
        IN_RUN(test_finish_uses_the_room_of_a_killed_hub),
        IN_RUN(test_finish_launch_failed),
        IN_RUN(test_finish_terminated),
        IN_RUN(test_finish_asks_slurm),
        IN_RUN(test_finish_good_without_step),
        IN_RUN(test_finish_waits_for_the_hub),
        IN_RUN(test_finish_hub_vanished),
        IN_RUN(test_finish_hub_killed),
        IN_RUN(test_finish_all_killed),
        IN_RUN(test_finish_step_cancelled),
        IN_RUN(test_finish_step_cancelled_on_many_nodes),
        IN_RUN(test_finish_step_cancelled_before),
        IN_RUN(test_finish_stderr_changed),
        IN_RUN(test_finish_step_cancelled_with_a_cause),
        IN_RUN(test_finish_step_ended_by_slurm),
        IN_RUN(test_finish_ranks_killed_by_plrun),
        IN_RUN(test_finish_cause_in_log),
        IN_RUN(test_finish_result_there),
        IN_RUN(test_finish_stopped),
        IN_RUN(test_finish_node_failure),
        IN_RUN(test_finish_stderr_tail),
        IN_RUN(test_program_values),
        IN_RUN(test_find_program),
        IN_RUN(test_program_found),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
