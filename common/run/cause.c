/* SPDX-License-Identifier: MIT */
#include "common/run/cause.h"
#include "common/base/parse.h"

#include <signal.h>
#include <string.h>
#include <sys/wait.h>

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
        "lost the connection to rank",
        "lost rank",
    };

    for (size_t i = 0; f->text && !f->gpu && i < PL_COUNT(words); i++)
        if (strcasestr(f->text, words[i]))
            return true;
    return false;
}

/* 0 = may be the cause, higher = only for want of a better one. */
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

    if (f->oom || f->lost)
        return false;
    if (WIFSIGNALED(s))
        return WTERMSIG(s) == SIGTERM || WTERMSIG(s) == SIGKILL || WTERMSIG(s) == SIGINT;
    return WEXITSTATUS(s) == 128 + SIGTERM;
}

const char *
pl_cause_from_slurm(const char *output, unsigned restart, bool terminated, bool *ret_inferred)
{
    static const char *const states[][2] = {
        {"PREEMPTED", "preempted"}, {"TIMEOUT", "timeout"},   {"DEADLINE", "timeout"},
        {"NODE_FAIL", "node"},      {"OUT_OF_MEMORY", "oom"},
    };
    _cleanup_free_ char *state = pl_parse_scontrol_field(output, "JobState");
    _cleanup_free_ char *restarts = pl_parse_scontrol_field(output, "Restarts");
    _cleanup_free_ char *preempt = pl_parse_scontrol_field(output, "PreemptTime");
    _cleanup_free_ char *ran = pl_parse_scontrol_field(output, "RunTime");
    _cleanup_free_ char *limit = pl_parse_scontrol_field(output, "TimeLimit");
    uint64_t ran_s = 0, limit_s = UINT64_MAX;
    int64_t n;

    *ret_inferred = false;
    if (preempt && *preempt && strcmp(preempt, "None") != 0 && strcmp(preempt, "Unknown") != 0)
        return "preempted";
    for (size_t i = 0; state && i < PL_COUNT(states); i++)
        if (strcmp(state, states[i][0]) == 0)
            return states[i][1];
    if (restarts && pl_parse_int(restarts, 0, INT32_MAX, &n, NULL) == 0 && n > (int64_t)restart)
        return "preempted"; /* requeued: the next attempt follows */
    if (ran && limit && pl_parse_slurm_time(ran, &ran_s, NULL) == 0 &&
        pl_parse_slurm_time(limit, &limit_s, NULL) == 0 && ran_s >= limit_s)
        return "timeout";
    if (state && strcmp(state, "CANCELLED") == 0)
        return "cancelled";
    *ret_inferred = true;
    if (terminated || (state && strcmp(state, "RUNNING") != 0))
        return "cancelled";
    return NULL;
}

enum pl_trial_state pl_cause_state(const char *kind)
{
    if (!kind)
        return PL_TRIAL_DONE;
    if (strcmp(kind, "timeout") == 0)
        return PL_TRIAL_TIMED_OUT;
    if (strcmp(kind, "preempted") == 0)
        return PL_TRIAL_PREEMPTED;
    if (strcmp(kind, "cancelled") == 0)
        return PL_TRIAL_CANCELLED;
    if (strcmp(kind, "node") == 0)
        return PL_TRIAL_NODE_FAILED;
    return PL_TRIAL_FAILED;
}
