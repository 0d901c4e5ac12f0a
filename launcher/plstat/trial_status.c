/* SPDX-License-Identifier: MIT */
#include "common/base/fs.h"
#include "common/proto/json.h"
#include "common/run/cause.h"
#include "common/run/rank_state.h"
#include "common/run/run_state.h"
#include "launcher/plstat/status_private.h"

#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#define SAME_END_S 60.0 /* between a trial's end and its job's */

void pl_trial_status_finish(struct pl_trial_status *ts)
{
    json_decref(ts->params);
    json_decref(ts->result);
    json_decref(ts->doc);
    json_decref(ts->cause);
    json_decref(ts->others);
    json_decref(ts->node_reasons);
    json_decref(ts->live);
    json_decref(ts->earlier);
    if (ts->query)
        json_decref(ts->query->state);
    free(ts->query);
}

bool pl_trial_state_is_failure(enum pl_trial_state state)
{
    return state != PL_TRIAL_WAITING && state != PL_TRIAL_RUNNING && state != PL_TRIAL_DONE &&
           state != PL_TRIAL_PRUNED;
}

static enum pl_cause_kind cause_kind(const json_t *cause)
{
    return pl_cause_parse(pl_json_string(cause, "kind"));
}

/* True for SIGKILL: the runtime does not know who sent it, and Slurm may. */
static bool killed(const json_t *cause)
{
    return cause_kind(cause) == PL_CAUSE_SIGNAL && pl_trial_int(cause, "signal", 0) == SIGKILL;
}

bool pl_trial_status_needs_slurm(const struct pl_trial_status *ts)
{
    const json_t *cause;

    if (!ts->submitted)
        return false;
    if (ts->query && ts->query->state)
        return false;
    if (!ts->result)
        return true;
    cause = json_object_get(ts->result, "cause");
    return !pl_trial_state_final(ts->state) || ts->undecided ||
           json_is_true(json_object_get(cause, "inferred")) || killed(cause);
}

/* ---- state and cause ---- */

static json_t *kind_json(enum pl_cause_kind kind)
{
    return json_string(pl_cause_name(kind));
}

/* True if Slurm's record explains the SIGKILL: its end of the job is the trial's, and not that of
 * an allocation in which the trial was one step of several. */
static bool explains_kill(const struct pl_trial_status *ts, const struct pl_job_state *job)
{
    double apart = ts->result ? (double)ts->slurm->ended - pl_trial_result_end(ts->result) : 0;

    return job->cause == PL_CAUSE_OOM || fabs(apart) < SAME_END_S;
}

/* Slurm's final record replaces what the runtime could only infer. */
static void correct_cause(struct pl_trial_status *ts)
{
    const struct pl_job_state *job = ts->slurm ? pl_job_state_find(ts->slurm->state) : NULL;
    json_t *fixed;

    if (!job || job->cause == PL_CAUSE_NONE || ts->state == PL_TRIAL_DONE)
        return;
    if (ts->state == PL_TRIAL_PREEMPTED && job->trial == PL_TRIAL_CANCELLED) {
        json_decref(PL_TAKE(ts->cause)); /* cancelled while it waited for the next attempt */
    } else if (ts->cause && !json_is_true(json_object_get(ts->cause, "inferred"))) {
        if (!killed(ts->cause) || !explains_kill(ts, job))
            return;
    }
    fixed = ts->cause ? json_copy(ts->cause) : json_object();
    if (!fixed)
        return;
    json_object_set_new(fixed, "kind", kind_json(job->cause));
    json_object_del(fixed, "inferred");
    json_object_set_new(fixed, "confidence", json_string(pl_confidence_name(PL_CONFIDENCE_ASKED)));
    json_decref(ts->cause);
    ts->cause = fixed;
    ts->state = job->trial;
}

/* No source has the end. The job ended before the trial started; or the node failed, Slurm sent
 * SIGKILL to a job that was suspended, or the like: nothing tells which. */
static void set_lost(struct pl_trial_status *ts, const char *text)
{
    enum pl_cause_kind kind = ts->unreadable || ts->claimed ? PL_CAUSE_UNKNOWN : PL_CAUSE_LAUNCH;

    ts->state = PL_TRIAL_LOST;
    if (!ts->cause)
        ts->cause = json_pack("{s:o, s:s, s:s, s:b}", "kind", kind_json(kind), "text", text,
                              "confidence", "inferred", "inferred", 1);
}

/* True if Slurm's answer has records of the array, by which the task has not begun: Slurm starts
 * tasks in their order, and one record has those that wait. A task that began has a record of its
 * own, which Slurm forgets some minutes after the task's end, while others of the array still run.
 */
static bool never_began(const struct pl_slurm_jobs *jobs, int64_t array, int64_t task)
{
    bool known = false, others_began = false;

    for (size_t i = 0; i < jobs->n_jobs; i++) {
        const struct pl_slurm_job *job = &jobs->jobs[i];

        if (job->past || (job->array != array && job->id != array))
            continue;
        known = true;
        if (job->tasks && strtoll(job->tasks, NULL, 10) < task)
            return true;
        others_began |= !job->tasks && strcmp(job->state, "PENDING") != 0 &&
                        strcmp(job->state, "CANCELLED") != 0;
    }
    return known && !others_began;
}

/* Slurm keeps no record, in its accounting neither, of a task that was taken out of a pending array
 * by itself (scancel ARRAY_7). */
static void set_missing(struct pl_trial_status *ts, const struct pl_slurm_jobs *jobs)
{
    if (ts->claimed || ts->unreadable) {
        set_lost(ts, ts->unreadable
                         ? "Slurm does not know the job any more, and its result cannot be read"
                         : "Slurm does not know the job any more, and it wrote no result");
        return;
    }
    if (ts->to_requeue) {
        set_lost(ts,
                 "it was to start again, and Slurm has no record of its job any more: Slurm was "
                 "not asked for that, or the job was cancelled while it waited, or ended before "
                 "its attempt began");
        return;
    }
    if (!never_began(jobs, ts->array, ts->task)) {
        set_lost(ts, "it has no attempt, and Slurm has no record of its job any more: it was "
                     "cancelled while it waited, or ended before its attempt began");
        return;
    }
    ts->state = PL_TRIAL_CANCELLED;
    if (!ts->cause)
        ts->cause = json_pack("{s:o, s:s, s:s, s:b}", "kind", kind_json(PL_CAUSE_CANCELLED), "text",
                              "it has no attempt, and Slurm has records of other tasks of its "
                              "array only: it was probably cancelled while it waited",
                              "confidence", "inferred", "inferred", 1);
}

/* True if a rank of the document has begun. */
static bool any_started(const json_t *doc)
{
    json_t *rank;
    size_t i;

    json_array_foreach (json_object_get(doc, "ranks"), i, rank)
        if (pl_rank_state_parse(pl_json_string(rank, "state")) != PL_RANK_STARTING)
            return true;
    return false;
}

/* The cause of a failed job whose hub recorded no end. */
static json_t *cause_without_end(const struct pl_trial_status *ts)
{
    const char *hub = pl_json_string(json_array_get(json_object_get(ts->doc, "nodes"), 0), "node");
    json_t *cause;

    if (ts->unreadable)
        return json_pack("{s:o, s:s}", "kind", kind_json(PL_CAUSE_UNKNOWN), "text",
                         "its result cannot be read");
    if (!ts->doc) /* else the script's trap would have written a result */
        return json_pack(
            "{s:o, s:s}", "kind", kind_json(PL_CAUSE_SETUP), "text",
            ts->claimed ? "No rank has reported, and the job script has left no result: a "
                          "set-up\ncommand has replaced the shell (exec) or its trap of EXIT, the "
                          "shell was\nkilled, or the run folder took no file. The job's output may "
                          "tell more."
                        : "The job script ended before it could claim the trial. The job's "
                          "output may\ntell more.");
    if (!any_started(ts->doc) &&
        (ts->claim_s > 0 || json_array_size(json_object_get(ts->doc, "ranks")) == 0))
        return json_pack("{s:o, s:s}", "kind", kind_json(PL_CAUSE_UNKNOWN), "text",
                         ts->claim_s > 0
                             ? "No rank's start is recorded, and the job script has left no "
                               "result: the run\nfolder took no file, or the shell was killed. The "
                               "job's output may tell more."
                             : "The step's log is empty: the run folder took no file. The step's "
                               "output may\ntell more.");
    if (!any_started(ts->doc))
        return json_pack("{s:o}", "kind",
                         kind_json(ts->claimed ? PL_CAUSE_LAUNCH : PL_CAUSE_SETUP));
    if (ts->slurm->signal == SIGKILL)
        return json_pack("{s:o, s:s}", "kind", kind_json(PL_CAUSE_SIGNAL), "signal_name",
                         "SIGKILL");
    cause = json_pack("{s:o, s:s}", "kind", kind_json(PL_CAUSE_RUNTIME), "process", "plrund");
    if (cause && hub)
        json_object_set_new(cause, "node", json_string(hub));
    return cause;
}

/* The cause if slurmstepd could not open the output file, before the job's script started. */
static json_t *output_cause(const struct pl_slurm_job *job)
{
    return json_pack("{s:o, s:s*, s:i, s:s}", "kind", kind_json(PL_CAUSE_LAUNCH), "node",
                     job->nodes, "signal", (int)job->signal, "text",
                     "the node does not see the folder of the output file (the run folder, without "
                     "--output), or may not write there: choose one that all nodes share");
}

/* Sets the state from Slurm's record, the only source. */
static void resolve_ended(struct pl_trial_status *ts)
{
    const struct pl_slurm_job *job = ts->slurm;
    const struct pl_job_state *state = pl_job_state_find(job->state);

    ts->source = ts->doc ? ts->source : PL_SOURCE_SLURM;
    if (state->cause != PL_CAUSE_NONE) {
        ts->state = state->trial;
        correct_cause(ts);
        return;
    }
    if (strcmp(job->state, "FAILED") != 0) { /* COMPLETED without a result */
        set_lost(ts, ts->unreadable
                         ? "Slurm reports that the job completed, but its result cannot be read"
                         : "Slurm reports that the job completed, but it wrote no result");
        return;
    }
    ts->state = PL_TRIAL_FAILED;
    if (ts->cause)
        return;
    if (job->signal == PL_SLURM_SIGNAL_OUTPUT) {
        ts->cause = output_cause(job);
        pl_run_state_set_confidence(ts->cause, PL_CONFIDENCE_ASKED);
        return;
    }
    ts->cause = cause_without_end(ts);
    pl_run_state_set_confidence(ts->cause, PL_CONFIDENCE_INFERRED);
    if (ts->cause && job->signal >= 0)
        json_object_set_new(ts->cause, "signal", json_integer(job->signal));
    else if (ts->cause && job->exit >= 0)
        json_object_set_new(ts->cause, "exit", json_integer(job->exit));
}

static enum pl_trial_state doc_state(const json_t *doc, enum pl_trial_state otherwise)
{
    const char *s = pl_json_string(doc, "state");
    enum pl_trial_state state;

    return s && pl_trial_state_parse(s, &state) == 0 ? state : otherwise;
}

/* True if the task is pending in an answer of Slurm that is later than the folder's last entry. */
static bool queued(const struct pl_trial_status *ts, const struct pl_slurm_jobs *jobs)
{
    double known_s = ts->result ? pl_trial_result_end(ts->result) : ts->claim_s;

    return ts->slurm && strcmp(ts->slurm->state, "PENDING") == 0 && jobs->time_s > known_s;
}

/* True if Slurm's record of the end is not that of a start before the last claim: by its count of
 * restarts, or else by clocks, of which the node's may be wrong. */
static bool has_ended(const struct pl_trial_status *ts, const struct pl_slurm_jobs *jobs)
{
    return ts->slurm && pl_slurm_state_final(ts->slurm->state) &&
           ((ts->claimed && ts->slurm->restarts >= ts->restart) ||
            PL_MAX(jobs->time_s, (double)ts->slurm->ended) > ts->claim_s);
}

static void
resolve_unfinished(struct pl_trial_status *ts, const struct pl_slurm_jobs *jobs, double submitted_s)
{
    bool started = ts->claimed || ts->live;

    if (ts->live && !ts->query) { /* the hub has ended and recorded the state */
        ts->state = doc_state(ts->live, PL_TRIAL_RUNNING);
        if (ts->state != PL_TRIAL_RUNNING && ts->state != PL_TRIAL_WAITING) {
            correct_cause(ts);
            return;
        }
    }
    if (ts->cancelled && !started && !ts->slurm) {
        ts->state = PL_TRIAL_CANCELLED;
        if (!ts->cause)
            ts->cause = json_pack("{s:o}", "kind", kind_json(PL_CAUSE_CANCELLED));
        return;
    }
    ts->state = started ? PL_TRIAL_RUNNING : PL_TRIAL_WAITING;
    if (!jobs || !ts->submitted)
        return;
    if (has_ended(ts, jobs))
        resolve_ended(ts);
    else if (ts->slurm && (queued(ts, jobs) || strcmp(ts->slurm->state, "PENDING") != 0))
        ts->state = queued(ts, jobs) ? PL_TRIAL_WAITING : PL_TRIAL_RUNNING;
    else if (!ts->slurm && jobs->time_s > PL_MAX(submitted_s, ts->claim_s))
        set_missing(ts, jobs);
}

/* For a trial that has ended: ranks without a recorded end are lost. If the end could not be
 * written (a full disk), they are done as the trial is, or nothing is known of them. */
static void end_ranks(struct pl_trial_status *ts)
{
    bool unwritten = json_object_get(ts->result, "unwritten") != NULL;
    enum pl_rank_state state = unwritten ? PL_RANK_DONE : PL_RANK_LOST;
    json_t *rank;
    size_t i;

    json_array_foreach (json_object_get(ts->doc, "ranks"), i, rank) {
        if (!pl_rank_state_open(pl_rank_state_parse(pl_json_string(rank, "state"))))
            continue;
        if (unwritten && ts->state != PL_TRIAL_DONE)
            json_object_del(rank, "state");
        else
            json_object_set_new(rank, "state", json_string(pl_rank_state_name(state)));
    }
}

/* The state of a trial with a result. */
static void resolve_result(struct pl_trial_status *ts, const struct pl_slurm_jobs *jobs)
{
    if (ts->undecided && ts->slurm && !pl_slurm_state_final(ts->slurm->state))
        ts->state = PL_TRIAL_RUNNING; /* its job has not ended yet */
    else if (ts->state != PL_TRIAL_DONE && jobs && queued(ts, jobs))
        ts->state = PL_TRIAL_WAITING;
    else if (ts->slurm && pl_slurm_state_final(ts->slurm->state))
        correct_cause(ts);
}

/* True if Slurm has requeued the job since it claimed the trial. */
static bool has_restarted(const struct pl_trial_status *ts)
{
    return ts->slurm && ts->claimed && ts->slurm->restarts > ts->restart &&
           !(ts->query && ts->query->state) && ts->state != PL_TRIAL_DONE &&
           ts->state != PL_TRIAL_PRUNED;
}

/* True if the trial was to start again, but Slurm's record of the end counts no restart since:
 * plrun was killed after it had written so, before it could ask Slurm. A job that is cancelled may
 * have waited. */
static bool was_not_requeued(const struct pl_trial_status *ts)
{
    return ts->to_requeue && ts->earlier && ts->slurm && ts->slurm->counted &&
           ts->slurm->restarts <= ts->restart && pl_slurm_state_final(ts->slurm->state) &&
           !ts->slurm->completing && strcmp(ts->slurm->state, "CANCELLED") != 0;
}

/* Undoes pl_trial_status_set_aside(). */
static void take_back(struct pl_trial_status *ts)
{
    const char *name = pl_json_string(ts->earlier, "state");

    if (!name || pl_trial_state_parse(name, &ts->state) < 0)
        return;
    ts->result = PL_TAKE(ts->earlier);
    ts->unstarted = false;
    ts->claimed = true;
    json_object_del(ts->result, "requeued");
    json_object_set_new(ts->result, "not_requeued",
                        json_string("its job ended before Slurm was asked to start it again"));
}

void pl_trial_status_resolve(struct pl_trial_status *ts,
                             const struct pl_slurm_jobs *jobs,
                             double submitted_s)
{
    json_t *state;

    ts->slurm = ts->array > 0 ? pl_slurm_jobs_find(jobs, ts->array, ts->task) : NULL;
    if (ts->slurm && ts->claimed && pl_slurm_job_is_rest(ts->slurm))
        ts->slurm = NULL; /* the record of tasks that never started */
    if (was_not_requeued(ts))
        take_back(ts);
    if (has_restarted(ts)) /* the answer is later than all files, whatever their clocks say */
        pl_trial_status_set_aside(ts, 0);
    state = ts->query ? ts->query->state : NULL;
    if (ts->slurm && !ts->slurm->array && ts->task >= 0)
        pl_trial_status_set_job(ts, ts->slurm->id, -1);
    if (state) {
        json_decref(ts->doc);
        ts->doc = json_incref(state);
        ts->source = PL_SOURCE_HUB;
    } else if (!ts->result && ts->live) {
        json_decref(ts->doc);
        ts->doc = json_incref(ts->live);
        ts->source = PL_SOURCE_STATUS;
        ts->age_s = PL_MAX(0, pl_wall_s() - ts->written_s);
    }
    if (!ts->cause) {
        const json_t *from = ts->result ? ts->result : ts->doc;
        json_t *cause = json_object_get(from, "cause");

        ts->cause = json_is_object(cause) ? json_incref(cause) : NULL;
        ts->others = json_incref(json_object_get(from, "others"));
    }
    if (state) {
        ts->state = doc_state(state, PL_TRIAL_RUNNING);
        if (ts->state == PL_TRIAL_WAITING) /* the hub runs and waits for nodes */
            ts->state = PL_TRIAL_RUNNING;
    } else if (ts->result) {
        resolve_result(ts, jobs);
    } else {
        resolve_unfinished(ts, jobs, submitted_s);
    }
    if (ts->state == PL_TRIAL_DONE || ts->state == PL_TRIAL_WAITING ||
        (ts->state == PL_TRIAL_RUNNING && !ts->claimed)) {
        json_decref(PL_TAKE(ts->cause));
        json_decref(PL_TAKE(ts->others));
    }
    if (ts->source != PL_SOURCE_HUB && ts->state != PL_TRIAL_RUNNING)
        end_ranks(ts);
}

void pl_trial_status_apply_local(struct pl_trial_status *ts, bool alive)
{
    bool open = ts->state == PL_TRIAL_WAITING || ts->state == PL_TRIAL_RUNNING;

    if (!ts->submitted || ts->state == PL_TRIAL_DONE)
        return;
    if (open && !alive && ts->cancelled)
        ts->state = PL_TRIAL_CANCELLED; /* so early that nothing was written */
    else if (open && !alive)
        set_lost(ts, "the local executor has ended, and the trial wrote no result");
}

/* ---- values ---- */

double pl_trial_status_until(const struct pl_trial_status *ts)
{
    if (ts->ended_s > 0)
        return ts->ended_s;
    /* Its start and its newest stamp are by the hub's clock, and this host's may be another. */
    return ts->live && ts->state == PL_TRIAL_RUNNING ? PL_MAX(ts->live_s, ts->started_s)
                                                     : pl_wall_s();
}

bool pl_trial_status_has_other_objective(const struct pl_trial_status *ts, const char *objective)
{
    const char *own = pl_json_string(ts->result, "objective_name");

    return own && objective && strcmp(own, objective) != 0;
}

void pl_trial_status_values(struct pl_trial_status *ts, const char *objective)
{
    const json_t *from = ts->result, *value = NULL, *rank;
    double v;
    size_t i;

    if (from) {
        ts->step = pl_trial_int(from, "step", -1);
        if (!pl_trial_status_has_other_objective(ts, objective))
            value = json_object_get(from, "objective");
        if (!value && objective)
            value = json_object_get(json_object_get(from, "metrics"), objective);
    } else {
        from = ts->doc;
        json_array_foreach (json_object_get(ts->doc, "ranks"), i, rank)
            ts->step = PL_MAX(ts->step, pl_trial_int(rank, "step", -1));
        if (objective)
            value = pl_run_state_metric(ts->doc, objective);
    }
    if (value && pl_run_state_number((json_t *)value, &v) == 0)
        ts->objective = v;
    ts->started_s = pl_trial_number(from, "started", ts->claimed ? ts->claim_s : 0);
    ts->ended_s = ts->result ? pl_trial_result_end(ts->result) : pl_trial_number(from, "ended", 0);
    if (ts->slurm && ts->started_s <= 0 && strcmp(ts->slurm->state, "PENDING") != 0)
        ts->started_s = (double)ts->slurm->started;
    if (ts->slurm && ts->ended_s <= 0 && pl_slurm_state_final(ts->slurm->state))
        ts->ended_s = (double)ts->slurm->ended;
}
