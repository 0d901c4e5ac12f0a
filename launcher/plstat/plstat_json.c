/* SPDX-License-Identifier: MIT */
#include "launcher/plstat/plstat_json.h"
#include "common/base/fs.h"
#include "common/proto/json.h"
#include "common/run/run_end.h"
#include "common/run/run_state.h"
#include "launcher/plstat/gpus.h"

#include <math.h>
#include <string.h>

/* Sets a key; a failure clears *ok, which the caller checks once per document. Takes the reference;
 * NULL is a failure. */
static void put(json_t *o, const char *key, json_t *value, bool *ok)
{
    if (json_object_set_new(o, key, value) < 0)
        *ok = false;
}

static void put_text(json_t *o, const char *key, const char *value, bool *ok)
{
    if (value && *value)
        put(o, key, json_string(value), ok);
}

/* Copies a key if it exists. */
static void copy(json_t *to, const char *key, const json_t *from, bool *ok)
{
    json_t *value = json_object_get(from, key);

    if (value)
        put(to, key, json_incref(value), ok);
}

static void copy_all(json_t *to, const char *const *keys, const json_t *from, bool *ok)
{
    for (; *keys; keys++)
        copy(to, *keys, from, ok);
}

static json_t *finish_object(json_t *o, bool ok)
{
    if (ok)
        return o;
    json_decref(o);
    return NULL;
}

int pl_plstat_json_finish(json_t **doc, const char *kind, const struct pl_notes *notes)
{
    json_t *o = json_object();
    bool ok = o != NULL;

    put(o, "schema", json_string(PL_PLSTAT_SCHEMA), &ok);
    put(o, "kind", json_string(kind), &ok);
    put(o, "time", json_real(pl_wall_s()), &ok);
    ok &= json_object_update(o, *doc) == 0;
    put(o, "partial", json_boolean(notes->partial), &ok);
    put(o, "notes", notes->list ? json_incref(notes->list) : json_array(), &ok);
    json_decref(*doc);
    *doc = finish_object(o, ok);
    return *doc ? 0 : -ENOMEM;
}

/* ---- trials ---- */

static json_t *cause_json(const struct pl_trial_status *ts)
{
    json_t *o = ts->cause ? json_copy(ts->cause) : NULL;

    if (o && json_is_array(ts->others) && !json_object_get(o, "others"))
        json_object_set(o, "others", ts->others);
    return o;
}

/* The attempt before a start that has no attempt yet. */
static void put_earlier(json_t *o, const json_t *result, bool *ok)
{
    static const char *const keys[] = {"state", "attempt", "job", "cause", NULL};
    json_t *earlier = json_object();

    *ok &= earlier != NULL;
    copy_all(earlier, keys, result, ok);
    if (json_object_get(result, "exit_code"))
        put(earlier, "exit", json_incref(json_object_get(result, "exit_code")), ok);
    put(o, "earlier", earlier, ok);
}

static void put_trial(json_t *o, const struct pl_trial_status *ts, bool *ok)
{
    static const char *const from_result[] = {
        "metrics", "world_size", "param_hash", "params_equal", "program", NULL,
    };

    put(o, "trial", json_integer(ts->trial), ok);
    if (ts->params)
        put(o, "params", json_incref(ts->params), ok);
    put(o, "state", json_string(pl_trial_state_name(ts->state)), ok);
    if (ts->unsettled)
        put(o, "may_start_again", json_true(), ok);
    put_text(o, "job", ts->job, ok);
    put(o, "attempts", json_integer(PL_MAX(1u, ts->attempts)), ok);
    if (isfinite(ts->objective))
        put(o, "objective", json_real(ts->objective), ok);
    if (ts->cause)
        put(o, "cause", cause_json(ts), ok);
    if (ts->step >= 0)
        put(o, "step", json_integer(ts->step), ok);
    copy_all(o, from_result, ts->result, ok);
    if (json_object_get(ts->result, "exit_code"))
        put(o, "exit", json_incref(json_object_get(ts->result, "exit_code")), ok);
    if (!ts->result) {
        copy(o, "world_size", ts->doc, ok);
        copy(o, "program", ts->doc, ok);
    }
    if (ts->earlier)
        put_earlier(o, ts->earlier, ok);
    if (ts->started_s > 0)
        put(o, "started", json_real(ts->started_s), ok);
    if (ts->ended_s > 0)
        put(o, "ended", json_real(ts->ended_s), ok);
    if (ts->state == PL_TRIAL_WAITING && ts->slurm)
        put_text(o, "reason", ts->slurm->reason, ok);
    if (ts->source != PL_SOURCE_NONE)
        put(o, "source", json_string(pl_source_name(ts->source)), ok);
    if (ts->source == PL_SOURCE_STATUS)
        put(o, "age", json_real(ts->age_s), ok);
}

static void put_node_reasons(json_t *o, const struct pl_trial_status *ts, bool *ok)
{
    if (ts->node_reasons)
        put(o, "node_reasons", json_incref(ts->node_reasons), ok);
}

static json_t *trial_json(const struct pl_trial_status *ts)
{
    json_t *o = json_object();
    bool ok = o != NULL;

    put_trial(o, ts, &ok);
    put_node_reasons(o, ts, &ok);
    return finish_object(o, ok);
}

/* ---- sweep ---- */

static json_t *counts_json(const struct pl_run_status *s)
{
    size_t counts[PL_TRIAL_NODE_FAILED + 1] = {0};
    json_t *o = json_object();
    bool ok = o != NULL;

    for (size_t i = 0; i < s->n_trials; i++)
        counts[s->trials[i].state]++;
    for (size_t i = 0; i < PL_COUNT(counts); i++)
        if (counts[i])
            put(o, pl_trial_state_name((enum pl_trial_state)i), json_integer((json_int_t)counts[i]),
                &ok);
    return finish_object(o, ok);
}

static void put_run(json_t *o, const struct pl_run_status *s, bool *ok)
{
    json_t *jobs = json_array();

    put(o, "sweep", json_string(pl_run_sweep(s->run)), ok);
    put_text(o, "name", pl_run_name(s->run), ok);
    put(o, "folder", json_string(pl_run_dir(s->run)), ok);
    for (size_t i = 0; jobs && i < pl_run_n_submissions(s->run); i++)
        *ok &= json_array_append_new(jobs, json_string(pl_run_submission(s->run, i).job)) == 0;
    put(o, "arrays", jobs, ok);
}

/* A new reference; NULL when out of memory. */
static json_t *on_end_json(const struct pl_run_end *end)
{
    json_t *o = json_object();
    bool ok = o != NULL;

    if (end->job[0])
        put(o, "job", json_string(end->job), &ok);
    put(o, "begun", json_boolean(end->begun), &ok);
    if (end->ended)
        ok &= pl_run_state_set_status(o, end->status) == 0;
    return finish_object(o, ok);
}

json_t *pl_plstat_json_sweep(const struct pl_run_status *s, bool trials)
{
    const struct pl_run_end end = pl_run_end_read(s->run);
    json_t *o = json_object(), *list, *best;
    bool ok = o != NULL;

    put_run(o, s, &ok);
    put(o, "state", json_string(pl_sweep_state_name(s->state)), &ok);
    put(o, "created", json_real(pl_run_created_s(s->run)), &ok);
    put(o, "n_trials", json_integer((json_int_t)s->n_trials), &ok);
    put(o, "counts", counts_json(s), &ok);
    if (s->objective)
        put(o, "objective",
            json_pack("{s:s, s:s}", "name", s->objective, "direction", s->maximize ? "max" : "min"),
            &ok);
    if (s->missing)
        put(o, "objective_missing", json_string(s->missing), &ok);
    if (s->best >= 0) {
        best = json_pack("{s:i, s:f}", "trial", (int)s->trials[s->best].trial, "objective",
                         s->best_value);
        put(o, "best", best, &ok);
    }
    if (end.arrays)
        put(o, "on_end", on_end_json(&end), &ok);
    if (trials) {
        list = json_array();
        for (size_t i = 0; list && i < s->n_trials; i++)
            ok &= json_array_append_new(list, trial_json(&s->trials[i])) == 0;
        put(o, "trials", list, &ok);
    }
    return finish_object(o, ok);
}

/* ---- show ---- */

static json_t *rank_json(const json_t *rank, json_t *gpus, int64_t trial)
{
    static const char *const keys[] = {
        "rank",        "node", "pid",   "state", "step",  "exit", "signal",
        "signal_name", "role", "phase", "slow",  "stack", NULL,
    };
    json_t *o = json_object();
    bool ok = o != NULL;

    if (trial >= 0)
        put(o, "trial", json_integer(trial), &ok);
    copy_all(o, keys, rank, &ok);
    if (json_is_object(json_object_get(rank, "metrics")))
        copy(o, "metrics", rank, &ok);
    else
        put(o, "metrics", json_object(), &ok);
    copy(o, "facts", rank, &ok);
    if (gpus)
        put(o, "gpus", gpus, &ok);
    return finish_object(o, ok);
}

static void add_ranks(json_t *list, const struct pl_trial_status *ts, bool tag, bool *ok)
{
    json_t *rank;
    size_t i;

    json_array_foreach (json_object_get(ts->doc, "ranks"), i, rank) {
        json_t *gpus = pl_gpus_of_rank(ts->doc, (int64_t)i);

        *ok &=
            json_array_append_new(list, rank_json(rank, gpus, tag ? (int64_t)ts->trial : -1)) == 0;
    }
}

/* The words of the trial's program, with its values. */
static void put_argv(json_t *o, const struct pl_run_status *s, bool *ok)
{
    _cleanup_(pl_strv_freep) char **argv = NULL;
    json_t *list;

    if (pl_run_trial_argv(s->run, s->trials[0].params, &argv, NULL) < 0) /* a damaged folder */
        return;
    list = json_array();
    for (char **word = argv; list && *word; word++)
        *ok &= json_array_append_new(list, json_string(*word)) == 0;
    put(o, "argv", list, ok);
}

json_t *pl_plstat_json_show(const struct pl_run_status *s)
{
    json_t *o = json_object(), *ranks = json_array(), *trials;
    bool ok = o && ranks;

    if (s->n_trials == 1) {
        put_trial(o, &s->trials[0], &ok);
        put_run(o, s, &ok);
        put_argv(o, s, &ok);
        copy(o, "nodes", s->trials[0].doc, &ok);
        copy(o, "stall", s->trials[0].doc, &ok);
        put_node_reasons(o, &s->trials[0], &ok);
        add_ranks(ranks, &s->trials[0], false, &ok);
    } else {
        put_run(o, s, &ok);
        put(o, "state", json_string(pl_sweep_state_name(s->state)), &ok);
        trials = json_array();
        for (size_t i = 0; trials && i < s->n_trials; i++) {
            ok &= json_array_append_new(trials, trial_json(&s->trials[i])) == 0;
            add_ranks(ranks, &s->trials[i], true, &ok);
        }
        put(o, "trials", trials, &ok);
    }
    put(o, "ranks", ranks, &ok);
    return finish_object(o, ok);
}

/* ---- Slurm alone ---- */

json_t *pl_plstat_json_slurm_job(const struct pl_slurm_job *job)
{
    json_t *o = json_object();
    bool ok = o != NULL;
    char id[64];

    if (job->array && job->tasks)
        put(o, "tasks", json_string(job->tasks), &ok);
    pl_slurm_job_id(job, id, sizeof(id));
    put(o, "job", json_string(id), &ok);
    put_text(o, "name", job->name, &ok);
    put(o, "state", json_string(pl_trial_state_name(pl_slurm_trial_state(job))), &ok);
    put(o, "slurm_state", json_string(job->state), &ok);
    put_text(o, "reason", job->reason, &ok);
    put_text(o, "nodelist", job->nodes, &ok);
    if (job->n_nodes > 0)
        put(o, "n_nodes", json_integer(job->n_nodes), &ok);
    if (job->started > 0 && strcmp(job->state, "PENDING") != 0)
        put(o, "started", json_integer(job->started), &ok);
    if (job->ended > 0 && pl_slurm_state_final(job->state))
        put(o, "ended", json_integer(job->ended), &ok);
    if (pl_slurm_state_final(job->state) && job->signal >= 0)
        put(o, "signal", json_integer(job->signal), &ok);
    else if (pl_slurm_state_final(job->state) && job->exit >= 0)
        put(o, "exit", json_integer(job->exit), &ok);
    return finish_object(o, ok);
}

/* ---- doctor ---- */

json_t *pl_plstat_json_doctor(json_t *checks, json_t *nodes)
{
    return json_pack("{s:O, s:O}", "checks", checks, "nodes", nodes);
}

/* ---- why ---- */

json_t *
pl_plstat_json_why(const struct pl_run_status *s, const struct pl_trial_status *ts, json_t *cause)
{
    json_t *o = json_object();
    bool ok = o != NULL;

    if (ts) {
        put_trial(o, ts, &ok);
        copy(o, "stall", ts->doc, &ok);
        put_node_reasons(o, ts, &ok);
        json_object_del(o, "cause");
    }
    put_run(o, s, &ok);
    if (!ts || s->n_trials > 1)
        put(o, "sweep_state", json_string(pl_sweep_state_name(s->state)), &ok);
    if (!ts)
        put(o, "state", json_string(pl_sweep_state_name(s->state)), &ok);
    if (cause) {
        put(o, "cause", json_incref(cause), &ok);
        /* "others" is also a key of the document: readers of plstat/1 expect it there */
        copy(o, "others", cause, &ok);
    }
    return finish_object(o, ok);
}
