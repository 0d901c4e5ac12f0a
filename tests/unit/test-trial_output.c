/* SPDX-License-Identifier: MIT */
/* The end of a trial by what Slurm and srun have written into the job's output. */
#include "common/base/fs.h"
#include "common/proto/json.h"
#include "runtime/plrun/trial.h"
#include "tests/unit/trial_run.h"

#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <string.h>
#include <sys/resource.h>

#include <cmocka.h>

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

/* Nobody has cancelled it: a node did not take the launch, and srun ended the step on the others.
 */
static void test_finish_launch_failed(void **state)
{
    static const char said[] =
        "srun: error: Task launch for StepId=7.0 failed on node n2: Communication connection "
        "failure\n"
        "srun: error: Application launch failed: Communication connection failure\n" STEP_CANCELLED;
    static const char *const states[] = {"waiting", "running"};

    for (size_t i = 0; i < PL_COUNT(states); i++) {
        _cleanup_free_ char *line = pl_strf("{\"type\":\"state\",\"state\":\"%s\"}\n", states[i]);
        json_t *o = finish_with_output(line, said);

        assert_string_equal(pl_json_string(json_object_get(o, "cause"), "kind"),
                            i ? "cancelled" : "launch");
        json_decref(o);
        assert_int_equal(remove_run(NULL), 0);
        assert_int_equal(make_run(NULL), 0);
    }
}

#define LAUNCH_FAILED "srun: error: Application launch failed: Communication connection failure\n"

/* Before the hub has written anything, or before it is there. */
static void test_finish_step_cancelled_at_once(void **state)
{
    static const struct {
        bool there, hub; /* the hub's log, and its address: the job script has reached srun */
        const char *said;
        int code;
        const char *kind;
    } cases[] = {
        {false, true, STEP_CANCELLED, 137, "cancelled"},
        {true, true, STEP_CANCELLED, 137, "cancelled"},
        {false, true, LAUNCH_FAILED STEP_CANCELLED, 137, "launch"},
        {true, true, LAUNCH_FAILED STEP_CANCELLED, 137, "launch"},
        {false, true, STEP_CANCELLED, 0, "launch"},
        {false, false, STEP_CANCELLED, 137, "setup"}, /* a step of the set-up */
    };

    const struct timespec old[2] = {{.tv_sec = time(NULL) - 60}, {.tv_sec = time(NULL) - 60}};

    for (size_t i = 0; i < PL_COUNT(cases); i++) {
        _cleanup_free_ char *path = pl_strf("%s/slurm.out", top);
        int saved = dup(2), fd = open(path, O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
        json_t *o, *cause;

        dup2(fd, 2);
        claim();
        if (cases[i].hub)
            setenv("PLUME_HUB", "n1:5", 1);
        setenv("PLUME_ATTEMPT", "0", 1);
        if (cases[i].there) {
            assert_int_equal(
                pl_file_append(in_run("trial-0000/attempt-0/events.jsonl"), "", 0, 0666, NULL), 0);
            assert_int_equal(
                utimensat(AT_FDCWD, in_run("trial-0000/attempt-0/events.jsonl"), old, 0), 0);
        }
        setenv("SLURM_JOB_ID", "7", 1);
        assert_int_equal(pl_write_all(fd, cases[i].said, strlen(cases[i].said)), 0);
        close(fd);
        assert_int_equal(pl_trial_finish(cases[i].code, &(int){0}, NULL), 0);
        dup2(saved, 2);
        close(saved);
        o = result();
        cause = json_object_get(o, "cause");
        assert_string_equal(pl_json_string(cause, "kind"), cases[i].kind);
        if (strcmp(cases[i].kind, "cancelled") == 0)
            assert_string_equal(pl_json_string(cause, "confidence"), "inferred");
        json_decref(o);
        assert_int_equal(remove_run(NULL), 0);
        assert_int_equal(make_run(NULL), 0);
    }
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
        {"",
         "slurmstepd-n1: error: *** STEP 7.0 ON n1 FAILED (non-zero exit code) ***\n"
         "slurmstepd-n1: error: *** STEP 7.1 ON n1 CANCELLED AT 2026-01-01T00:00:00 ***\n",
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

/* The disk has no room for a result as long as this one, but for a line of output. */
static void test_finish_node_failure_on_a_full_disk(void **state)
{
    static const char lost[] =
        "*** JOB 100 ON n1 CANCELLED AT T DUE TO NODE FAILURE, SEE LOG ***\n";
    _cleanup_free_ char *path = pl_strf("%s/slurm.out", top), *said = NULL, *theirs = NULL;
    _cleanup_(pl_buf_finish) struct pl_buf pad = {0};
    int saved = dup(2), fd;
    struct rlimit size, less;
    json_t *o;

    for (int i = 0; i < 8192; i++)
        assert_int_equal(pl_buf_addc(&pad, 'x'), 0);
    theirs =
        pl_strf("{\"schema\":\"plume-result/1\",\"trial\":0,\"state\":\"preempted\",\"attempt\":0,"
                "\"exit_code\":143,\"cause\":{\"kind\":\"preempted\"},\"pad\":\"%s\"}\n",
                pl_buf_str(&pad));
    fd = open(path, O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    dup2(fd, 2);
    claim();
    assert_int_equal(
        pl_file_append(in_run("trial-0000/result.json"), theirs, strlen(theirs), 0666, NULL), 0);
    assert_int_equal(pl_write_all(fd, lost, strlen(lost)), 0);
    setenv("PLUME_ATTEMPT", "0", 1);
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &size), 0);
    less = (struct rlimit){4096, size.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &less), 0);
    assert_int_equal(pl_trial_finish(143, &(int){0}, NULL), 0);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &size), 0);
    dup2(saved, 2);
    close(saved);
    close(fd);
    o = result();
    assert_string_equal(pl_json_string(o, "state"), "preempted");
    json_decref(o);
    assert_int_equal(pl_file_read(path, 65536, &said, NULL, NULL), 0);
    if (!strstr(said, "the trial is node-failed, but its result could not be changed: "))
        fail_msg("%s", said);
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        IN_RUN(test_finish_launch_failed),
        IN_RUN(test_finish_step_cancelled),
        IN_RUN(test_finish_step_cancelled_at_once),
        IN_RUN(test_finish_step_cancelled_on_many_nodes),
        IN_RUN(test_finish_step_cancelled_before),
        IN_RUN(test_finish_stderr_changed),
        IN_RUN(test_finish_step_cancelled_with_a_cause),
        IN_RUN(test_finish_step_ended_by_slurm),
        IN_RUN(test_finish_ranks_killed_by_plrun),
        IN_RUN(test_finish_node_failure),
        IN_RUN(test_finish_node_failure_on_a_full_disk),
        IN_RUN(test_finish_stderr_tail),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
