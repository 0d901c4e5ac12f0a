/* SPDX-License-Identifier: MIT */
/* Recorded failures and the decisions that follow from them. Times are in milliseconds. */
#include "runtime/plrund/hub/decide.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

#define EXIT(code) ((code) << 8)
#define NCCL "RuntimeError: NCCL error: remote process exited"
#define KILLED(n, at)                                                                              \
    {                                                                                              \
        .rank = (n), .status = SIGKILL, .at_ns = (at), .arrived_ns = MS(at)                        \
    }
#define MS(ms) ((ms)*1000000ull)

#define WAIT(ms)                                                                                   \
    {                                                                                              \
        .action = PL_DECIDE_WAIT, .wait_ms = (ms), .root = -1                                      \
    }
#define WAIT_EVENT WAIT(-1)
#define ASK                                                                                        \
    {                                                                                              \
        .action = PL_DECIDE_ASK_SLURM, .root = -1                                                  \
    }
#define RANK(i)                                                                                    \
    {                                                                                              \
        .action = PL_DECIDE_CAUSE, .root = (i)                                                     \
    }
#define LAUNCH                                                                                     \
    {                                                                                              \
        .action = PL_DECIDE_LAUNCH, .root = -1                                                     \
    }
#define END                                                                                        \
    {                                                                                              \
        .action = PL_DECIDE_END, .root = -1                                                        \
    }
#define SLURM(k)                                                                                   \
    {                                                                                              \
        .action = PL_DECIDE_CAUSE, .root = -1, .kind = (k), .confidence = PL_CONFIDENCE_ASKED,     \
        .slurm_ends = true                                                                         \
    }
#define GUESS(k, ends)                                                                             \
    {                                                                                              \
        .action = PL_DECIDE_CAUSE, .root = -1, .kind = (k), .confidence = PL_CONFIDENCE_INFERRED,  \
        .slurm_ends = (ends)                                                                       \
    }
#define SEEN(k)                                                                                    \
    {                                                                                              \
        .action = PL_DECIDE_CAUSE, .root = -1, .kind = (k), .confidence = PL_CONFIDENCE_SEEN       \
    }
#define ENDED(n, s, at)                                                                            \
    {                                                                                              \
        .rank = (n), .status = (s), .at_ns = (at), .arrived_ns = MS(at)                            \
    }
#define RUNS                                                                                       \
    {                                                                                              \
        .inferred = true, .job_runs = true, .final = true                                          \
    }
#define COMPLETES                                                                                  \
    {                                                                                              \
        .kind = PL_CAUSE_CANCELLED, .inferred = true, .final = true                                \
    }

struct row {
    const char *what;
    struct pl_failure failures[3];
    size_t n;
    struct pl_evidence e; /* all but the failures; ntasks 0 = 3, unstarted 0 = none */
    uint64_t now_ms;
    struct pl_decision want;
};

static const struct row rows[] = {
    {.what = "nothing happened", .want = WAIT_EVENT},
    {.what = "all exited 0", .e = {.all_left = true}, .want = END},
    {.what = "all exited 0, and one of them handles SIGTERM",
     .e = {.all_left = true, .obeyed = true},
     .want = ASK},
    {.what = "one that handles SIGTERM exited 0, and others still run",
     .e = {.obeyed = true},
     .want = WAIT_EVENT},
    {.what = "all exited 0, one handles SIGTERM, and the job runs on",
     .e = {.all_left = true, .obeyed = true, .question = PL_SLURM_ANSWERED, .answer = RUNS},
     .want = END},
    {.what = "all exited 0, one handles SIGTERM, and Slurm is silent",
     .e = {.all_left = true,
           .obeyed = true,
           .question = PL_SLURM_ANSWERED,
           .answer = {.inferred = true, .silent = true, .asked_late = true, .final = true}},
     .want = END},
    {.what = "all exited 0, one handles SIGTERM, and Slurm ends the job",
     .e = {.all_left = true,
           .obeyed = true,
           .question = PL_SLURM_ANSWERED,
           .answer = {.kind = PL_CAUSE_CANCELLED,
                      .inferred = true,
                      .asked_late = true,
                      .held = true,
                      .final = true}},
     .want = GUESS(PL_CAUSE_CANCELLED, true)},
    {.what = "all exited 0, one handles SIGTERM, and the job is preempted",
     .e = {.all_left = true,
           .obeyed = true,
           .question = PL_SLURM_ANSWERED,
           .answer = {.kind = PL_CAUSE_PREEMPTED, .asked_late = true, .final = true}},
     .want = SLURM(PL_CAUSE_PREEMPTED)},
    {.what = "one that handles SIGTERM exited 0, and another never started",
     .e = {.all_left = true, .obeyed = true, .unstarted = 2},
     .want = LAUNCH},
    {.what = "one that handles SIGTERM exited 0, and another one has no end",
     .e = {.all_left = true, .obeyed = true, .unfinished = true},
     .want = GUESS(PL_CAUSE_UNKNOWN, false)},
    {.what = "plugin: all exited 0, perhaps as Slurm told them to",
     .e = {.all_left = true, .plugin = true},
     .want = ASK},
    {.what = "plugin: all exited 0, and the job runs on",
     .e = {.all_left = true, .plugin = true, .question = PL_SLURM_ANSWERED, .answer = RUNS},
     .want = END},
    {.what = "plugin: all exited 0, and so the job is over",
     .e = {.all_left = true,
           .plugin = true,
           .question = PL_SLURM_ANSWERED,
           .answer =
               {.kind = PL_CAUSE_CANCELLED, .inferred = true, .asked_late = true, .final = true}},
     .want = END},
    {.what = "plugin: all exited 0, and the job is over, of which srun does not know yet",
     .e = {.all_left = true,
           .plugin = true,
           .question = PL_SLURM_ANSWERED,
           .answer = {.kind = PL_CAUSE_CANCELLED,
                      .inferred = true,
                      .asked_late = true,
                      .held = true,
                      .final = true}},
     .want = GUESS(PL_CAUSE_CANCELLED, true)},
    {.what = "plugin: all saved and exited 0, and the job is requeued",
     .e = {.all_left = true,
           .plugin = true,
           .question = PL_SLURM_ANSWERED,
           .answer = {.kind = PL_CAUSE_PREEMPTED, .asked_late = true, .final = true}},
     .want = SLURM(PL_CAUSE_PREEMPTED)},
    {.what = "plugin: a rank never started",
     .e = {.all_left = true, .plugin = true, .unstarted = 2},
     .want = LAUNCH},
    {.what = "a rank never started", .e = {.all_left = true, .unstarted = 2}, .want = LAUNCH},
    {.what = "no world", .e = {.all_left = true, .launch_failed = true}, .want = LAUNCH},
    {.what = "no world, nodes still leave", .e = {.launch_failed = true}, .want = WAIT_EVENT},
    {.what = "no world, and refused ranks that exited with 1",
     .failures = {{.rank = 1, .status = 0x100, .arrived_ns = MS(1000)}},
     .n = 1,
     .now_ms = 2000,
     .e = {.all_left = true, .launch_failed = true},
     .want = LAUNCH},
    {.what = "no world, refused ranks, and nodes that still leave",
     .failures = {{.rank = 1, .status = 0x100, .arrived_ns = MS(1000)}},
     .n = 1,
     .now_ms = 2000,
     .e = {.launch_failed = true},
     .want = WAIT_EVENT},

    /* one failure, or several */
    {.what = "a crash waits for an earlier one",
     .failures = {{.rank = 1, .status = SIGSEGV, .arrived_ns = MS(1000)}},
     .n = 1,
     .now_ms = 1040,
     .want = WAIT(60)},
    {.what = "a crash has waited",
     .failures = {{.rank = 1, .status = SIGSEGV, .arrived_ns = MS(1000)}},
     .n = 1,
     .now_ms = 1100,
     .want = RANK(0)},
    {.what = "all nodes left: nothing earlier can come",
     .failures = {{.rank = 1, .status = SIGSEGV, .arrived_ns = MS(1000)}},
     .n = 1,
     .e = {.all_left = true},
     .now_ms = 1001,
     .want = RANK(0)},
    {.what = "an echo waits longer",
     .failures = {{.rank = 0, .status = EXIT(1), .text = NCCL, .arrived_ns = MS(1000)}},
     .n = 1,
     .e = {.question = PL_SLURM_ASKED},
     .now_ms = 1500,
     .want = WAIT(1500)},
    {.what = "an echo alone is the cause",
     .failures = {{.rank = 0, .status = EXIT(1), .text = NCCL, .arrived_ns = MS(1000)}},
     .n = 1,
     .e = {.question = PL_SLURM_ASKED},
     .now_ms = 3000,
     .want = RANK(0)},
    {.what = "an echo whose GPU broke down is none",
     .failures = {{.status = EXIT(1), .text = NCCL, .gpu = true, .arrived_ns = MS(1000)}},
     .n = 1,
     .e = {.question = PL_SLURM_ASKED},
     .now_ms = 1500,
     .want = RANK(0)},
    {.what = "the crash after its echo shortens the wait",
     .failures = {{.rank = 0, .status = EXIT(1), .text = NCCL, .at_ns = 1, .arrived_ns = MS(1000)},
                  {.rank = 2, .status = SIGABRT, .at_ns = 2, .arrived_ns = MS(1200)}},
     .n = 2,
     .e = {.question = PL_SLURM_ASKED},
     .now_ms = 1250,
     .want = WAIT(50)},
    {.what = "the crash is the cause, though it came second",
     .failures = {{.rank = 0, .status = EXIT(1), .text = NCCL, .at_ns = 1, .arrived_ns = MS(1000)},
                  {.rank = 2, .status = SIGABRT, .at_ns = 2, .arrived_ns = MS(1200)}},
     .n = 2,
     .e = {.question = PL_SLURM_ASKED},
     .now_ms = 1300,
     .want = RANK(1)},
    {.what = "a later crash does not lengthen the wait",
     .failures = {{.rank = 0, .status = EXIT(1), .at_ns = 9, .arrived_ns = MS(1000)},
                  {.rank = 2, .status = EXIT(2), .at_ns = 2, .arrived_ns = MS(1090)}},
     .n = 2,
     .e = {.question = PL_SLURM_ASKED},
     .now_ms = 1100,
     .want = RANK(1)},
    {.what = "a node is lost",
     .failures = {{.rank = 1, .status = SIGKILL, .lost = true, .arrived_ns = MS(1)}},
     .n = 1,
     .now_ms = 200,
     .want = RANK(0)},
    {.what = "out of memory is no order from outside",
     .failures = {{.rank = 1, .status = SIGKILL, .oom = true, .arrived_ns = MS(1)}},
     .n = 1,
     .now_ms = 200,
     .want = RANK(0)},

    /* an end that looks ordered */
    {.what = "SIGKILL from somewhere: first the wait",
     .failures = {KILLED(0, 1000)},
     .n = 1,
     .now_ms = 1000,
     .want = WAIT(100)},
    {.what = "SIGKILL from somewhere: Slurm is asked",
     .failures = {KILLED(0, 1000)},
     .n = 1,
     .now_ms = 1100,
     .want = ASK},
    {.what = "exit 143 after SIGTERM",
     .failures = {{.status = EXIT(143), .arrived_ns = MS(1000)}},
     .n = 1,
     .now_ms = 1100,
     .want = ASK},
    {.what = "a failure after a signal to the step",
     .failures = {{.status = EXIT(9), .arrived_ns = MS(1000)}},
     .n = 1,
     .e = {.terminated = true},
     .now_ms = 1100,
     .want = ASK},
    {.what = "the answer is to come, though all nodes left",
     .failures = {KILLED(0, 1000)},
     .n = 1,
     .e = {.question = PL_SLURM_ASKED, .all_left = true},
     .now_ms = 9999,
     .want = WAIT_EVENT},
    {.what = "an exit code may be the answer to a signal: Slurm is asked at once",
     .failures = {{.rank = 1, .status = EXIT(1), .arrived_ns = MS(1000)}},
     .n = 1,
     .now_ms = 1000,
     .want = ASK},
    {.what = "an exit code of a rank without a handler of SIGTERM is no answer to it",
     .failures = {{.rank = 1, .status = EXIT(1), .term_default = true, .arrived_ns = MS(1000)}},
     .n = 1,
     .now_ms = 1000,
     .want = WAIT(100)},
    {.what = "it has waited",
     .failures = {{.rank = 1, .status = EXIT(1), .term_default = true, .arrived_ns = MS(1000)}},
     .n = 1,
     .now_ms = 1100,
     .want = RANK(0)},
    {.what = "an exit code: the answer is waited for as long as an earlier failure",
     .failures = {{.rank = 1, .status = EXIT(1), .arrived_ns = MS(1000)}},
     .n = 1,
     .e = {.question = PL_SLURM_ASKED, .all_left = true},
     .now_ms = 1040,
     .want = WAIT(60)},
    {.what = "an echo of which all nodes left: no longer than that",
     .failures = {{.rank = 1, .status = EXIT(1), .text = NCCL, .arrived_ns = MS(1000)}},
     .n = 1,
     .e = {.question = PL_SLURM_ASKED, .all_left = true},
     .now_ms = 1100,
     .want = RANK(0)},
    {.what = "an exit code, and Slurm is slow: nobody waits",
     .failures = {{.rank = 1, .status = EXIT(1), .arrived_ns = MS(1000)}},
     .n = 1,
     .e = {.question = PL_SLURM_ASKED},
     .now_ms = 1100,
     .want = RANK(0)},
    {.what = "plugin: an exit code, and Slurm is slow: nobody else can tell of a signal",
     .failures = {{.rank = 1, .status = EXIT(1), .arrived_ns = MS(1000)}},
     .n = 1,
     .e = {.plugin = true, .question = PL_SLURM_ASKED, .all_left = true},
     .now_ms = 1100,
     .want = WAIT(700)},
    {.what = "plugin: an exit code, and Slurm is slower than that",
     .failures = {{.rank = 1, .status = EXIT(1), .arrived_ns = MS(1000)}},
     .n = 1,
     .e = {.plugin = true, .question = PL_SLURM_ASKED, .all_left = true},
     .now_ms = 1800,
     .want = RANK(0)},
    {.what = "an exit code, Slurm is slow, and a signal has come after it",
     .failures = {{.rank = 1, .status = EXIT(1), .arrived_ns = MS(1000)}},
     .n = 1,
     .e = {.question = PL_SLURM_ASKED, .signalled_late = true},
     .now_ms = 1100,
     .want = WAIT_EVENT},
    {.what = "an exit code, and the job runs on: an earlier failure may still come",
     .failures = {{.rank = 1, .status = EXIT(1), .arrived_ns = MS(1000)}},
     .n = 1,
     .e = {.question = PL_SLURM_ANSWERED, .answer = RUNS, .signalled_late = true},
     .now_ms = 1040,
     .want = WAIT(60)},
    {.what = "an exit code, the job runs on, and all nodes left",
     .failures = {{.rank = 1, .status = EXIT(1), .arrived_ns = MS(1000)}},
     .n = 1,
     .e = {.question = PL_SLURM_ANSWERED, .answer = RUNS, .all_left = true},
     .now_ms = 1040,
     .want = RANK(0)},
    {.what = "an exit code, and Slurm ends the job",
     .failures = {{.rank = 1, .status = EXIT(1), .arrived_ns = MS(1000)}},
     .n = 1,
     .e = {.question = PL_SLURM_ANSWERED, .answer = COMPLETES},
     .now_ms = 1010,
     .want = GUESS(PL_CAUSE_CANCELLED, true)},
    {.what = "an exit code, and Slurm says why it ends the job",
     .failures = {{.rank = 1, .status = EXIT(1), .arrived_ns = MS(1000)}},
     .n = 1,
     .e = {.question = PL_SLURM_ANSWERED, .answer = {.kind = PL_CAUSE_TIMEOUT, .final = true}},
     .now_ms = 1010,
     .want = SLURM(PL_CAUSE_TIMEOUT)},
    {.what = "an exit code of a job that is past its limit, and runs on",
     .failures = {{.rank = 1, .status = EXIT(1), .arrived_ns = MS(1000)}},
     .n = 1,
     .e = {.question = PL_SLURM_ANSWERED,
           .answer = {.kind = PL_CAUSE_TIMEOUT, .job_runs = true, .final = true}},
     .now_ms = 1100,
     .want = RANK(0)},
    {.what = "an exit code in the grace time of a preemption, in which the job runs on",
     .failures = {{.rank = 1, .status = EXIT(9), .arrived_ns = MS(1000)}},
     .n = 1,
     .e = {.plugin = true,
           .question = PL_SLURM_ANSWERED,
           .answer = {.kind = PL_CAUSE_PREEMPTED, .job_runs = true, .final = true}},
     .now_ms = 1010,
     .want = SLURM(PL_CAUSE_PREEMPTED)},
    {.what = "plugin: an exit code, and Slurm ends the job: srun does not know of it yet",
     .failures = {{.rank = 1, .status = EXIT(9), .arrived_ns = MS(1000)}},
     .n = 1,
     .e = {.plugin = true,
           .question = PL_SLURM_ANSWERED,
           .answer = {.kind = PL_CAUSE_CANCELLED, .inferred = true, .held = true, .final = true}},
     .now_ms = 1010,
     .want = GUESS(PL_CAUSE_CANCELLED, true)},
    {.what = "plugin: an exit code, and the job completes, perhaps by it",
     .failures = {{.rank = 1, .status = EXIT(1), .arrived_ns = MS(1000)}},
     .n = 1,
     .e = {.plugin = true, .question = PL_SLURM_ANSWERED, .answer = COMPLETES},
     .now_ms = 1100,
     .want = RANK(0)},
    {.what = "a crash is no answer to a signal: what Slurm was asked for an echo of it is not "
             "waited for",
     .failures = {{.rank = 0, .status = EXIT(1), .text = NCCL, .at_ns = 1, .arrived_ns = MS(1000)},
                  {.rank = 2, .status = SIGABRT, .at_ns = 2, .arrived_ns = MS(1200)}},
     .n = 2,
     .e = {.question = PL_SLURM_ANSWERED, .answer = RUNS},
     .now_ms = 1250,
     .want = WAIT(50)},
    {.what = "Slurm knows of nothing: the rank is the cause",
     .failures = {KILLED(0, 1000)},
     .n = 1,
     .e = {.question = PL_SLURM_ANSWERED,
           .answer = {.inferred = true, .job_runs = true, .final = true}},
     .want = RANK(0)},
    {.what = "the job was preempted",
     .failures = {KILLED(0, 1000)},
     .n = 1,
     .e = {.question = PL_SLURM_ANSWERED, .answer = {.kind = PL_CAUSE_PREEMPTED, .final = true}},
     .want = SLURM(PL_CAUSE_PREEMPTED)},
    {.what = "a signal, a failure, and the job runs on: the rest is ended",
     .failures = {{.status = EXIT(143)}},
     .n = 1,
     .e = {.terminated = true,
           .question = PL_SLURM_ANSWERED,
           .answer =
               {.kind = PL_CAUSE_CANCELLED, .inferred = true, .job_runs = true, .final = true}},
     .want = SEEN(PL_CAUSE_CANCELLED)},
    {.what = "a signal, a failure, and the job is completing",
     .failures = {{.status = EXIT(143)}},
     .n = 1,
     .e = {.terminated = true,
           .question = PL_SLURM_ANSWERED,
           .answer = {.kind = PL_CAUSE_CANCELLED, .inferred = true, .final = true}},
     .want = GUESS(PL_CAUSE_CANCELLED, true)},
    {.what = "Slurm is silent after a signal",
     .failures = {{.status = SIGTERM}},
     .n = 1,
     .e = {.terminated = true,
           .question = PL_SLURM_ANSWERED,
           .answer = {.kind = PL_CAUSE_CANCELLED, .inferred = true, .silent = true, .final = true}},
     .want = GUESS(PL_CAUSE_CANCELLED, false)},
    {.what = "every rank got SIGKILL: nobody knows from whom",
     .failures = {KILLED(0, 3), KILLED(1, 1), KILLED(2, 2)},
     .n = 3,
     .e = {.question = PL_SLURM_ANSWERED, .answer = RUNS},
     .want = RANK(1)},
    {.what = "the same under the plugin",
     .failures = {KILLED(0, 3), KILLED(1, 1), KILLED(2, 2)},
     .n = 3,
     .e = {.plugin = true, .question = PL_SLURM_ANSWERED, .answer = RUNS},
     .want = RANK(1)},
    {.what = "every rank got SIGKILL, and the job ends as its ranks have",
     .failures = {KILLED(0, 3), KILLED(1, 1), KILLED(2, 2)},
     .n = 3,
     .e = {.question = PL_SLURM_ANSWERED, .answer = COMPLETES},
     .want = RANK(1)},
    {.what = "plugin: every rank got SIGKILL, and the job is over, of which srun does not know yet",
     .failures = {KILLED(0, 3), KILLED(1, 1), KILLED(2, 2)},
     .n = 3,
     .e = {.plugin = true,
           .question = PL_SLURM_ANSWERED,
           .answer = {.kind = PL_CAUSE_CANCELLED, .inferred = true, .held = true, .final = true}},
     .want = GUESS(PL_CAUSE_CANCELLED, true)},
    {.what = "plugin: every rank got SIGKILL, and srun knows that",
     .failures = {KILLED(0, 3), KILLED(1, 1), KILLED(2, 2)},
     .n = 3,
     .e = {.plugin = true, .question = PL_SLURM_ANSWERED, .answer = COMPLETES},
     .want = RANK(1)},
    {.what = "plugin: the kernel killed a rank for its memory, and the job is over",
     .failures = {{.status = SIGKILL, .oom = true}},
     .n = 1,
     .e = {.plugin = true,
           .question = PL_SLURM_ANSWERED,
           .answer = {.kind = PL_CAUSE_CANCELLED, .inferred = true, .held = true, .final = true}},
     .now_ms = 1000,
     .want = RANK(0)},
    {.what = "every rank got SIGKILL after a SIGTERM: Slurm ends the job",
     .failures = {KILLED(0, 3), KILLED(1, 1), KILLED(2, 2)},
     .n = 3,
     .e = {.terminated = true, .question = PL_SLURM_ANSWERED, .answer = COMPLETES},
     .want = GUESS(PL_CAUSE_CANCELLED, true)},
    {.what = "Slurm's word explains SIGKILL",
     .failures = {KILLED(0, 3), KILLED(1, 1), KILLED(2, 2)},
     .n = 3,
     .e = {.question = PL_SLURM_ANSWERED, .answer = {.kind = PL_CAUSE_CANCELLED, .final = true}},
     .want = SLURM(PL_CAUSE_CANCELLED)},
    {.what = "every rank crashed by SIGABRT: failed",
     .failures = {ENDED(0, SIGABRT, 3), ENDED(1, SIGABRT, 1), ENDED(2, SIGABRT, 2)},
     .n = 3,
     .e = {.all_left = true},
     .want = RANK(1)},
    {.what = "a crash after a signal that it does not explain",
     .failures = {ENDED(0, SIGSEGV, 3), ENDED(1, SIGSEGV | 0x80, 1), ENDED(2, SIGABRT, 2)},
     .n = 3,
     .e = {.terminated = true,
           .question = PL_SLURM_ANSWERED,
           .answer =
               {.kind = PL_CAUSE_CANCELLED, .inferred = true, .job_runs = true, .final = true}},
     .want = RANK(1)},
    {.what = "a failure of another kind after a signal: not certain",
     .failures = {ENDED(0, EXIT(9), 3)},
     .n = 1,
     .e = {.terminated = true,
           .question = PL_SLURM_ANSWERED,
           .answer =
               {.kind = PL_CAUSE_CANCELLED, .inferred = true, .job_runs = true, .final = true}},
     .want = GUESS(PL_CAUSE_CANCELLED, false)},
    {.what = "a crash as Slurm preempts the job",
     .failures = {ENDED(0, SIGSEGV, 3)},
     .n = 1,
     .e = {.terminated = true,
           .question = PL_SLURM_ANSWERED,
           .answer = {.kind = PL_CAUSE_PREEMPTED, .final = true}},
     .want = SLURM(PL_CAUSE_PREEMPTED)},

    /* the plugin: only the ranks get the step's signals */
    {.what = "plugin: every rank ended by SIGTERM",
     .failures = {ENDED(0, SIGTERM, 3), ENDED(1, EXIT(143), 1), ENDED(2, SIGTERM, 2)},
     .n = 3,
     .e = {.plugin = true, .question = PL_SLURM_ANSWERED, .answer = RUNS},
     .want = GUESS(PL_CAUSE_CANCELLED, false)},
    {.what = "plugin: every rank ended by Ctrl-C",
     .failures = {ENDED(0, SIGINT, 3), ENDED(1, EXIT(130), 1), ENDED(2, SIGINT, 2)},
     .n = 3,
     .e = {.plugin = true, .question = PL_SLURM_ANSWERED, .answer = RUNS},
     .want = GUESS(PL_CAUSE_CANCELLED, false)},
    {.what = "plugin: the first of three ended by SIGTERM, the others may follow",
     .failures = {ENDED(1, SIGTERM, 0)},
     .n = 1,
     .e = {.plugin = true},
     .now_ms = 1500,
     .want = WAIT(500)},
    {.what = "plugin: two of three ended by SIGTERM, a third by itself",
     .failures = {ENDED(1, SIGTERM, 0), ENDED(0, SIGTERM, 90), ENDED(2, EXIT(3), 90)},
     .n = 3,
     .e = {.plugin = true},
     .now_ms = 190,
     .want = ASK},
    {.what = "plugin: two of three ended by SIGTERM",
     .failures = {ENDED(0, SIGTERM, 3), ENDED(1, SIGTERM, 1)},
     .n = 2,
     .e = {.plugin = true, .question = PL_SLURM_ANSWERED, .answer = RUNS},
     .want = RANK(1)},
    {.what = "plugin: SIGTERM for some, SIGINT for others",
     .failures = {ENDED(0, SIGTERM, 3), ENDED(1, SIGINT, 1), ENDED(2, SIGTERM, 2)},
     .n = 3,
     .e = {.plugin = true, .question = PL_SLURM_ANSWERED, .answer = RUNS},
     .want = RANK(1)},
    {.what = "plugin: the job is completing, a rank got SIGTERM",
     .failures = {ENDED(0, SIGTERM, 3)},
     .n = 1,
     .e = {.plugin = true, .question = PL_SLURM_ANSWERED, .answer = COMPLETES},
     .want = GUESS(PL_CAUSE_CANCELLED, true)},
    {.what = "plrun: every rank ended by SIGTERM, which no plrun has seen",
     .failures = {ENDED(0, SIGTERM, 3), ENDED(1, SIGTERM, 1), ENDED(2, SIGTERM, 2)},
     .n = 3,
     .e = {.question = PL_SLURM_ANSWERED, .answer = RUNS},
     .want = RANK(1)},

    /* Plume's own processes */
    {.what = "a daemon is gone: first Slurm is asked, who may have ended it all",
     .failures = {{.rank = 1, .status = SIGKILL, .lost = true, .runtime = true}},
     .n = 1,
     .now_ms = 200,
     .want = ASK},
    {.what = "a daemon is gone, and Slurm knows of nothing",
     .failures = {{.rank = 1, .status = SIGKILL, .lost = true, .runtime = true}},
     .n = 1,
     .e = {.question = PL_SLURM_ANSWERED, .answer = RUNS},
     .want = RANK(0)},
    {.what = "a starter is gone, and the job ends as its ranks have",
     .failures = {{.rank = 1, .status = SIGKILL, .runtime = true}},
     .n = 1,
     .e = {.question = PL_SLURM_ANSWERED, .answer = COMPLETES},
     .want = RANK(0)},
    {.what = "a rank that started has no end",
     .e = {.all_left = true, .unfinished = true},
     .want = GUESS(PL_CAUSE_UNKNOWN, false)},
    {.what = "two of three ranks got SIGKILL",
     .failures = {KILLED(0, 2), KILLED(1, 1)},
     .n = 2,
     .e = {.question = PL_SLURM_ANSWERED,
           .answer = {.inferred = true, .job_runs = true, .final = true}},
     .want = RANK(1)},
    {.what = "an answer from before the failure does not count",
     .failures = {{.status = EXIT(9), .arrived_ns = MS(1000)}},
     .n = 1,
     .e = {.terminated = true,
           .question = PL_SLURM_ANSWERED,
           .answer = {.kind = PL_CAUSE_CANCELLED, .inferred = true, .job_runs = true}},
     .now_ms = 1000,
     .want = WAIT(100)},
    {.what = "so Slurm is asked again",
     .failures = {{.status = EXIT(9), .arrived_ns = MS(1000)}},
     .n = 1,
     .e = {.terminated = true,
           .question = PL_SLURM_ANSWERED,
           .answer = {.kind = PL_CAUSE_CANCELLED, .inferred = true, .job_runs = true}},
     .now_ms = 1100,
     .want = ASK},

    /* a signal that no rank dies of */
    {.what = "a signal: Slurm is asked at once", .e = {.terminated = true}, .want = ASK},
    {.what = "only a signal: the job runs on",
     .e = {.terminated = true,
           .question = PL_SLURM_ANSWERED,
           .answer = {.kind = PL_CAUSE_CANCELLED, .inferred = true, .job_runs = true}},
     .want = WAIT_EVENT},
    {.what = "only a signal: one more question when all have left",
     .e = {.terminated = true,
           .all_left = true,
           .question = PL_SLURM_ANSWERED,
           .answer = {.kind = PL_CAUSE_CANCELLED, .inferred = true, .job_runs = true}},
     .want = ASK},
    {.what = "only a signal: no third question",
     .e = {.terminated = true,
           .all_left = true,
           .question = PL_SLURM_ANSWERED,
           .answer =
               {.kind = PL_CAUSE_CANCELLED, .inferred = true, .job_runs = true, .final = true}},
     .want = END},
    {.what = "plugin: a job that completes because its ranks left is not cancelled",
     .e = {.plugin = true,
           .terminated = true,
           .all_left = true,
           .question = PL_SLURM_ANSWERED,
           .answer =
               {.kind = PL_CAUSE_CANCELLED, .inferred = true, .asked_late = true, .final = true}},
     .want = END},
    {.what = "ranks save and leave before the answer: cancelled",
     .e = {.terminated = true,
           .all_left = true,
           .question = PL_SLURM_ANSWERED,
           .answer = {.kind = PL_CAUSE_CANCELLED, .inferred = true, .final = true}},
     .want = GUESS(PL_CAUSE_CANCELLED, true)},
    {.what = "preemption, while the job still runs",
     .e = {.terminated = true,
           .question = PL_SLURM_ANSWERED,
           .answer = {.kind = PL_CAUSE_PREEMPTED, .job_runs = true}},
     .want = SLURM(PL_CAUSE_PREEMPTED)},
    {.what = "time limit",
     .e = {.terminated = true, .question = PL_SLURM_ANSWERED, .answer = {.kind = PL_CAUSE_TIMEOUT}},
     .want = SLURM(PL_CAUSE_TIMEOUT)},
    {.what = "Slurm is silent, and all exited 0",
     .e = {.terminated = true,
           .all_left = true,
           .question = PL_SLURM_ANSWERED,
           .answer = {.kind = PL_CAUSE_CANCELLED, .inferred = true, .silent = true, .final = true}},
     .want = END},

    /* after the cause */
    {.what = "the nodes end their ranks",
     .failures = {KILLED(0, 1000)},
     .n = 1,
     .e = {.has_cause = true, .terminated = true},
     .now_ms = 9999,
     .want = WAIT_EVENT},
    {.what = "all nodes have ended their ranks",
     .failures = {KILLED(0, 1000)},
     .n = 1,
     .e = {.has_cause = true, .all_left = true, .unstarted = 1},
     .want = END},
};

static void test_decide_table(void **state)
{
    for (size_t i = 0; i < PL_COUNT(rows); i++) {
        const struct row *row = &rows[i];
        struct pl_evidence e = row->e;
        struct pl_decision d;

        e.failures = row->failures;
        e.n_failures = row->n;
        e.ntasks = 3;
        e.unstarted = e.unstarted ? e.unstarted : -1;
        d = pl_decide(&e, MS(row->now_ms));
        if (d.action != row->want.action || d.root != row->want.root ||
            (d.action == PL_DECIDE_WAIT && d.wait_ms != row->want.wait_ms) ||
            d.confidence != row->want.confidence || d.slurm_ends != row->want.slurm_ends ||
            d.kind != row->want.kind)
            fail_msg("%s: action %d, wait %d, root %d, kind %s, confidence %d, slurm_ends %d",
                     row->what, d.action, (int)d.wait_ms, (int)d.root,
                     d.kind ? pl_cause_name(d.kind) : "-", d.confidence, d.slurm_ends);
    }
}

static void test_answer_read(void **state)
{
    struct pl_slurm_answer a = pl_slurm_answer_read(NULL, 0, true);

    assert_true(a.silent && a.inferred && !a.job_runs);
    assert_int_equal(a.kind, PL_CAUSE_CANCELLED);
    assert_int_equal(pl_slurm_answer_read(NULL, 0, false).kind, PL_CAUSE_NONE);
    a = pl_slurm_answer_read("JobId=1 JobState=RUNNING Restarts=0\n", 0, false);
    assert_true(!a.silent && a.inferred && a.job_runs);
    assert_int_equal(a.kind, PL_CAUSE_NONE);
    a = pl_slurm_answer_read("JobId=1 JobState=TIMEOUT Restarts=0\n", 0, true);
    assert_true(!a.silent && !a.inferred && !a.job_runs);
    assert_int_equal(a.kind, PL_CAUSE_TIMEOUT);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_decide_table),
        cmocka_unit_test(test_answer_read),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
