/* SPDX-License-Identifier: MIT */
#include "common/run/cause.h"
#include "common/base/parse.h"

#include <signal.h>
#include <string.h>
#include <sys/wait.h>

/* ---- kinds ---- */

static const char *const kind_names[] = {
    [PL_CAUSE_EXIT] = "exit",
    [PL_CAUSE_SIGNAL] = "signal",
    [PL_CAUSE_OOM] = "oom",
    [PL_CAUSE_NODE] = "node",
    [PL_CAUSE_HANG] = "hang",
    [PL_CAUSE_RUNTIME] = "runtime",
    [PL_CAUSE_LAUNCH] = "launch",
    [PL_CAUSE_SETUP] = "setup",
    [PL_CAUSE_TIMEOUT] = "timeout",
    [PL_CAUSE_PREEMPTED] = "preempted",
    [PL_CAUSE_CANCELLED] = "cancelled",
    [PL_CAUSE_UNKNOWN] = "unknown",
};

const char *pl_cause_name(enum pl_cause_kind kind)
{
    return kind_names[kind];
}

enum pl_cause_kind pl_cause_parse(const char *name)
{
    for (unsigned i = PL_CAUSE_NONE + 1; name && i < PL_CAUSE_UNKNOWN; i++)
        if (strcmp(name, kind_names[i]) == 0)
            return i;
    return name ? PL_CAUSE_UNKNOWN : PL_CAUSE_NONE;
}

const char *pl_confidence_name(enum pl_confidence confidence)
{
    static const char *const names[] = {
        [PL_CONFIDENCE_SEEN] = "seen",
        [PL_CONFIDENCE_ASKED] = "asked",
        [PL_CONFIDENCE_INFERRED] = "inferred",
    };

    return names[confidence];
}

enum pl_trial_state pl_cause_state(enum pl_cause_kind kind)
{
    switch (kind) {
    case PL_CAUSE_NONE:
        return PL_TRIAL_DONE;
    case PL_CAUSE_TIMEOUT:
        return PL_TRIAL_TIMED_OUT;
    case PL_CAUSE_PREEMPTED:
        return PL_TRIAL_PREEMPTED;
    case PL_CAUSE_CANCELLED:
        return PL_TRIAL_CANCELLED;
    case PL_CAUSE_NODE:
        return PL_TRIAL_NODE_FAILED;
    case PL_CAUSE_EXIT:
    case PL_CAUSE_SIGNAL:
    case PL_CAUSE_OOM:
    case PL_CAUSE_HANG:
    case PL_CAUSE_RUNTIME:
    case PL_CAUSE_LAUNCH:
    case PL_CAUSE_SETUP:
    case PL_CAUSE_UNKNOWN:
        break;
    }
    return PL_TRIAL_FAILED;
}

const struct pl_job_state *pl_job_state_find(const char *name)
{
    static const struct pl_job_state table[] = {
        {"PENDING", PL_TRIAL_WAITING, PL_CAUSE_NONE},
        {"RUNNING", PL_TRIAL_RUNNING, PL_CAUSE_NONE},
        {"SUSPENDED", PL_TRIAL_RUNNING, PL_CAUSE_NONE},
        {"COMPLETED", PL_TRIAL_DONE, PL_CAUSE_NONE},
        {"CANCELLED", PL_TRIAL_CANCELLED, PL_CAUSE_CANCELLED},
        {"TIMEOUT", PL_TRIAL_TIMED_OUT, PL_CAUSE_TIMEOUT},
        {"DEADLINE", PL_TRIAL_TIMED_OUT, PL_CAUSE_TIMEOUT},
        {"NODE_FAIL", PL_TRIAL_NODE_FAILED, PL_CAUSE_NODE},
        {"BOOT_FAIL", PL_TRIAL_NODE_FAILED, PL_CAUSE_NODE},
        {"PREEMPTED", PL_TRIAL_PREEMPTED, PL_CAUSE_PREEMPTED},
        {"OUT_OF_MEMORY", PL_TRIAL_FAILED, PL_CAUSE_OOM},
        {"FAILED", PL_TRIAL_FAILED, PL_CAUSE_NONE},
        {"REVOKED", PL_TRIAL_FAILED, PL_CAUSE_NONE},
        {"UNKNOWN", PL_TRIAL_RUNNING, PL_CAUSE_NONE}, /* the last: those of newer releases, too */
    };
    size_t i = 0;

    while (i + 1 < PL_COUNT(table) && strcmp(name, table[i].name) != 0)
        i++;
    return &table[i];
}

/* ---- failures ---- */

enum pl_cause_kind pl_failure_kind(const struct pl_failure *f)
{
    if (f->runtime)
        return PL_CAUSE_RUNTIME;
    if (f->lost)
        return PL_CAUSE_NODE;
    if (f->oom)
        return PL_CAUSE_OOM;
    return WIFSIGNALED(f->status) ? PL_CAUSE_SIGNAL : PL_CAUSE_EXIT;
}

enum pl_confidence pl_failure_confidence(const struct pl_failure *f)
{
    return f->lost ? PL_CONFIDENCE_INFERRED : PL_CONFIDENCE_SEEN;
}

bool pl_failure_is_crash(const struct pl_failure *f)
{
    static const int crashes[] = {SIGSEGV, SIGABRT, SIGBUS, SIGFPE, SIGILL, SIGSYS, SIGTRAP};

    for (size_t i = 0; !f->lost && WIFSIGNALED(f->status) && i < PL_COUNT(crashes); i++)
        if (WTERMSIG(f->status) == crashes[i])
            return true;
    return false;
}

bool pl_failure_is_cascade(const struct pl_failure *f)
{
    static const char *const words[] = {
        "NCCL error",
        "NCCL WARN",
        "ncclSystemError",
        "ncclRemoteError",
        "ncclInternalError",
        "ProcessGroupNCCL",
        "Watchdog caught collective",
        "Connection reset by peer",
        "Connection closed by peer",
        "Broken pipe",
        "failed to recv, got 0 bytes",
        "lost the connection to rank",
        "lost rank",
    };

    for (size_t i = 0; f->text && !f->gpu && i < PL_COUNT(words); i++)
        if (strcasestr(f->text, words[i]))
            return true;
    return false;
}

/* 0: may be the cause. Higher: only if all others are as weak. */
static int weakness(const struct pl_failure *f)
{
    return pl_failure_is_cascade(f) ? 2 : f->lost ? 1 : 0;
}

size_t pl_failure_first(const struct pl_failure *f, size_t n)
{
    size_t best = 0;

    for (size_t i = 1; i < n; i++) {
        int a = weakness(&f[i]), b = weakness(&f[best]);

        if (a < b || (a == b && f[i].at_ns < f[best].at_ns))
            best = i;
    }
    return best;
}

bool pl_failure_tied(const struct pl_failure *a, const struct pl_failure *b)
{
    int64_t apart = a->at_ns > b->at_ns ? a->at_ns - b->at_ns : b->at_ns - a->at_ns;

    return a->node_id != b->node_id && weakness(a) == weakness(b) &&
           apart < a->uncertainty_ns + b->uncertainty_ns;
}

bool pl_failure_from_outside(const struct pl_failure *f)
{
    int s = f->status;

    if (f->runtime)
        return true;
    if (f->oom || f->lost)
        return false;
    if (WIFSIGNALED(s))
        return WTERMSIG(s) == SIGTERM || WTERMSIG(s) == SIGKILL || WTERMSIG(s) == SIGINT;
    return WEXITSTATUS(s) == 128 + SIGTERM || WEXITSTATUS(s) == 128 + SIGINT;
}

/* ---- Slurm's record ---- */

static bool is_time(const char *s)
{
    return s && *s && strcmp(s, "None") != 0 && strcmp(s, "Unknown") != 0;
}

/* Slurm ends a job for its time with such a reason: also at the end of a reservation, or of what a
 * QOS grants, long before TimeLimit. A job that is past that limit may run on (OverTimeLimit), and
 * somebody may cancel it then. The limit counts only where there is no reason. */
static bool is_out_of_time(const char *output)
{
    static const char *const reasons[] = {"TimeLimit", "InactiveLimit", "DeadLine"};
    _cleanup_free_ char *reason = pl_parse_scontrol_job(output, "Reason");
    _cleanup_free_ char *ran = pl_parse_scontrol_job(output, "RunTime");
    _cleanup_free_ char *limit = pl_parse_scontrol_job(output, "TimeLimit");
    uint64_t ran_s, limit_s;

    for (size_t i = 0; reason && i < PL_COUNT(reasons); i++)
        if (strcmp(reason, reasons[i]) == 0)
            return true;
    return !reason && ran && limit && pl_parse_slurm_time(ran, &ran_s, NULL) == 0 &&
           pl_parse_slurm_time(limit, &limit_s, NULL) == 0 && ran_s >= limit_s;
}

enum pl_cause_kind
pl_cause_from_slurm(const char *output, unsigned restart, bool terminated, bool *ret_inferred)
{
    _cleanup_free_ char *state = pl_parse_scontrol_job(output, "JobState");
    _cleanup_free_ char *restarts = pl_parse_scontrol_job(output, "Restarts");
    _cleanup_free_ char *preempt = pl_parse_scontrol_job(output, "PreemptTime");
    enum pl_cause_kind kind = state ? pl_job_state_find(state)->cause : PL_CAUSE_NONE;
    int64_t n;

    *ret_inferred = false;
    if (is_time(preempt))
        return PL_CAUSE_PREEMPTED;
    if (kind != PL_CAUSE_NONE && kind != PL_CAUSE_CANCELLED)
        return kind;
    if (restarts && pl_parse_int(restarts, 0, INT32_MAX, &n, NULL) == 0 && n > (int64_t)restart)
        return PL_CAUSE_PREEMPTED; /* requeued: the next attempt follows */
    if (is_out_of_time(output))
        return PL_CAUSE_TIMEOUT;
    if (kind != PL_CAUSE_NONE)
        return kind;
    *ret_inferred = true;
    /* A job that has FAILED or COMPLETED did so because its ranks had ended. */
    if (terminated || (state && strcmp(state, "COMPLETING") == 0))
        return PL_CAUSE_CANCELLED;
    return PL_CAUSE_NONE;
}
