/* SPDX-License-Identifier: MIT */
#include "common/base/fs.h"
#include "common/run/cause.h"
#include "common/run/rank_state.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

#define EXIT(code) ((code) << 8)

static void test_is_cascade_words(void **state)
{
    static const char *const echoes[] = {
        "RuntimeError: NCCL error in: ProcessGroupNCCL.cpp:1275, remote process exited",
        "[rank3]:[E] Watchdog caught collective operation timeout",
        "x\nncclremoteerror: connection lost\ny",
        "read: Connection reset by peer",
        "pltrain: lost the connection to rank 3",
        "write failed: broken pipe",
    };
    static const char *const own[] = {"Segmentation fault", "CUDA out of memory", "", NULL,
                                      "lossy ranking",      "AssertionError"};

    for (size_t i = 0; i < PL_COUNT(echoes); i++)
        assert_true(pl_failure_is_cascade(&(struct pl_failure){.text = echoes[i]}));
    for (size_t i = 0; i < PL_COUNT(own); i++)
        assert_false(pl_failure_is_cascade(&(struct pl_failure){.text = own[i]}));
}

/* A rank whose GPU broke down says what victims say. */
static void test_first_gpu(void **state)
{
    struct pl_failure f[] = {
        {.rank = 0, .at_ns = 50, .text = "NCCL error"},
        {.rank = 1, .at_ns = 300, .text = "NCCL error", .gpu = true},
    };

    assert_false(pl_failure_is_cascade(&f[1]));
    assert_int_equal(pl_failure_first(f, 2), 1);
}

static void test_first_order(void **state)
{
    struct pl_failure f[] = {
        {.rank = 0, .at_ns = 50, .text = "NCCL error"},
        {.rank = 1, .at_ns = 300, .text = "assertion failed"},
        {.rank = 2, .at_ns = 100, .lost = true},
        {.rank = 3, .at_ns = 200, .text = ""},
        {.rank = 4, .at_ns = 200},
    };

    assert_int_equal(pl_failure_first(f, 1), 0);
    assert_int_equal(pl_failure_first(f, 2), 1); /* an echo only for want of a better one */
    assert_int_equal(pl_failure_first(f, 3), 1);
    assert_int_equal(pl_failure_first(f, 5), 3); /* the earliest; of equals the first to arrive */
    f[1] = f[0];
    assert_int_equal(pl_failure_first(f, 3), 2); /* a lost node before an echo */
    f[0].at_ns = INT64_MAX;
    f[1].at_ns = INT64_MIN;
    assert_int_equal(pl_failure_first(f, 2), 1);
}

static void test_tied_clocks(void **state)
{
    struct pl_failure a = {.node_id = 0, .at_ns = 1000, .uncertainty_ns = 60};
    struct pl_failure b = {.node_id = 1, .at_ns = 1100, .uncertainty_ns = 41};

    assert_true(pl_failure_tied(&a, &b));
    assert_true(pl_failure_tied(&b, &a));
    b.uncertainty_ns = 40;
    assert_false(pl_failure_tied(&a, &b));
    b.uncertainty_ns = 1000;
    b.node_id = 0; /* one clock: no doubt */
    assert_false(pl_failure_tied(&a, &b));
    b.node_id = 1;
    b.lost = true;
    assert_false(pl_failure_tied(&a, &b));
}

static void test_from_outside_kinds(void **state)
{
    static const struct {
        int status;
        bool oom, lost, outside;
    } rows[] = {
        {SIGTERM, false, false, true},         {SIGKILL, false, false, true},
        {SIGINT, false, false, true},          {EXIT(143), false, false, true},
        {EXIT(130), false, false, true},       {SIGKILL, true, false, false},
        {SIGKILL, false, true, false},         {SIGSEGV, false, false, false},
        {SIGABRT | 0x80, false, false, false}, {EXIT(1), false, false, false},
        {EXIT(137), false, false, false},      {EXIT(15), false, false, false},
    };

    for (size_t i = 0; i < PL_COUNT(rows); i++)
        assert_int_equal(pl_failure_from_outside(&(struct pl_failure){
                             .status = rows[i].status, .oom = rows[i].oom, .lost = rows[i].lost}),
                         rows[i].outside);
}

static void test_from_slurm_records(void **state)
{
    static const struct {
        const char *output;
        unsigned restart;
        bool terminated;
        const char *kind;
        bool inferred;
    } rows[] = {
        {"JobState=RUNNING Restarts=0 RunTime=00:01:00 TimeLimit=01:00:00 PreemptTime=None", 0,
         false, NULL, true},
        {"JobState=RUNNING Restarts=0 RunTime=00:01:00 TimeLimit=01:00:00 PreemptTime=None", 0,
         true, "cancelled", true},
        {"JobState=COMPLETING RunTime=01:00:01 TimeLimit=01:00:00", 0, true, "timeout", false},
        {"JobState=COMPLETING RunTime=1-00:00:01 TimeLimit=1-00:00:00", 0, true, "timeout", false},
        {"JobState=COMPLETING RunTime=01:00:01 TimeLimit=UNLIMITED", 0, true, "cancelled", true},
        {"JobState=COMPLETING Reason=TimeLimit RunTime=01:00:01 TimeLimit=01:00:00", 0, true,
         "timeout", false},
        /* the end of a reservation, or of what a QOS grants */
        {"JobState=COMPLETING Reason=TimeLimit RunTime=00:01:00 TimeLimit=01:00:00", 0, true,
         "timeout", false},
        {"JobState=COMPLETING Reason=InactiveLimit RunTime=00:01:00 TimeLimit=01:00:00", 0, true,
         "timeout", false},
        /* OverTimeLimit */
        {"JobState=COMPLETING Reason=None RunTime=01:00:01 TimeLimit=01:00:00", 0, true,
         "cancelled", true},
        {"JobState=CANCELLED Reason=None RunTime=01:00:01 TimeLimit=01:00:00", 0, true, "cancelled",
         false},
        {"JobState=RUNNING Reason=None RunTime=01:00:01 TimeLimit=01:00:00", 0, false, NULL, true},
        {"JobState=PENDING Restarts=3 RunTime=00:00:00 TimeLimit=01:00:00", 2, true, "preempted",
         false},
        {"JobState=RUNNING Restarts=2 RunTime=00:00:09 TimeLimit=01:00:00", 2, true, "cancelled",
         true},
        {"JobState=RUNNING PreemptTime=2026-01-01T00:00:00", 0, true, "preempted", false},
        {"JobState=PREEMPTED", 0, true, "preempted", false},
        {"JobState=TIMEOUT", 0, true, "timeout", false},
        {"JobState=DEADLINE", 0, true, "timeout", false},
        {"JobState=NODE_FAIL", 0, false, "node", false},
        {"JobState=BOOT_FAIL", 0, false, "node", false},
        {"JobState=OUT_OF_MEMORY", 0, false, "oom", false},
        {"JobState=CANCELLED", 0, false, "cancelled", false},
        {"JobState=FAILED", 0, false, NULL, true},
        {"JobState=COMPLETED", 0, false, NULL, true},
        {"JobState=COMPLETING", 0, false, "cancelled", true},
        {"JobName=JobState=TIMEOUT JobState=CANCELLED", 0, false, "cancelled", false},
        {"JobId=7 JobName=x PreemptTime=2026-01-01T00:00:00 UserId=u(1) Account=b TimeLimit=1 "
         "JobState=CANCELLED RunTime=00:00:09 TimeLimit=01:00:00 Partition=p "
         "Comment=c PreemptTime=2026-01-01T00:00:00",
         0, true, "cancelled", false},
        {"JobId=7 JobName=x JobState=TIMEOUT JobState=RUNNING Partition=p", 0, true, "cancelled",
         true},
        {"JobId=7 JobName=x JobState=RUNNING Partition=p WorkDir=/a JobState=NODE_FAIL", 0, false,
         NULL, true},
        {"JobId=7 JobState=TIMEOUT Partition=p\nJobId=6 JobState=FAILED PreemptTime=2026", 0, true,
         "timeout", false},
        {"", 0, false, NULL, true},
        {"slurm_load_jobs error: Invalid job id specified", 0, true, "cancelled", true},
    };

    for (size_t i = 0; i < PL_COUNT(rows); i++) {
        bool inferred = !rows[i].inferred;
        const char *kind = pl_cause_name(
            pl_cause_from_slurm(rows[i].output, rows[i].restart, rows[i].terminated, &inferred));

        if (!kind != !rows[i].kind || (kind && strcmp(kind, rows[i].kind) != 0) ||
            inferred != rows[i].inferred)
            fail_msg("%s: %s%s", rows[i].output, kind ? kind : "none",
                     inferred ? ", inferred" : "");
    }
}

static void test_state_of_kind(void **state)
{
    assert_int_equal(pl_cause_state(PL_CAUSE_NONE), PL_TRIAL_DONE);
    assert_int_equal(pl_cause_state(PL_CAUSE_TIMEOUT), PL_TRIAL_TIMED_OUT);
    assert_int_equal(pl_cause_state(PL_CAUSE_PREEMPTED), PL_TRIAL_PREEMPTED);
    assert_int_equal(pl_cause_state(PL_CAUSE_CANCELLED), PL_TRIAL_CANCELLED);
    assert_int_equal(pl_cause_state(PL_CAUSE_NODE), PL_TRIAL_NODE_FAILED);
    assert_int_equal(pl_cause_state(PL_CAUSE_EXIT), PL_TRIAL_FAILED);
    assert_int_equal(pl_cause_state(PL_CAUSE_LAUNCH), PL_TRIAL_FAILED);
    assert_int_equal(pl_cause_state(PL_CAUSE_RUNTIME), PL_TRIAL_FAILED);
}

static void test_names(void **state)
{
    assert_null(pl_cause_name(PL_CAUSE_NONE));
    assert_int_equal(pl_cause_parse(NULL), PL_CAUSE_NONE);
    assert_int_equal(pl_cause_parse("a later one"), PL_CAUSE_UNKNOWN);
    for (unsigned i = PL_CAUSE_NONE + 1; i <= PL_CAUSE_UNKNOWN; i++)
        assert_int_equal(pl_cause_parse(pl_cause_name(i)), i);
    assert_int_equal(pl_rank_state_parse(NULL), PL_RANK_UNKNOWN);
    for (unsigned i = 0; i <= PL_RANK_UNKNOWN; i++)
        assert_int_equal(pl_rank_state_parse(pl_rank_state_name(i)), i);
}

static void test_failure_kind(void **state)
{
    assert_int_equal(pl_failure_kind(&(struct pl_failure){.status = EXIT(3)}), PL_CAUSE_EXIT);
    assert_int_equal(pl_failure_kind(&(struct pl_failure){.status = SIGSEGV}), PL_CAUSE_SIGNAL);
    assert_int_equal(pl_failure_kind(&(struct pl_failure){.status = SIGKILL, .oom = true}),
                     PL_CAUSE_OOM);
    assert_int_equal(pl_failure_kind(&(struct pl_failure){.status = SIGKILL, .lost = true}),
                     PL_CAUSE_NODE);
    assert_int_equal(
        pl_failure_kind(&(struct pl_failure){.status = SIGKILL, .lost = true, .runtime = true}),
        PL_CAUSE_RUNTIME);
    assert_int_equal(pl_failure_kind(&(struct pl_failure){.status = SIGKILL, .runtime = true}),
                     PL_CAUSE_RUNTIME);
}

static void test_confidence(void **state)
{
    struct pl_failure gone = {.status = SIGKILL, .lost = true, .runtime = true};

    assert_string_equal(pl_confidence_name(pl_failure_confidence(&gone)), "inferred");
    gone.lost = false;
    assert_string_equal(pl_confidence_name(pl_failure_confidence(&gone)), "seen");
    assert_string_equal(pl_confidence_name(PL_CONFIDENCE_ASKED), "asked");
}

static void test_is_crash(void **state)
{
    assert_true(pl_failure_is_crash(&(struct pl_failure){.status = SIGSEGV | 0x80}));
    assert_true(pl_failure_is_crash(&(struct pl_failure){.status = SIGABRT}));
    assert_false(pl_failure_is_crash(&(struct pl_failure){.status = SIGTERM}));
    assert_false(pl_failure_is_crash(&(struct pl_failure){.status = EXIT(134)}));
}

/* A state and its cause agree, but for a lack of memory, which is one failure among others. */
static void test_job_states_agree(void **state)
{
    static const char *const names[] = {
        "PENDING",  "RUNNING",   "SUSPENDED", "UNKNOWN",   "COMPLETED",     "CANCELLED", "TIMEOUT",
        "DEADLINE", "NODE_FAIL", "BOOT_FAIL", "PREEMPTED", "OUT_OF_MEMORY", "FAILED",    "REVOKED"};

    for (size_t i = 0; i < PL_COUNT(names); i++) {
        const struct pl_job_state *s = pl_job_state_find(names[i]);

        if (s->cause != PL_CAUSE_NONE)
            assert_int_equal(pl_cause_state(s->cause), s->trial);
    }
    assert_int_equal(pl_job_state_find("REVOKED")->trial, PL_TRIAL_FAILED);
    assert_int_equal(pl_job_state_find("SUSPENDED")->trial, PL_TRIAL_RUNNING);
    assert_int_equal(pl_job_state_find("OF_A_NEWER_RELEASE")->trial, PL_TRIAL_RUNNING);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_is_cascade_words),   cmocka_unit_test(test_first_gpu),
        cmocka_unit_test(test_first_order),        cmocka_unit_test(test_tied_clocks),
        cmocka_unit_test(test_from_outside_kinds), cmocka_unit_test(test_from_slurm_records),
        cmocka_unit_test(test_state_of_kind),      cmocka_unit_test(test_names),
        cmocka_unit_test(test_confidence),         cmocka_unit_test(test_is_crash),
        cmocka_unit_test(test_failure_kind),       cmocka_unit_test(test_job_states_agree),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
