/* SPDX-License-Identifier: MIT */
/* The state of a sweep, and of a trial by its files and by what Slurm says. */
#include "common/base/fs.h"
#include "common/proto/json.h"
#include "launcher/plstat/status_private.h"
#include "launcher/plstat/words.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

#define NOW 1700001000.0

static void assert_sweep(const enum pl_trial_state *states, size_t n, enum pl_sweep_state want)
{
    struct pl_trial_status trials[8] = {0};

    for (size_t i = 0; i < n; i++)
        trials[i].state = states[i];
    assert_int_equal(pl_sweep_state_of(trials, n), want);
}

#define SWEEP(want, ...)                                                                           \
    assert_sweep((enum pl_trial_state[]){__VA_ARGS__},                                             \
                 sizeof((enum pl_trial_state[]){__VA_ARGS__}) / sizeof(enum pl_trial_state), want)

static void test_sweep_state(void **state)
{
    SWEEP(PL_SWEEP_WAITING, PL_TRIAL_WAITING, PL_TRIAL_WAITING);
    SWEEP(PL_SWEEP_RUNNING, PL_TRIAL_WAITING, PL_TRIAL_RUNNING);
    SWEEP(PL_SWEEP_RUNNING, PL_TRIAL_DONE, PL_TRIAL_WAITING);
    SWEEP(PL_SWEEP_RUNNING, PL_TRIAL_FAILED, PL_TRIAL_RUNNING);
    SWEEP(PL_SWEEP_DONE, PL_TRIAL_DONE, PL_TRIAL_DONE);
    SWEEP(PL_SWEEP_DONE, PL_TRIAL_DONE, PL_TRIAL_PRUNED);
    SWEEP(PL_SWEEP_FAILED, PL_TRIAL_DONE, PL_TRIAL_FAILED);
    SWEEP(PL_SWEEP_FAILED, PL_TRIAL_CANCELLED, PL_TRIAL_TIMED_OUT);
    SWEEP(PL_SWEEP_FAILED, PL_TRIAL_DONE, PL_TRIAL_LOST);
    SWEEP(PL_SWEEP_FAILED, PL_TRIAL_PREEMPTED, PL_TRIAL_DONE);
    SWEEP(PL_SWEEP_CANCELLED, PL_TRIAL_DONE, PL_TRIAL_CANCELLED);
    SWEEP(PL_SWEEP_CANCELLED, PL_TRIAL_CANCELLED);
}

/* Slurm's answer at NOW: task 0 of array 100 in this state, and nothing else. NULL: no record. */
static struct pl_slurm_jobs *slurm(const char *task_state)
{
    _cleanup_(json_decrefp) json_t *doc = json_pack("{s:f, s:[]}", "time", NOW, "jobs");
    struct pl_slurm_jobs *jobs = NULL;

    if (task_state)
        json_array_append_new(json_object_get(doc, "jobs"),
                              json_pack("{s:i, s:i, s:i, s:s, s:i, s:i}", "id", 101, "array", 100,
                                        "task", 0, "state", task_state, "exit", 7, "ended",
                                        (int)NOW - 40));
    assert_int_equal(pl_slurm_jobs_parse(doc, &jobs, NULL), 0);
    return jobs;
}

static struct pl_trial_status submitted(void)
{
    return (struct pl_trial_status){
        .array = 100, .task = 0, .submitted = true, .step = -1, .objective = NAN};
}

static struct pl_trial_status claimed(void)
{
    struct pl_trial_status ts = submitted();

    ts.claimed = true;
    ts.attempts = 1;
    ts.claim_s = NOW - 100;
    return ts;
}

static struct pl_trial_status with_result(const char *state_name, const char *kind, bool inferred)
{
    struct pl_trial_status ts = claimed();

    assert_int_equal(pl_trial_state_parse(state_name, &ts.state), 0);
    ts.result = json_pack("{s:s, s:f}", "state", state_name, "time", NOW - 50);
    if (kind)
        json_object_set_new(ts.result, "cause",
                            json_pack("{s:s, s:b}", "kind", kind, "inferred", inferred));
    return ts;
}

/* Settles and checks the state and the kind of the cause (NULL: none). task_state NULL: Slurm does
 * not know it; "?": cannot be asked. */
static void assert_resolved(struct pl_trial_status ts,
                            const char *task_state,
                            const char *want,
                            const char *want_kind)
{
    bool asked = !task_state || strcmp(task_state, "?") != 0;
    _cleanup_(pl_slurm_jobs_destroyp) struct pl_slurm_jobs *jobs = asked ? slurm(task_state) : NULL;

    pl_trial_status_resolve(&ts, jobs, NOW - 200);
    assert_string_equal(pl_trial_state_name(ts.state), want);
    if (want_kind)
        assert_string_equal(pl_json_string(ts.cause, "kind"), want_kind);
    else
        assert_null(ts.cause);
    pl_trial_status_finish(&ts);
}

static void test_resolve_nothing_recorded(void **state)
{
    struct pl_trial_status never = {.array = -1, .task = -1};

    assert_resolved(never, NULL, "waiting", NULL); /* not submitted */
    assert_resolved(submitted(), "?", "waiting", NULL);
    assert_resolved(submitted(), "PENDING", "waiting", NULL);
    assert_resolved(submitted(), "RUNNING", "running", NULL);
    assert_resolved(submitted(), NULL, "lost", "launch");
    assert_resolved(submitted(), "CANCELLED", "cancelled", "cancelled");
    assert_resolved(submitted(), "FAILED", "failed", "setup");
    assert_resolved(submitted(), "NODE_FAIL", "node-failed", "node");
}

/* Slurm keeps no record of a task that --cancel took from a pending array. */
static void test_resolve_cancelled_before_it_started(void **state)
{
    struct pl_trial_status ts = submitted(), ran = claimed();

    ts.cancelled = ran.cancelled = true;
    assert_resolved(ts, NULL, "cancelled", "cancelled");
    assert_resolved(ts, "?", "cancelled", "cancelled");
    assert_resolved(ts, "PENDING", "waiting", NULL); /* not yet */
    assert_resolved(ran, NULL, "lost", "unknown");
}

/* Nor of one that scancel took from it alone, while it knows the array's other tasks. */
static void test_resolve_taken_from_its_array(void **state)
{
    struct pl_trial_status cases[] = {submitted(), claimed(), submitted()};
    static const char *const states[] = {"cancelled", "lost", "lost"};

    for (size_t i = 0; i < PL_COUNT(cases); i++) {
        struct pl_trial_status *ts = &cases[i];
        _cleanup_(json_decrefp) json_t *doc = json_pack(
            "{s:f, s:[{s:i, s:I, s:s, s:s}]}", "time", (double)NOW, "jobs", "id", 1, "array",
            (json_int_t)(i < 2 ? ts->array : ts->array + 1), "tasks", "90-99", "state", "PENDING");
        _cleanup_(pl_slurm_jobs_destroyp) struct pl_slurm_jobs *jobs = NULL;

        assert_int_equal(pl_slurm_jobs_parse(doc, &jobs, NULL), 0);
        pl_trial_status_resolve(ts, jobs, NOW - 200);
        assert_string_equal(pl_trial_state_name(ts->state), states[i]);
        assert_true(json_is_true(json_object_get(ts->cause, "inferred")));
        assert_non_null(strstr(pl_json_string(ts->cause, "text"), i == 0   ? "probably cancelled"
                                                                  : i == 1 ? "wrote no"
                                                                           : "has no attempt"));
        pl_trial_status_finish(ts);
    }
}

/* Slurm forgets a task some minutes after its end, also where its job script could not claim the
 * trial: a task that others have overtaken may have been one. */
static void test_resolve_forgotten_by_its_array(void **state)
{
    static const struct {
        int task;
        const char *of_60, *want, *text;
    } cases[] = {{50, "RUNNING", "lost", "or ended before its attempt"},
                 {50, "FAILED", "lost", "or ended before its attempt"},
                 {50, "PENDING", "cancelled", "probably cancelled"},
                 {50, "CANCELLED", "cancelled", "probably cancelled"},
                 {95, "RUNNING", "cancelled", "probably cancelled"}};

    for (size_t i = 0; i < PL_COUNT(cases); i++) {
        struct pl_trial_status ts = submitted();
        _cleanup_(json_decrefp) json_t *doc =
            json_pack("{s:f, s:[{s:i, s:i, s:s, s:s}, {s:i, s:i, s:i, s:s}]}", "time", (double)NOW,
                      "jobs", "id", 100, "array", 100, "tasks", "90-94,96-99", "state", "PENDING",
                      "id", 101, "array", 100, "task", 60, "state", cases[i].of_60);
        _cleanup_(pl_slurm_jobs_destroyp) struct pl_slurm_jobs *jobs = NULL;

        ts.task = cases[i].task;
        assert_int_equal(pl_slurm_jobs_parse(doc, &jobs, NULL), 0);
        pl_trial_status_resolve(&ts, jobs, NOW - 200);
        assert_string_equal(pl_trial_state_name(ts.state), cases[i].want);
        assert_true(json_is_true(json_object_get(ts.cause, "inferred")));
        assert_non_null(strstr(pl_json_string(ts.cause, "text"), cases[i].text));
        pl_trial_status_finish(&ts);
    }
}

static void test_resolve_claimed(void **state)
{
    assert_resolved(claimed(), "?", "running", NULL);
    assert_resolved(claimed(), "RUNNING", "running", NULL);
    assert_resolved(claimed(), "PENDING", "waiting", NULL); /* requeued */
    assert_resolved(claimed(), NULL, "lost", "unknown");
    assert_resolved(claimed(), "TIMEOUT", "timed-out", "timeout");
    assert_resolved(claimed(), "PREEMPTED", "preempted", "preempted");
    assert_resolved(claimed(), "OUT_OF_MEMORY", "failed", "oom");
    assert_resolved(claimed(), "FAILED", "failed", "setup");
    assert_resolved(claimed(), "COMPLETED", "lost", "unknown");
}

/* A result that cannot be read is no sign of a node's failure, or of a launch's. */
static void test_resolve_unreadable(void **state)
{
    struct pl_trial_status ts = claimed();

    ts.unreadable = true;
    assert_resolved(ts, "?", "running", NULL);
    assert_resolved(ts, NULL, "lost", "unknown");
    assert_resolved(ts, "COMPLETED", "lost", "unknown");
    assert_resolved(ts, "FAILED", "failed", "unknown");
    assert_resolved(ts, "TIMEOUT", "timed-out", "timeout");
    ts.claimed = false;
    assert_resolved(ts, NULL, "lost", "unknown");
}

/* The one record of all tasks that Slurm does not list apart tells the end of a task that never
 * started, and nothing about one that did. */
static void test_resolve_by_the_rest_of_an_array(void **state)
{
    _cleanup_(json_decrefp) json_t *doc =
        json_pack("{s:f, s:[{s:i, s:i, s:s, s:f}]}", "time", NOW, "jobs", "id", 100, "array", 100,
                  "state", "CANCELLED", "ended", NOW - 10);
    _cleanup_(pl_slurm_jobs_destroyp) struct pl_slurm_jobs *jobs = NULL;
    struct pl_trial_status waited = submitted(), ran = claimed();

    assert_int_equal(pl_slurm_jobs_parse(doc, &jobs, NULL), 0);
    pl_trial_status_resolve(&waited, jobs, NOW - 200);
    assert_int_equal(waited.state, PL_TRIAL_CANCELLED);
    pl_trial_status_resolve(&ran, jobs, NOW - 200);
    assert_int_equal(ran.state, PL_TRIAL_LOST);
    pl_trial_status_finish(&waited);
    pl_trial_status_finish(&ran);
}

/* slurmstepd could not open the output file: the set-up did not fail, nothing has run. */
static void test_resolve_output_file(void **state)
{
    _cleanup_(json_decrefp) json_t *doc = json_pack(
        "{s:f, s:[{s:i, s:i, s:i, s:s, s:s, s:i, s:f}]}", "time", NOW, "jobs", "id", 101, "array",
        100, "task", 0, "state", "FAILED", "nodes", "n7", "signal", 53, "ended", NOW - 10);
    _cleanup_(pl_slurm_jobs_destroyp) struct pl_slurm_jobs *jobs = NULL;
    struct pl_trial_status ts = submitted();
    _cleanup_(pl_buf_finish) struct pl_buf words = {0};

    assert_int_equal(pl_slurm_jobs_parse(doc, &jobs, NULL), 0);
    pl_trial_status_resolve(&ts, jobs, NOW - 200);
    assert_int_equal(ts.state, PL_TRIAL_FAILED);
    assert_string_equal(pl_json_string(ts.cause, "kind"), "launch");
    assert_string_equal(pl_json_string(ts.cause, "node"), "n7");
    assert_non_null(strstr(pl_json_string(ts.cause, "text"), "does not see the folder"));
    assert_int_equal(pl_words_failure(&ts, &words), 0);
    assert_string_equal(pl_buf_str(&words),
                        "failed: n7: Slurm could not open the job's output file");
    pl_trial_status_finish(&ts);
}

static void test_resolve_answer_is_older_than_the_claim(void **state)
{
    struct pl_trial_status ts = claimed();

    ts.claim_s = NOW + 3;
    assert_resolved(ts, "PENDING", "running", NULL);
    assert_resolved(ts, NULL, "running", NULL);
}

/* The node's clock is an hour ahead: Slurm's own count of restarts tells what is later. */
static void test_resolve_clock_of_a_node(void **state)
{
    static const char *const answers[][2] = {{"PENDING", "waiting"}, {"CANCELLED", "cancelled"}};
    struct pl_trial_status ts = claimed();

    (void)state;
    ts.claim_s = NOW + 3600;
    assert_resolved(ts, "FAILED", "failed", "setup");
    for (size_t i = 0; i < PL_COUNT(answers); i++)
        for (int ended = 0; ended < 2; ended++) {
            _cleanup_(pl_slurm_jobs_destroyp) struct pl_slurm_jobs *jobs = slurm(answers[i][0]);

            ts = ended ? with_result("preempted", "preempted", false) : claimed();
            ts.claim_s = NOW + 3600;
            if (ended)
                json_object_set_new(ts.result, "time", json_real(NOW + 3600));
            jobs->jobs[0].restarts = 1;
            pl_trial_status_resolve(&ts, jobs, NOW - 200);
            assert_string_equal(pl_trial_state_name(ts.state), answers[i][1]);
            pl_trial_status_finish(&ts);
        }
    /* The record of the start before. */
    ts = claimed();
    ts.claim_s = NOW + 3;
    ts.restart = 1;
    assert_resolved(ts, "FAILED", "running", NULL);
}

/* plrun --finish was killed between its record of a requeue and its request to Slurm. */
static void test_resolve_requeue_that_was_not_asked_for(void **state)
{
    static const struct {
        const char *task_state;
        int restarts; /* -1: not told */
        const char *want, *want_kind;
        bool taken_back;
    } cases[] = {
        {"FAILED", 0, "failed", "exit", true},    {"COMPLETED", 0, "failed", "exit", true},
        {"TIMEOUT", 0, "failed", "exit", true},   {"NODE_FAIL", 0, "failed", "exit", true},
        {"FAILED", 1, "failed", "setup", false}, /* its next start failed */
        {"FAILED", -1, "failed", "setup", false}, {"CANCELLED", 0, "cancelled", "cancelled", false},
        {"PENDING", 0, "waiting", NULL, false},   {"RUNNING", 0, "running", NULL, false},
        {NULL, 0, "lost", "launch", false},
    };

    for (size_t i = 0; i < PL_COUNT(cases); i++) {
        struct pl_trial_status ts = with_result("failed", "exit", false);
        _cleanup_(pl_slurm_jobs_destroyp) struct pl_slurm_jobs *jobs = slurm(cases[i].task_state);

        json_object_set_new(ts.result, "requeued", json_true());
        pl_trial_status_set_aside(&ts, NOW - 50);
        ts.to_requeue = true;
        if (cases[i].task_state) {
            jobs->jobs[0].counted = cases[i].restarts >= 0;
            jobs->jobs[0].restarts = PL_MAX(cases[i].restarts, 0);
        }
        pl_trial_status_resolve(&ts, jobs, NOW - 200);
        assert_string_equal(pl_trial_state_name(ts.state), cases[i].want);
        if (cases[i].want_kind)
            assert_string_equal(pl_json_string(ts.cause, "kind"), cases[i].want_kind);
        assert_int_equal(pl_json_string(ts.result, "not_requeued") != NULL, cases[i].taken_back);
        assert_int_equal(ts.unstarted, !cases[i].taken_back);
        pl_trial_status_finish(&ts);
    }
}

/* The time that it has run is a difference of its own stamps, whatever this host's clock says. */
static void test_until_clock_of_a_node(void **state)
{
    static const double ahead_s[] = {-7200, 0, 7200};

    (void)state;
    for (size_t i = 0; i < PL_COUNT(ahead_s); i++) {
        struct pl_trial_status ts = claimed();
        double now = pl_wall_s() + ahead_s[i];

        ts.live_s = now;
        ts.live = json_pack("{s:s, s:f}", "state", "running", "started", now - 60);
        ts.doc = json_incref(ts.live);
        ts.state = PL_TRIAL_RUNNING;
        pl_trial_status_values(&ts, NULL);
        assert_true(fabs(pl_trial_status_until(&ts) - ts.started_s - 60) < 1e-3);
        pl_trial_status_finish(&ts);
    }
}

/* The value of another objective must not be taken for the sweep's. */
static void test_values_of_another_objective(void **state)
{
    struct pl_trial_status ts = with_result("done", NULL, false);

    json_object_set_new(ts.result, "objective_name", json_string("loss"));
    json_object_set_new(ts.result, "objective", json_real(3.5));
    pl_trial_status_values(&ts, "loss");
    assert_true(ts.objective == 3.5);
    ts.objective = NAN;
    pl_trial_status_values(&ts, "acc");
    assert_true(isnan(ts.objective));
    json_object_set_new(ts.result, "metrics", json_pack("{s:f, s:f}", "loss", 3.5, "acc", 0.5));
    pl_trial_status_values(&ts, "acc");
    assert_true(ts.objective == 0.5);
    pl_trial_status_finish(&ts);
}

static void test_resolve_answer_is_older_than_the_submission(void **state)
{
    _cleanup_(pl_slurm_jobs_destroyp) struct pl_slurm_jobs *jobs = slurm(NULL);
    struct pl_trial_status ts = submitted();

    pl_trial_status_resolve(&ts, jobs, NOW + 1);
    assert_int_equal(ts.state, PL_TRIAL_WAITING);
}

static void test_resolve_result(void **state)
{
    assert_resolved(with_result("done", NULL, false), NULL, "done", NULL);
    assert_resolved(with_result("done", NULL, false), "PENDING", "done", NULL);
    assert_resolved(with_result("failed", "exit", false), "FAILED", "failed", "exit");
    assert_resolved(with_result("failed", "exit", false), "CANCELLED", "failed", "exit");
    assert_resolved(with_result("preempted", "preempted", false), "PENDING", "waiting", NULL);
    assert_resolved(with_result("preempted", "preempted", false), NULL, "preempted", "preempted");
    assert_resolved(with_result("preempted", "preempted", false), "CANCELLED", "cancelled",
                    "cancelled");
}

static void test_resolve_corrects_what_was_inferred(void **state)
{
    assert_resolved(with_result("cancelled", "cancelled", true), "TIMEOUT", "timed-out", "timeout");
    assert_resolved(with_result("cancelled", "cancelled", true), "PREEMPTED", "preempted",
                    "preempted");
    assert_resolved(with_result("cancelled", "cancelled", true), "NODE_FAIL", "node-failed",
                    "node");
    assert_resolved(with_result("cancelled", "cancelled", true), "CANCELLED", "cancelled",
                    "cancelled");
    assert_resolved(with_result("cancelled", "cancelled", true), NULL, "cancelled", "cancelled");
    assert_resolved(with_result("cancelled", "cancelled", true), "?", "cancelled", "cancelled");
}

/* Slurm calls a job FAILED if its step got a signal. */
static void test_resolve_failed_may_be_cancelled(void **state)
{
    struct pl_trial_status ts = with_result("cancelled", "cancelled", true);

    json_object_set_new(ts.result, "world_size", json_integer(4));
    assert_resolved(ts, "FAILED", "cancelled", "cancelled");
    assert_resolved(with_result("cancelled", "cancelled", false), "FAILED", "cancelled",
                    "cancelled");
}

/* A failed job whose ranks ran, and whose hub recorded no end. */
static void assert_without_end(const char *rank_state, int signal, bool script, const char *want)
{
    _cleanup_(pl_slurm_jobs_destroyp) struct pl_slurm_jobs *jobs = slurm("FAILED");
    struct pl_trial_status ts = claimed();

    jobs->jobs[0].signal = signal;
    ts.claim_s = script ? NOW - 100 : 0;
    ts.doc =
        json_pack("{s:[{s:s}], s:[{s:s}]}", "nodes", "node", "n1", "ranks", "state", rank_state);
    if (!*rank_state) /* a log to which nothing could be written */
        json_object_clear(ts.doc);
    pl_trial_status_resolve(&ts, jobs, NOW - 200);
    assert_int_equal(ts.state, PL_TRIAL_FAILED);
    assert_string_equal(pl_json_string(ts.cause, "kind"), want);
    assert_string_equal(pl_json_string(ts.cause, "confidence"), "inferred");
    if (strcmp(want, "runtime") == 0)
        assert_string_equal(pl_json_string(ts.cause, "node"), "n1");
    pl_trial_status_finish(&ts);
}

static void test_resolve_without_end(void **state)
{
    assert_without_end("starting", -1, false, "launch");
    assert_without_end("starting", -1, true, "unknown"); /* its last act would tell a launch's */
    assert_without_end("", -1, false, "unknown");
    assert_without_end("", -1, true, "unknown");
    assert_without_end("running", -1, false, "runtime");
    assert_without_end("failed", 15, true, "runtime");
    assert_without_end("running", 9, true, "signal");
}

/* Slurm may know the sender of a SIGKILL, if its end of the job is the trial's. */
static void test_resolve_explains_kill(void **state)
{
    struct pl_trial_status ts = with_result("failed", "signal", false);

    json_object_set_new(json_object_get(ts.result, "cause"), "signal", json_integer(9));
    assert_true(pl_trial_status_needs_slurm(&ts));
    json_object_set_new(ts.result, "ended", json_real(NOW - 41));
    assert_resolved(ts, "CANCELLED", "cancelled", "cancelled");
    ts = with_result("failed", "signal", false);
    json_object_set_new(json_object_get(ts.result, "cause"), "signal", json_integer(9));
    json_object_set_new(ts.result, "ended", json_real(NOW - 3600));
    assert_resolved(ts, "CANCELLED", "failed", "signal");
}

static void test_resolve_ends_ranks(void **state)
{
    struct pl_trial_status ts = with_result("failed", "node", true);

    ts.doc =
        json_pack("{s:[{s:s}, {s:s}, {}, i]}", "ranks", "state", "running", "state", "done", 1);
    ts.source = PL_SOURCE_LOG;
    pl_trial_status_resolve(&ts, NULL, 0);
    assert_string_equal(
        pl_json_string(json_array_get(json_object_get(ts.doc, "ranks"), 0), "state"), "lost");
    assert_string_equal(
        pl_json_string(json_array_get(json_object_get(ts.doc, "ranks"), 1), "state"), "done");
    pl_trial_status_finish(&ts);
}

static void test_resolve_confirms_oom(void **state)
{
    struct pl_trial_status ts = with_result("failed", "signal", false);

    json_object_set_new(json_object_get(ts.result, "cause"), "signal", json_integer(9));
    assert_resolved(ts, "OUT_OF_MEMORY", "failed", "oom");
    ts = with_result("failed", "signal", false);
    json_object_set_new(json_object_get(ts.result, "cause"), "signal", json_integer(11));
    assert_resolved(ts, "OUT_OF_MEMORY", "failed", "signal");
}

/* The result is of the attempt before a retry that has none yet. */
static struct pl_trial_status retried(const char *state_name, const char *kind, bool inferred)
{
    struct pl_trial_status ts = with_result(state_name, kind, inferred);

    pl_trial_status_set_aside(&ts, 0);
    return ts;
}

/* The record is that of the retry's own job, so the result of the attempt before is no news, also
 * while that job has not claimed the trial, and if the result was written later than the answer. */
static void test_resolve_retry(void **state)
{
    static const struct {
        const char *slurm, *want, *kind;
    } cases[] = {{"RUNNING", "running", NULL},  {"SUSPENDED", "running", NULL},
                 {"PENDING", "waiting", NULL},  {"CANCELLED", "cancelled", "cancelled"},
                 {"FAILED", "failed", "setup"}, {"NODE_FAIL", "node-failed", "node"},
                 {NULL, "lost", "launch"},      {"?", "waiting", NULL}};

    for (size_t i = 0; i < PL_COUNT(cases); i++)
        for (int late = 0; late < 3; late++) {
            struct pl_trial_status ts = late == 2 ? retried("failed", "exit", false)
                                                  : retried("cancelled", "cancelled", true);

            assert_true(pl_trial_status_needs_slurm(&ts));
            if (late == 1)
                json_object_set_new(ts.earlier, "time", json_real(NOW + 0.5));
            assert_resolved(ts, cases[i].slurm, cases[i].want, cases[i].kind);
        }
}

/* plsubmit --cancel takes the retry from its array, of which Slurm keeps no record. */
static void test_resolve_retry_is_cancelled(void **state)
{
    struct pl_trial_status ts = retried("failed", "exit", false);
    _cleanup_(pl_buf_finish) struct pl_buf words = {0};

    json_object_set_new(ts.earlier, "attempt", json_integer(0));
    json_object_set_new(ts.earlier, "job", json_string("7_0"));
    json_object_set_new(json_object_get(ts.earlier, "cause"), "exit", json_integer(3));
    assert_int_equal(pl_words_earlier(&ts, &words), 0);
    assert_string_equal(pl_buf_str(&words), "attempt 1 (job 7_0) failed: exit 3");
    ts.cancelled = true;
    assert_resolved(ts, NULL, "cancelled", "cancelled");
}

/* Slurm's answer is older than the retry. */
static void test_resolve_retry_is_newer_than_the_answer(void **state)
{
    _cleanup_(pl_slurm_jobs_destroyp) struct pl_slurm_jobs *jobs = slurm(NULL);
    struct pl_trial_status ts = retried("failed", "exit", false);

    pl_trial_status_resolve(&ts, jobs, NOW + 1);
    assert_int_equal(ts.state, PL_TRIAL_WAITING);
    pl_trial_status_finish(&ts);
}

/* Slurm has requeued the job since it claimed the trial: its record is of the next start. */
static void test_resolve_requeue(void **state)
{
    static const struct {
        const char *slurm, *want;
    } cases[] = {{"PENDING", "waiting"}, {"RUNNING", "running"}, {"CANCELLED", "cancelled"}};
    static const char *const before[] = {"failed", "timed-out", "node-failed", "preempted", NULL};

    for (size_t i = 0; i < PL_COUNT(cases); i++)
        for (size_t k = 0; k < PL_COUNT(before); k++) {
            _cleanup_(pl_slurm_jobs_destroyp) struct pl_slurm_jobs *jobs = slurm(cases[i].slurm);
            struct pl_trial_status ts =
                before[k] ? with_result(before[k], "exit", false) : claimed();

            jobs->jobs[0].restarts = 1;
            pl_trial_status_resolve(&ts, jobs, NOW - 200);
            assert_string_equal(pl_trial_state_name(ts.state), cases[i].want);
            assert_true(ts.unstarted);
            pl_trial_status_finish(&ts);
            /* the attempt that this start has begun */
            ts = before[k] ? with_result(before[k], "exit", false) : claimed();
            ts.restart = 1;
            pl_trial_status_resolve(&ts, jobs, NOW - 200);
            assert_false(ts.unstarted);
            pl_trial_status_finish(&ts);
        }
}

/* The job has not said yet whether it starts the trial again. */
static void test_resolve_undecided(void **state)
{
    static const struct {
        const char *slurm, *want, *kind;
    } cases[] = {{"RUNNING", "running", "exit"},
                 {"FAILED", "failed", "exit"},
                 {NULL, "failed", "exit"},
                 {"?", "failed", "exit"}};

    for (size_t i = 0; i < PL_COUNT(cases); i++) {
        struct pl_trial_status ts = with_result("failed", "exit", false);

        assert_false(pl_trial_status_needs_slurm(&ts));
        ts.undecided = true;
        assert_true(pl_trial_status_needs_slurm(&ts));
        assert_resolved(ts, cases[i].slurm, cases[i].want, cases[i].kind);
    }
}

/* Cancelled so early that it wrote nothing but its claim. */
static void test_local_cancelled_early(void **state)
{
    struct pl_trial_status ts = claimed();

    ts.state = PL_TRIAL_RUNNING;
    ts.cancelled = true;
    pl_trial_status_apply_local(&ts, false);
    assert_int_equal(ts.state, PL_TRIAL_CANCELLED);
    pl_trial_status_finish(&ts);
}

/* The attempt before has failed. */
static void test_local_retry(void **state)
{
    const struct {
        bool cancelled, alive;
        enum pl_trial_state want;
        const char *kind;
    } cases[] = {
        {true, true, PL_TRIAL_CANCELLED, "cancelled"}, /* never began */
        {true, false, PL_TRIAL_CANCELLED, "cancelled"},
        {false, true, PL_TRIAL_WAITING, NULL},
        {false, false, PL_TRIAL_LOST, "launch"}, /* not the cause of the attempt before */
    };

    for (size_t i = 0; i < PL_COUNT(cases); i++) {
        struct pl_trial_status ts = retried("failed", "exit", false);

        ts.submitted = true;
        ts.cancelled = cases[i].cancelled;
        pl_trial_status_resolve(&ts, NULL, NOW);
        pl_trial_status_apply_local(&ts, cases[i].alive);
        assert_int_equal(ts.state, cases[i].want);
        if (cases[i].kind)
            assert_string_equal(pl_json_string(ts.cause, "kind"), cases[i].kind);
        else
            assert_null(ts.cause);
        pl_trial_status_finish(&ts);
    }
}

static void test_resolve_live(void **state)
{
    struct pl_trial_status ts = claimed();

    ts.query = calloc(1, sizeof(*ts.query));
    ts.query->state =
        json_pack("{s:s, s:{s:s}}", "state", "running", "cause", "kind", "exit"); /* tearing down */
    assert_false(pl_trial_status_needs_slurm(&ts));
    assert_resolved(ts, NULL, "running", "exit");

    ts = claimed(); /* a hub that is gone, and what it wrote last */
    ts.query = calloc(1, sizeof(*ts.query));
    ts.live = json_pack("{s:s}", "state", "running");
    assert_true(pl_trial_status_needs_slurm(&ts));
    json_incref(ts.live);
    assert_resolved(ts, NULL, "lost", "unknown");
    ts.query = calloc(1, sizeof(*ts.query));
    ts.cause = ts.others = ts.doc = NULL;
    assert_resolved(ts, "?", "running", NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sweep_state),
        cmocka_unit_test(test_resolve_nothing_recorded),
        cmocka_unit_test(test_resolve_taken_from_its_array),
        cmocka_unit_test(test_resolve_forgotten_by_its_array),
        cmocka_unit_test(test_resolve_cancelled_before_it_started),
        cmocka_unit_test(test_resolve_claimed),
        cmocka_unit_test(test_resolve_unreadable),
        cmocka_unit_test(test_resolve_by_the_rest_of_an_array),
        cmocka_unit_test(test_resolve_output_file),
        cmocka_unit_test(test_resolve_answer_is_older_than_the_claim),
        cmocka_unit_test(test_resolve_clock_of_a_node),
        cmocka_unit_test(test_resolve_requeue_that_was_not_asked_for),
        cmocka_unit_test(test_until_clock_of_a_node),
        cmocka_unit_test(test_values_of_another_objective),
        cmocka_unit_test(test_resolve_answer_is_older_than_the_submission),
        cmocka_unit_test(test_resolve_result),
        cmocka_unit_test(test_resolve_corrects_what_was_inferred),
        cmocka_unit_test(test_resolve_failed_may_be_cancelled),
        cmocka_unit_test(test_resolve_without_end),
        cmocka_unit_test(test_resolve_explains_kill),
        cmocka_unit_test(test_resolve_ends_ranks),
        cmocka_unit_test(test_resolve_confirms_oom),
        cmocka_unit_test(test_resolve_retry),
        cmocka_unit_test(test_resolve_retry_is_cancelled),
        cmocka_unit_test(test_resolve_requeue),
        cmocka_unit_test(test_resolve_undecided),
        cmocka_unit_test(test_resolve_retry_is_newer_than_the_answer),
        cmocka_unit_test(test_local_cancelled_early),
        cmocka_unit_test(test_local_retry),
        cmocka_unit_test(test_resolve_live),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
