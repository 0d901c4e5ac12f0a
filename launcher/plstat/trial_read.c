/* SPDX-License-Identifier: MIT */
/* Reads the run folder's files of one trial; trial_status.c makes its state of them. */
#include "common/base/fs.h"
#include "common/base/parse.h"
#include "common/proto/json.h"
#include "common/run/requeue_rule.h"
#include "common/run/run_local.h"
#include "launcher/plstat/status_private.h"

#include <math.h>
#include <string.h>

#define CLAIM_MAX_BYTES 65536u
#define CLOCK_SLACK_S 2.0
#define STATUS_MAX_BYTES ((size_t)64 * 1024 * 1024)

double pl_trial_number(const json_t *o, const char *key, double otherwise)
{
    const json_t *v = json_object_get(o, key);

    return json_is_number(v) ? json_number_value(v) : otherwise;
}

int64_t pl_trial_int(const json_t *o, const char *key, int64_t otherwise)
{
    int64_t v;

    return pl_json_int(o, key, &v) == 0 ? v : otherwise;
}

double pl_trial_result_end(const json_t *result)
{
    return pl_trial_number(result, "ended", pl_trial_number(result, "time", 0));
}

/* A job number, which may be a JSON number or a string. */
static int64_t job_number(const json_t *o, const char *key)
{
    const char *s = pl_json_string(o, key);
    int64_t v;

    if (s)
        return pl_parse_int(s, 1, UINT32_MAX, &v, NULL) == 0 ? v : -1;
    return pl_trial_int(o, key, -1);
}

void pl_trial_status_set_job(struct pl_trial_status *ts, int64_t array, int64_t task)
{
    ts->array = array;
    ts->task = task;
    if (task >= 0)
        snprintf(ts->job, sizeof(ts->job), "%lld_%lld", (long long)array, (long long)task);
    else
        snprintf(ts->job, sizeof(ts->job), "%lld", (long long)array);
}

/* Sets the job: the newest array that has the trial, or the job that claimed it where that is none
 * of the sweep's. True if the array is newer than the claim, and the trial does not end with what
 * the claim's job did: the result is of an attempt before. */
static bool read_job(const struct pl_run *run, struct pl_trial_status *ts, const json_t *claim)
{
    bool ended = ts->state == PL_TRIAL_DONE || ts->state == PL_TRIAL_PRUNED;
    int64_t array, task;

    for (size_t i = pl_run_n_submissions(run); i-- > 0;) {
        struct pl_run_submission sub = pl_run_submission(run, i);

        if (!pl_run_submission_has(&sub, ts->trial) ||
            pl_parse_int(sub.job, 1, UINT32_MAX, &array, NULL) < 0)
            continue;
        ts->submitted = true;
        ts->retry = sub.retry;
        pl_trial_status_set_job(ts, array, ts->trial - sub.first_trial);
        break;
    }
    array = job_number(claim, "array");
    task = pl_trial_int(claim, "task", -1);
    if (array < 0) {
        array = job_number(claim, "job");
        task = -1;
    }
    if (array > 0 && !ended && pl_run_job_is_older(run, ts->trial, array)) {
        ts->cancelled = pl_run_is_cancelled(run, ts->array, ts->task);
        return true;
    }
    if (array > 0) {
        ts->submitted = true;
        pl_trial_status_set_job(ts, array, task);
    }
    ts->cancelled = pl_run_is_cancelled(run, ts->array, ts->task);
    return false;
}

/* A job that is no array has only a number; the run folder records it as task 0. */
static void set_single_job(struct pl_trial_status *ts)
{
    const char *own = pl_json_string(ts->result, "job");
    int64_t number;

    if (!own)
        own = pl_json_string(ts->live, "array");
    if (ts->array > 0 && ts->task == 0 && own &&
        pl_parse_int(own, 1, UINT32_MAX, &number, NULL) == 0 && number == ts->array)
        pl_trial_status_set_job(ts, number, -1);
}

void pl_trial_status_set_aside(struct pl_trial_status *ts, double known_s)
{
    ts->earlier = PL_TAKE(ts->result);
    json_decref(PL_TAKE(ts->live));
    json_decref(PL_TAKE(ts->doc));
    if (ts->query)
        json_decref(ts->query->state);
    free(PL_TAKE(ts->query));
    ts->source = PL_SOURCE_NONE;
    ts->state = PL_TRIAL_WAITING;
    ts->unstarted = true;
    ts->claimed = false;
    ts->claim_s = known_s;
}

static int read_claim(const struct pl_run *run, struct pl_trial_status *ts, json_t **ret)
{
    _cleanup_free_ char *path = NULL;

    if (ts->attempts == 0)
        return 0;
    path = pl_run_attempt_path(run, ts->trial, ts->attempts - 1, "claim");
    if (!path)
        return -ENOMEM;
    ts->claimed = true; /* the claim creates the folder */
    if (pl_json_load_file(path, CLAIM_MAX_BYTES, ret, NULL) == 0)
        ts->claim_s = pl_trial_number(*ret, "time", 0);
    ts->restart = pl_trial_int(*ret, "restart", 0);
    return 0;
}

/* True until the runtime has written into the result whether --requeue-on starts the trial again.
 */
static bool is_undecided(const struct pl_run *run, const struct pl_trial_status *ts)
{
    struct pl_requeue_rule rule;

    return pl_requeue_of_run(run, &rule) && !pl_run_is_local(run) &&
           pl_requeue_cause_of(ts->state, ts->result) != PL_REQUEUE_N_CAUSES &&
           !json_object_get(ts->result, "requeued") &&
           !json_object_get(ts->result, "not_requeued") &&
           !json_is_true(json_object_get(ts->result, "finished"));
}

static int read_result(const struct pl_run *run, struct pl_trial_status *ts, struct pl_notes *notes)
{
    _cleanup_(json_decrefp) json_t *result = NULL;
    struct pl_error err = {0};
    int r = pl_run_result_read(run, ts->trial, &result, &ts->state, &err);

    if (r == -ENOMEM)
        return r;
    if (r < 0) {
        ts->state = PL_TRIAL_WAITING;
        ts->unreadable = r != -ENOENT;
        if (ts->unreadable)
            pl_notes_add(notes, true, "%s", pl_error_text(&err));
        return 0;
    }
    /* Skip the result of an earlier attempt. */
    if (ts->attempts > 0 && pl_trial_int(result, "attempt", ts->attempts - 1) + 1 < ts->attempts) {
        ts->state = PL_TRIAL_WAITING;
        return 0;
    }
    ts->result = PL_TAKE(result);
    ts->undecided = is_undecided(run, ts);
    return 0;
}

/* Reads status.json: the hub's address and its last state. */
static int read_live(const struct pl_run *run, struct pl_trial_status *ts, struct pl_notes *notes)
{
    _cleanup_free_ char *path = pl_run_trial_path(run, ts->trial, "status.json");
    _cleanup_(json_decrefp) json_t *o = NULL;
    struct pl_error err = {0};
    const json_t *hub;
    int r;

    if (!path)
        return -ENOMEM;
    r = pl_json_load_file(path, STATUS_MAX_BYTES, &o, &err);
    if (r == -ENOMEM)
        return r;
    if (r < 0) {
        if (r != -ENOENT)
            pl_notes_add(notes, !ts->result, "%s", pl_error_text(&err));
        return 0;
    }
    ts->live_s = pl_trial_number(o, "time", 0);
    ts->written_s = pl_trial_number(o, "written", ts->live_s);
    if (ts->live_s + CLOCK_SLACK_S < ts->claim_s ||
        pl_trial_int(json_object_get(o, "state"), "attempt", ts->attempts - 1) + 1 < ts->attempts)
        return 0; /* from the attempt before: the new hub has not written yet */
    ts->live = json_incref(json_object_get(o, "state"));
    hub = json_object_get(o, "hub");
    if (!hub || ts->result)
        return 0;
    ts->query = malloc(sizeof(*ts->query));
    if (!ts->query)
        return -ENOMEM;
    if (pl_hub_query_init(ts->query, hub) < 0) {
        pl_notes_add(notes, false, "'%s' has no valid address of a hub", path);
        free(PL_TAKE(ts->query));
    }
    return 0;
}

int pl_trial_status_read(struct pl_run *run, struct pl_trial_status *ts, struct pl_notes *notes)
{
    _cleanup_(json_decrefp) json_t *claim = NULL;
    struct pl_error err = {0};
    int r;

    ts->array = ts->task = ts->step = -1;
    ts->objective = NAN;
    r = pl_run_trial_params(run, ts->trial, &ts->params, &err);
    if (r < 0 && r != -ENOMEM)
        pl_notes_add(notes, true, "%s", pl_error_text(&err));
    if (r != -ENOMEM)
        r = pl_run_n_attempts(run, ts->trial, &ts->attempts);
    if (r < 0 && r != -ENOMEM)
        pl_notes_add(notes, true, "cannot read the folder of trial %u: %s", ts->trial,
                     strerror(-r));
    if (r != -ENOMEM)
        r = read_claim(run, ts, &claim);
    if (r == 0)
        r = read_result(run, ts, notes);
    if (r < 0)
        return r;
    if (read_job(run, ts, claim))
        pl_trial_status_set_aside(ts, 0);
    else if (json_is_true(json_object_get(ts->result, "requeued"))) {
        pl_trial_status_set_aside(ts, pl_trial_result_end(ts->result));
        ts->to_requeue = true;
    }
    /* status.json matters only without a result: an ended sweep costs one file per trial. */
    if (!ts->result && !ts->unstarted)
        r = read_live(run, ts, notes);
    if (!ts->unstarted)
        set_single_job(ts);
    return r;
}
