/* SPDX-License-Identifier: MIT */
#include "runtime/plrund/hub/decide.h"
#include "common/base/parse.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

#define MS 1000000ull

static struct pl_decision simple(enum pl_decision_action action)
{
    return (struct pl_decision){.action = action, .wait_ms = -1, .root = -1};
}

static struct pl_decision
outer_cause(enum pl_cause_kind kind, enum pl_confidence confidence, bool slurm_ends)
{
    return (struct pl_decision){.action = PL_DECIDE_CAUSE,
                                .wait_ms = -1,
                                .root = -1,
                                .kind = kind,
                                .confidence = confidence,
                                .slurm_ends = slurm_ends};
}

/* True if every failure so far is an end by this signal, or with a shell's code for it. */
static bool ended_by(const struct pl_evidence *e, int signal)
{
    for (size_t i = 0; i < e->n_failures; i++) {
        const struct pl_failure *f = &e->failures[i];
        int s = f->status;

        if (f->oom || f->lost || f->runtime ||
            (WIFSIGNALED(s) ? WTERMSIG(s) : WEXITSTATUS(s) - 128) != signal)
            return false;
    }
    return true;
}

/* The same for every rank. */
static bool all_ended_by(const struct pl_evidence *e, int signal)
{
    return e->n_failures >= 2 && e->n_failures >= e->ntasks && ended_by(e, signal);
}

/* Under the plugin nobody but the ranks gets a step's signals: the rest may be about to end. */
static bool may_be_ordered(const struct pl_evidence *e)
{
    return e->plugin && e->n_failures < e->ntasks && (ended_by(e, SIGTERM) || ended_by(e, SIGINT));
}

/* Time at which the first failure has waited long enough for an earlier one. */
static uint64_t due_ns(const struct pl_evidence *e)
{
    uint64_t due = e->failures[0].arrived_ns + PL_DECIDE_WAIT_ECHO_MS * MS;

    for (size_t i = 0; i < e->n_failures && !may_be_ordered(e); i++)
        if (!pl_failure_is_cascade(&e->failures[i]))
            due = PL_MIN(due, e->failures[i].arrived_ns + PL_DECIDE_WAIT_MS * MS);
    return due;
}

static bool was_killed(const struct pl_failure *f)
{
    return f->runtime || (WIFSIGNALED(f->status) && WTERMSIG(f->status) == SIGKILL);
}

/* A rank that saves at Slurm's signal and exits with a code may be faster than whoever reports the
 * signal. One that has no handler for it ends by it. */
static bool may_have_obeyed(const struct pl_evidence *e, const struct pl_failure *first)
{
    return !e->terminated && !first->oom && !first->lost && !first->runtime &&
           !first->term_default && WIFEXITED(first->status) && !pl_failure_from_outside(first);
}

/* Slurm's SIGKILL, after a SIGTERM that nobody but the ranks got: it ends the job, and not because
 * they have ended, which srun does not know yet. */
static bool was_ended(const struct pl_evidence *e, const struct pl_failure *first)
{
    return e->plugin && was_killed(first) && !first->runtime && e->answer.held &&
           !e->answer.job_runs;
}

/* The failure is the cause unless Slurm states another one, or a signal to the step explains it. */
static struct pl_decision by_answer(const struct pl_evidence *e, struct pl_decision d)
{
    const struct pl_failure *first = &e->failures[d.root];
    const struct pl_slurm_answer *a = &e->answer;
    bool ordered = pl_failure_from_outside(first) && !was_killed(first);

    /* A job that is past its limit and runs on has not ended its rank. One that is preempted runs
     * on for its partition's GraceTime, so that its ranks save and leave. */
    if (a->kind != PL_CAUSE_NONE && !a->inferred &&
        !(may_have_obeyed(e, first) && a->job_runs && a->kind != PL_CAUSE_PREEMPTED))
        return outer_cause(a->kind, PL_CONFIDENCE_ASKED, !a->silent);
    if (a->kind == PL_CAUSE_NONE && e->plugin &&
        (all_ended_by(e, SIGTERM) || all_ended_by(e, SIGINT)))
        return outer_cause(PL_CAUSE_CANCELLED, PL_CONFIDENCE_INFERRED, false);
    if (a->kind == PL_CAUSE_NONE || pl_failure_is_crash(first))
        return d;
    /* plrun has not ended yet, so the job does not complete by itself. */
    if (!e->terminated && !ordered && !was_ended(e, first) &&
        !(may_have_obeyed(e, first) && (!e->plugin || a->held) && !a->job_runs))
        return d;
    /* Slurm would have ended a job that it cancels: where it runs on, the signal was a user's. */
    return outer_cause(a->kind,
                       e->terminated && ordered && a->job_runs ? PL_CONFIDENCE_SEEN
                                                               : PL_CONFIDENCE_INFERRED,
                       !a->silent && !a->job_runs);
}

static struct pl_decision wait_until(uint64_t due, uint64_t now_ns)
{
    struct pl_decision d = simple(PL_DECIDE_WAIT);

    d.wait_ms = (int64_t)((due - now_ns + MS - 1) / MS);
    return d;
}

/* The first failure is an exit code: Slurm is asked while an earlier one is waited for, and its
 * answer is waited for no longer, unless a signal has come as well. */
static struct pl_decision
by_exit_code(const struct pl_evidence *e, struct pl_decision d, uint64_t now_ns)
{
    uint64_t arrived = e->failures[d.root].arrived_ns, due = due_ns(e);

    if (e->question == PL_SLURM_ANSWERED && e->answer.final) {
        struct pl_decision by = by_answer(e, d);

        return by.root < 0 || e->all_left || now_ns >= due ? by : wait_until(due, now_ns);
    }
    if (e->question != PL_SLURM_ASKED)
        return simple(PL_DECIDE_ASK_SLURM);
    if (e->signalled_late)
        return simple(PL_DECIDE_WAIT);
    if (e->all_left) /* no earlier failure can come */
        due = PL_MIN(due, arrived + PL_DECIDE_WAIT_MS * MS);
    if (e->plugin)
        due = PL_MAX(due, arrived + PL_DECIDE_WAIT_SLURM_MS * MS);
    return now_ns < due ? wait_until(due, now_ns) : d;
}

static struct pl_decision with_failures(const struct pl_evidence *e, uint64_t now_ns)
{
    size_t first = pl_failure_first(e->failures, e->n_failures);
    struct pl_decision d = {.action = PL_DECIDE_CAUSE, .wait_ms = -1, .root = (int64_t)first};
    bool ordered = e->terminated || pl_failure_from_outside(&e->failures[first]);

    if (may_have_obeyed(e, &e->failures[first]))
        return by_exit_code(e, d, now_ns);
    if (ordered && e->question == PL_SLURM_ASKED)
        return simple(PL_DECIDE_WAIT);
    if (ordered && e->question == PL_SLURM_ANSWERED && e->answer.final)
        return by_answer(e, d);
    if (!e->all_left && now_ns < due_ns(e))
        return wait_until(due_ns(e), now_ns);
    return ordered ? simple(PL_DECIDE_ASK_SLURM) : d;
}

/* True if Slurm ends the job, though no rank has failed. A job that runs on has only got a signal,
 * unless it is being preempted. */
static bool slurm_ends_job(const struct pl_slurm_answer *a)
{
    if (a->silent || a->kind == PL_CAUSE_NONE)
        return false;
    if (a->asked_late && a->inferred && !a->held) /* the job may be over because its ranks are */
        return false;
    return !a->job_runs || a->kind == PL_CAUSE_PREEMPTED;
}

static struct pl_decision without_failure(const struct pl_evidence *e)
{
    bool answered = e->question == PL_SLURM_ANSWERED;

    if (answered && slurm_ends_job(&e->answer))
        return outer_cause(e->answer.kind,
                           e->answer.inferred ? PL_CONFIDENCE_INFERRED : PL_CONFIDENCE_ASKED, true);
    /* The first answer may have come too early: the ranks may save for long before they leave. */
    if (e->terminated && (!answered || (e->all_left && !e->answer.final)))
        return simple(PL_DECIDE_ASK_SLURM);
    if (!e->all_left)
        return simple(PL_DECIDE_WAIT);
    if (e->launch_failed || e->unstarted >= 0)
        return simple(PL_DECIDE_LAUNCH);
    /* The tasks got the signal of a job that is preempted or out of time before whoever reports it,
     * or they alone; they may have saved. */
    if ((e->plugin || e->obeyed) && !answered && !e->unfinished)
        return simple(PL_DECIDE_ASK_SLURM);
    return e->unfinished ? outer_cause(PL_CAUSE_UNKNOWN, PL_CONFIDENCE_INFERRED, false)
                         : simple(PL_DECIDE_END);
}

struct pl_decision pl_decide(const struct pl_evidence *e, uint64_t now_ns)
{
    if (e->has_cause)
        return e->all_left ? simple(PL_DECIDE_END) : simple(PL_DECIDE_WAIT);
    if (e->question == PL_SLURM_ASKED && (!e->n_failures || e->launch_failed))
        return simple(PL_DECIDE_WAIT);
    if (e->launch_failed && e->n_failures &&
        !e->terminated) /* ranks that were refused end badly; that is no cause of their own */
        return simple(e->all_left ? PL_DECIDE_LAUNCH : PL_DECIDE_WAIT);
    return e->n_failures ? with_failures(e, now_ns) : without_failure(e);
}

struct pl_slurm_answer pl_slurm_answer_read(const char *output, unsigned restart, bool terminated)
{
    struct pl_slurm_answer a = {.inferred = true, .silent = !output};
    char *state;

    if (!output) {
        a.kind = terminated ? PL_CAUSE_CANCELLED : PL_CAUSE_NONE;
        return a;
    }
    a.kind = pl_cause_from_slurm(output, restart, terminated, &a.inferred);
    state = pl_parse_scontrol_job(output, "JobState");
    a.job_runs = state && strcmp(state, "RUNNING") == 0;
    free(state);
    return a;
}

int pl_decide_outer_code(enum pl_cause_kind kind,
                         const struct pl_failure *failures,
                         size_t n,
                         int terminated)
{
    int code = 0;

    if (kind != PL_CAUSE_CANCELLED && kind != PL_CAUSE_TIMEOUT && kind != PL_CAUSE_PREEMPTED)
        return 0;
    for (size_t i = 0; i < n; i++) {
        int s = failures[i].status;

        if (!failures[i].lost && !failures[i].runtime)
            code = PL_MAX(code, WIFSIGNALED(s) ? 128 + WTERMSIG(s) : WEXITSTATUS(s));
    }
    return code == 0 && terminated ? 128 + terminated : code;
}
