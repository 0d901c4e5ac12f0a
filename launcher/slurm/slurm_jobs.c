/* SPDX-License-Identifier: MIT */
#include "common/base/child.h"
#include "common/base/env.h"
#include "common/base/fs.h"
#include "common/proto/json.h"
#include "common/run/cause.h"
#include "common/run/run_tasks.h"
#include "launcher/slurm/slurm_cache.h"
#include "launcher/slurm/slurm_compat.h"
#include "launcher/slurm/slurm_jobs_private.h"
#include "launcher/slurm/slurm_squeue.h"

#include <string.h>

#define CACHE_NAME "jobs"
#define ASK_LIMIT_MS 6000
#define PAST_AGE_S (7 * 86400)
#define PAST_MAX 20000
#define NO_TASK 4294967294 /* Slurm's NO_VAL: the record has no single task */

void pl_slurm_jobs_destroy(struct pl_slurm_jobs *jobs)
{
    if (!jobs)
        return;
    free(jobs->jobs);
    free(jobs->stale);
    json_decref(jobs->doc);
    free(jobs);
}

bool pl_slurm_job_is_rest(const struct pl_slurm_job *job)
{
    return job->array && job->task < 0 && !job->tasks;
}

bool pl_slurm_state_final(const char *state)
{
    enum pl_trial_state trial = pl_job_state_find(state)->trial;

    return trial != PL_TRIAL_WAITING && trial != PL_TRIAL_RUNNING;
}

void pl_slurm_job_id(const struct pl_slurm_job *job, char *ret, size_t size)
{
    if (job->array && job->tasks)
        snprintf(ret, size, "%lld_[%s]", (long long)job->array, job->tasks);
    else if (job->array && job->task >= 0)
        snprintf(ret, size, "%lld_%lld", (long long)job->array, (long long)job->task);
    else
        snprintf(ret, size, "%lld", (long long)job->id);
}

enum pl_trial_state pl_slurm_trial_state(const struct pl_slurm_job *job)
{
    return pl_job_state_find(job->state)->trial;
}

static int64_t int_or(const json_t *o, const char *key, int64_t otherwise)
{
    int64_t v;

    return pl_json_int(o, key, &v) == 0 ? v : otherwise;
}

static int compare_jobs(const void *va, const void *vb)
{
    const struct pl_slurm_job *a = va, *b = vb;
    int64_t ja = a->array ? a->array : a->id, jb = b->array ? b->array : b->id;

    if (ja != jb)
        return ja < jb ? -1 : 1;
    return a->task < b->task ? -1 : a->task > b->task;
}

static int parse_job(const json_t *o, struct pl_slurm_job *ret)
{
    *ret = (struct pl_slurm_job){
        .id = int_or(o, "id", -1),
        .array = int_or(o, "array", 0),
        .task = int_or(o, "task", -1),
        .tasks = pl_json_string(o, "tasks"),
        .state = pl_json_string(o, "state"),
        .completing = json_is_true(json_object_get(o, "completing")),
        .reason = pl_json_string(o, "reason"),
        .name = pl_json_string(o, "name"),
        .nodes = pl_json_string(o, "nodes"),
        .n_nodes = int_or(o, "n_nodes", 0),
        .submitted = int_or(o, "submitted", 0),
        .started = int_or(o, "started", 0),
        .ended = int_or(o, "ended", 0),
        .limit_s = int_or(o, "limit_s", 0),
        .exit = int_or(o, "exit", -1),
        .signal = int_or(o, "signal", -1),
        .restarts = int_or(o, "restarts", 0),
        .counted = json_object_get(o, "restarts") != NULL,
    };
    if (ret->task >= NO_TASK)
        ret->task = -1;
    return ret->id < 0 || !ret->state ? -EINVAL : 0;
}

int pl_slurm_jobs_parse(json_t *doc, struct pl_slurm_jobs **ret, struct pl_error *err)
{
    _cleanup_(pl_slurm_jobs_destroyp) struct pl_slurm_jobs *jobs = calloc(1, sizeof(*jobs));
    static const char *const keys[] = {"jobs", "past"};
    const json_t *o, *asked = json_object_get(doc, "asked");
    size_t i, n = json_array_size(json_object_get(doc, "jobs")) +
                  json_array_size(json_object_get(doc, "past"));

    if (!jobs)
        return pl_error_set(err, -ENOMEM, "out of memory");
    jobs->doc = json_incref(doc);
    jobs->answered_s = json_number_value(json_object_get(doc, "time"));
    jobs->time_s = asked ? json_number_value(asked) : jobs->answered_s;
    jobs->jobs = calloc(n + 1, sizeof(*jobs->jobs));
    if (!jobs->jobs)
        return pl_error_set(err, -ENOMEM, "out of memory");
    for (size_t k = 0; k < PL_COUNT(keys); k++)
        json_array_foreach (json_object_get(doc, keys[k]), i, o) {
            struct pl_slurm_job *job = &jobs->jobs[jobs->n_jobs++];

            if (parse_job(o, job) < 0)
                return pl_error_set(err, -EINVAL, "job record %zu is damaged", i);
            job->past = k > 0;
        }
    qsort(jobs->jobs, jobs->n_jobs, sizeof(*jobs->jobs), compare_jobs);
    *ret = PL_TAKE(jobs);
    return 0;
}

const struct pl_slurm_job *
pl_slurm_jobs_find(const struct pl_slurm_jobs *jobs, int64_t job, int64_t task)
{
    struct pl_slurm_job key = {.id = job, .array = task >= 0 ? job : 0, .task = task};
    const struct pl_slurm_job *found, *rest = NULL;

    if (!jobs || jobs->n_jobs == 0)
        return NULL;
    found = bsearch(&key, jobs->jobs, jobs->n_jobs, sizeof(key), compare_jobs);
    if (found && (task >= 0 || !found->array))
        return found;
    for (size_t i = 0; i < jobs->n_jobs; i++) {
        const struct pl_slurm_job *j = &jobs->jobs[i];

        if (j->array == job && j->tasks && task >= 0 && pl_tasks_contain_sorted(j->tasks, task))
            return j;
        if (j->id == job && (task < 0 || (task == 0 && !j->array)))
            return j;
        if (j->array == job && task >= 0 && pl_slurm_job_is_rest(j))
            rest = j;
    }
    return rest;
}

/* ---- the query, in a child ---- */

static json_t *jobs_doc(double asked_s, json_t *jobs)
{
    return json_pack("{s:f, s:f, s:O}", "time", pl_wall_s(), "asked", asked_s, "jobs", jobs);
}

/* Runs in the child: writes the jobs, or the error, as one document. */
static int query_child(void *ctx, int fd)
{
    _cleanup_(json_decrefp) json_t *jobs = NULL, *doc = NULL;
    _cleanup_(pl_buf_finish) struct pl_buf text = {0};
    struct pl_error err = {0};
    double asked_s = pl_wall_s();
    int r = pl_slurm_query_jobs(*(uid_t *)ctx, &jobs, &err);

    if (r < 0)
        doc = json_pack("{s:f, s:s, s:i}", "time", pl_wall_s(), "error", pl_error_text(&err),
                        "errno", r);
    else
        doc = jobs_doc(asked_s, jobs);
    if (!doc || pl_json_dump_line(doc, &text) < 0 || pl_write_all(fd, text.data, text.len) < 0)
        return PL_EXIT_FAILED;
    return PL_EXIT_OK;
}

static int query_library(uid_t uid, struct pl_buf *ret, struct pl_error *err)
{
    struct pl_child child = {0};
    int r = pl_child_call(query_child, &uid, ASK_LIMIT_MS, &child, err);

    if (r == -ETIMEDOUT)
        pl_error_set(err, r, "the Slurm controller does not answer");
    else if (r == 0 && child.out.len == 0)
        r = pl_error_set(err, -EHOSTUNREACH,
                         "Slurm's client library ended its process: does scontrol ping work here?");
    if (r == 0) {
        *ret = child.out;
        child.out = (struct pl_buf){0};
    }
    pl_child_finish(&child);
    return r;
}

/* ---- jobs that Slurm has forgotten ---- */

/* True if Slurm's new answer has the record: that of the task, or the one of several tasks. */
static bool is_known(const struct pl_slurm_jobs *now, const struct pl_slurm_job *job)
{
    const struct pl_slurm_job *found;

    if (job->task >= 0) {
        found = pl_slurm_jobs_find(now, job->array, job->task);
        return found && !pl_slurm_job_is_rest(found);
    }
    for (size_t i = 0; i < now->n_jobs; i++)
        if (now->jobs[i].id == job->id)
            return true;
    return false;
}

/* Adds to `past` the array tasks of a list that ended within PAST_AGE_S and that Slurm's new answer
 * does not have. */
static int keep_ended(json_t *past, const json_t *list, const struct pl_slurm_jobs *now)
{
    json_t *o;
    size_t i;

    json_array_foreach (list, i, o) {
        struct pl_slurm_job job;

        if (parse_job(o, &job) < 0 || !job.array || !pl_slurm_state_final(job.state) ||
            job.ended + PAST_AGE_S < now->time_s || is_known(now, &job))
            continue;
        if (json_array_size(past) < PAST_MAX && json_array_append(past, o) < 0)
            return -ENOMEM;
    }
    return 0;
}

int pl_slurm_jobs_keep_ended(json_t *doc, const json_t *before, struct pl_error *err)
{
    _cleanup_(pl_slurm_jobs_destroyp) struct pl_slurm_jobs *now = NULL;
    json_t *past = json_array();
    int r = past ? pl_slurm_jobs_parse(doc, &now, err) : -ENOMEM;

    if (r == 0)
        r = keep_ended(past, json_object_get(before, "jobs"), now);
    if (r == 0)
        r = keep_ended(past, json_object_get(before, "past"), now);
    if (r == 0 && json_array_size(past) > 0 && json_object_set(doc, "past", past) < 0)
        r = -ENOMEM;
    json_decref(past);
    return r < 0 ? pl_error_set(err, r, "cannot read Slurm's answer") : 0;
}

/* The document of a failed query, with the jobs of the document before it. */
static json_t *failure_doc(const json_t *before, int r, const struct pl_error *err)
{
    static const char *const keys[] = {"jobs", "past"};
    json_t *doc =
        json_pack("{s:f, s:s, s:i}", "time", pl_wall_s(), "error", pl_error_text(err), "errno", r);

    for (size_t i = 0; doc && i < PL_COUNT(keys); i++)
        if (json_object_get(before, keys[i]))
            json_object_set(doc, keys[i], json_object_get(before, keys[i]));
    return doc;
}

/* Asks libslurm where it finds its configuration, else squeue. */
static int query_slurm(uid_t uid, json_t **ret, struct pl_error *err)
{
    _cleanup_(json_decrefp) json_t *jobs = NULL, *doc = NULL;
    _cleanup_(pl_buf_finish) struct pl_buf text = {0};
    int64_t code = -ENOTSUP;
    double asked_s;
    int r;

    if (pl_slurm_conf_readable()) {
        r = query_library(uid, &text, err);
        if (r == 0)
            r = pl_json_parse(text.data, text.len, PL_SLURM_CACHE_MAX_BYTES, &doc, err);
        if (r < 0)
            return r;
        if (!pl_json_string(doc, "error")) {
            *ret = PL_TAKE(doc);
            return 0;
        }
        if (pl_json_int(doc, "errno", &code) < 0)
            code = -EHOSTUNREACH;
        if (code != -ENOTSUP)
            return pl_error_set(err, (int)code, "%s", pl_json_string(doc, "error"));
    }
    asked_s = pl_wall_s();
    r = pl_slurm_squeue_jobs(uid, ASK_LIMIT_MS, &jobs, err);
    if (r < 0)
        return r;
    *ret = jobs_doc(asked_s, jobs);
    return *ret ? 0 : pl_error_nomem(err);
}

/* Queries Slurm and updates the file. *ret is a document also after a failed query.
 * before: the file's document, or NULL. */
static int
refresh(uid_t uid, int cache_fd, const json_t *before, json_t **ret, struct pl_error *err)
{
    _cleanup_(json_decrefp) json_t *doc = NULL;
    struct pl_buf text = {0};
    int r = query_slurm(uid, &doc, err);

    if (r == 0)
        r = pl_slurm_jobs_keep_ended(doc, before, err);
    if (r < 0) {
        json_decref(doc);
        doc = failure_doc(before, r, err);
    }
    pl_buf_consume(&text, text.len);
    if (doc && pl_json_dump_line(doc, &text) < 0)
        pl_buf_consume(&text, text.len);
    if (cache_fd >= 0 && text.len)
        pl_slurm_cache_write(cache_fd, &text);
    pl_buf_finish(&text);
    if (!doc)
        return pl_error_set(err, -ENOMEM, "out of memory");
    *ret = PL_TAKE(doc);
    return 0;
}

/* Makes the list of a document; for a failed query, of the jobs that had ended before it. */
static int list_of_doc(json_t *doc, struct pl_slurm_jobs **ret, struct pl_error *err)
{
    _cleanup_(pl_slurm_jobs_destroyp) struct pl_slurm_jobs *jobs = NULL;
    const char *text = pl_json_string(doc, "error");
    int64_t code = -EHOSTUNREACH;
    size_t n = 0;
    int r = pl_slurm_jobs_parse(doc, &jobs, err);

    if (r < 0)
        return r;
    if (text) {
        for (size_t i = 0; i < jobs->n_jobs; i++)
            if (pl_slurm_state_final(jobs->jobs[i].state))
                jobs->jobs[n++] = jobs->jobs[i];
        jobs->n_jobs = n;
        jobs->time_s = jobs->answered_s = 0;
        jobs->stale = strdup(text);
        if (!jobs->stale)
            return pl_error_set(err, -ENOMEM, "out of memory");
        pl_json_int(doc, "errno", &code);
        if (n == 0)
            return pl_error_set(err, (int)code, "%s", text);
    }
    *ret = PL_TAKE(jobs);
    return 0;
}

int pl_slurm_jobs_get(uid_t uid, struct pl_slurm_jobs **ret, struct pl_error *err)
{
    _cleanup_(json_decrefp) json_t *doc = NULL, *before = NULL;
    _cleanup_close_ int fd = -EBADF;
    const char *conf = pl_env(PL_ENV_SLURM_CONF);
    int r;

    if (!pl_slurm_conf_readable() && conf && *conf)
        return pl_error_set(err, -ENOENT, "cannot read SLURM_CONF '%s'", conf);
    fd = pl_slurm_cache_open(CACHE_NAME, uid);
    if (pl_slurm_cache_read(fd, &doc) < 0 ||
        !pl_slurm_cache_is_recent(fd, doc, PL_SLURM_JOBS_AGE_S)) {
        before = PL_TAKE(doc);
        r = refresh(uid, fd, before, &doc, err);
        if (r < 0)
            return r;
    }
    return list_of_doc(doc, ret, err);
}

void pl_slurm_jobs_expire(uid_t uid)
{
    pl_slurm_cache_expire(CACHE_NAME, uid);
}
