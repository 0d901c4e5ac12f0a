/* SPDX-License-Identifier: MIT */
/* plstat why JOB: the first failure. The cause comes last, because readers start at the end. */
#include "common/base/fs.h"
#include "common/proto/json.h"
#include "common/run/cause.h"
#include "launcher/plstat/gpus.h"
#include "launcher/plstat/plstat.h"
#include "launcher/plstat/plstat_json.h"
#include "launcher/plstat/rank_facts.h"
#include "launcher/plstat/releases.h"
#include "launcher/plstat/stalls.h"
#include "launcher/plstat/timeline.h"
#include "launcher/plstat/words.h"

#include <math.h>
#include <signal.h>
#include <string.h>

/* Trials that did not end well. */
struct failures {
    size_t n, n_cancelled; /* n: all of them */
};

/* The trial that failed first; NULL: none. A running trial counts if its hub has found a cause. */
static const struct pl_trial_status *first_failure(const struct pl_run_status *s,
                                                   struct failures *ret)
{
    const struct pl_trial_status *first = NULL;
    double first_s = 0;

    *ret = (struct failures){0};
    for (size_t i = 0; i < s->n_trials; i++) {
        const struct pl_trial_status *ts = &s->trials[i];
        double at = ts->ended_s > 0 ? ts->ended_s : INFINITY;

        if (!pl_trial_state_is_failure(ts->state) && !(ts->state == PL_TRIAL_RUNNING && ts->cause))
            continue;
        ret->n++;
        ret->n_cancelled += ts->state == PL_TRIAL_CANCELLED;
        if (!first || at < first_s) {
            first = ts;
            first_s = at;
        }
    }
    return first;
}

/* The cause to show. The rank and its stderr provide missing keys. */
static json_t *make_cause(const struct pl_run_status *s, const struct pl_trial_status *ts)
{
    static const char *const keys[] = {"node", "pid"};
    json_t *cause = ts->cause ? json_copy(ts->cause) : json_object(), *rank = NULL;
    _cleanup_free_ char *text = NULL;
    int64_t number;

    if (!cause)
        return NULL;
    if (!ts->cause &&
        json_object_set_new(cause, "kind", json_string(pl_cause_name(PL_CAUSE_UNKNOWN))) < 0)
        goto fail;
    if (pl_json_int(cause, "rank", &number) == 0) {
        rank = json_array_get(json_object_get(ts->doc, "ranks"), (size_t)number);
        for (size_t i = 0; i < PL_COUNT(keys); i++)
            if (!json_object_get(cause, keys[i]) && json_object_get(rank, keys[i]) &&
                json_object_set(cause, keys[i], json_object_get(rank, keys[i])) < 0)
                goto fail;
        if (!pl_json_string(cause, "text") && ts->attempts > 0) {
            text = pl_timeline_stderr(s->run, ts->trial, ts->attempts - 1, number);
            if (text && json_object_set_new(cause, "text", json_string(text)) < 0)
                goto fail;
        }
    }
    if (!json_object_get(cause, "others") &&
        json_object_set_new(cause, "others",
                            json_is_array(ts->others) ? json_incref(ts->others) : json_array()) < 0)
        goto fail;
    return cause;

fail:
    json_decref(cause);
    return NULL;
}

static int
add_head(struct pl_plstat *ps, const struct pl_run_status *s, const struct pl_trial_status *ts)
{
    size_t nodes = json_array_size(json_object_get(ts->doc, "nodes"));
    size_t ranks = json_array_size(json_object_get(ts->doc, "ranks"));
    _cleanup_(pl_buf_finish) struct pl_buf line = {0};
    char duration[32], name[PL_WORDS_NAME_MAX];
    int r;

    pl_words_trial(s->run, ts->trial, name, sizeof(name));
    pl_words_duration(ts->ended_s - ts->started_s, duration, sizeof(duration));
    r = pl_buf_addf(&line, "%s%s%s  %s", ts->job, *ts->job ? "  " : "", name,
                    pl_trial_state_name(ts->state));
    if (r == 0 && ts->started_s > 0 && ts->ended_s > 0)
        r = pl_buf_addf(&line, " after %s", duration);
    if (r == 0 && ts->step >= 0)
        r = pl_buf_addf(&line, " at step %lld", (long long)ts->step);
    if (r == 0 && ranks)
        r = pl_buf_addf(&line, "  %zu node%s %zu rank%s", nodes, nodes == 1 ? "" : "s", ranks,
                        ranks == 1 ? "" : "s");
    if (r == 0)
        r = pl_buf_adds(&line, "  ");
    if (r == 0)
        r = pl_words_attempt(ts, &line);
    if (r == 0)
        r = pl_plstat_line(ps, PL_TERM_BOLD, "%s", pl_buf_str(&line));
    if (r == 0 && pl_json_string(ts->result, "not_requeued"))
        r = pl_plstat_line(ps, PL_TERM_PLAIN, "not requeued: %s",
                           pl_json_string(ts->result, "not_requeued"));
    return r < 0 ? r : pl_plstat_earlier(ps, ts);
}

/* Adds the path of the rank's stderr file. */
static int add_log(struct pl_plstat *ps,
                   const struct pl_run_status *s,
                   const struct pl_trial_status *ts,
                   const json_t *cause)
{
    _cleanup_free_ char *name = NULL, *path = NULL;
    int64_t rank;

    if (ts->attempts == 0 || pl_json_int(cause, "rank", &rank) < 0)
        return 0;
    name = pl_strf("rank-%lld.err", (long long)rank);
    path = name ? pl_run_attempt_path(s->run, ts->trial, ts->attempts - 1, name) : NULL;
    if (!path)
        return -ENOMEM;
    if (access(path, R_OK) < 0)
        return 0;
    if (pl_buf_adds(&ps->text, "log: ") < 0 || pl_term_escape(&ps->text, path, strlen(path)) < 0)
        return -ENOMEM;
    return pl_buf_addc(&ps->text, '\n');
}

/* Adds failures that may be as early as the cause, within the accuracy of the clocks. */
static int add_tied(struct pl_plstat *ps, const json_t *cause)
{
    const json_t *other;
    size_t i;
    int r = 0;

    json_array_foreach (json_object_get(cause, "others"), i, other) {
        _cleanup_(pl_buf_finish) struct pl_buf line = {0};

        if (r < 0 || !json_is_true(json_object_get(other, "tied")))
            continue;
        r = pl_words_cause(other, &line);
        if (r == 0)
            r = pl_plstat_line(ps, PL_TERM_YELLOW, "possibly as early: %s", pl_buf_str(&line));
    }
    return r;
}

/* The name in --signal's value "SIGUSR1@60", "r:10"; *ret_len: its length. */
static const char *signal_asked_for(const char *value, size_t *ret_len)
{
    const char *colon = strchr(value, ':'), *name = colon ? colon + 1 : value;

    if (strncasecmp(name, "SIG", 3) == 0)
        name += 3;
    *ret_len = strcspn(name, "@");
    return name;
}

static bool is_signal(const char *name, size_t len, int64_t number, const char *of_number)
{
    char text[24];

    snprintf(text, sizeof(text), "%lld", (long long)number);
    return (strlen(of_number) == len && strncasecmp(of_number, name, len) == 0) ||
           (strlen(text) == len && strncmp(text, name, len) == 0);
}

/* True if Slurm or a record of Plume tells that somebody has cancelled the trial, or it has not
 * run. */
static bool is_known_cancel(const struct pl_trial_status *ts, const json_t *cause)
{
    const char *confidence = pl_json_string(cause, "confidence");

    return ts->cancelled || ts->unstarted || pl_json_string(cause, "text") ||
           (confidence && strcmp(confidence, pl_confidence_name(PL_CONFIDENCE_ASKED)) == 0) ||
           (ts->slurm && strcmp(ts->slurm->state, "CANCELLED") == 0);
}

/* A rank was killed by the signal that --signal asks for, or the trial counts as cancelled by it:
 * Slurm may have sent it. ts NULL: a job without a run folder. */
static int add_signal_option(struct pl_plstat *ps,
                             const struct pl_run *run,
                             const struct pl_trial_status *ts,
                             const json_t *cause)
{
    const json_t *option = ts ? json_object_get(pl_run_options(run), "signal") : NULL;
    const char *value = pl_json_string(option, "value"), *name;
    const char *has = pl_json_string(cause, "signal_name");
    enum pl_cause_kind kind = pl_cause_parse(pl_json_string(cause, "kind"));
    _cleanup_free_ char *text = NULL;
    int64_t number;
    size_t len;

    if (!value)
        return 0;
    name = signal_asked_for(value, &len);
    if (kind == PL_CAUSE_SIGNAL && has && strncmp(has, "SIG", 3) == 0 &&
        pl_json_int(cause, "signal", &number) == 0 && is_signal(name, len, number, has + 3))
        text = pl_strf("Slurm sends %s for --signal %s; somebody else may have sent it.\n"
                       "It kills a program that has no handler for it.",
                       has, value);
    else if (kind == PL_CAUSE_CANCELLED && is_signal(name, len, SIGTERM, "TERM") &&
             !is_known_cancel(ts, cause))
        text = pl_strf("The signal may be the one that --signal %s asks Slurm for.", value);
    else
        return 0;
    return text ? pl_plstat_text(ps, 6, text) : -ENOMEM;
}

static int add_cause(struct pl_plstat *ps,
                     const struct pl_run *run,
                     const struct pl_trial_status *ts,
                     const json_t *cause)
{
    _cleanup_(pl_buf_finish) struct pl_buf line = {0};
    const char *text = pl_json_string(cause, "text");
    int r = pl_words_cause(cause, &line);

    if (r == 0)
        r = pl_plstat_line(ps, PL_TERM_RED, "CAUSE %s", pl_buf_str(&line));
    if (r == 0)
        r = add_signal_option(ps, run, ts, cause);
    if (r == 0)
        r = pl_gpus_print_cause(ps, cause);
    if (r == 0 && text)
        r = pl_plstat_text(ps, 6, text);
    return r;
}

/* Adds a line about the trials beside the one shown. */
static int add_more(struct pl_plstat *ps,
                    const struct pl_run_status *s,
                    const struct pl_trial_status *shown,
                    const struct failures *failures)
{
    size_t n = failures->n ? failures->n - 1 : 0;
    size_t cancelled = failures->n_cancelled - (shown->state == PL_TRIAL_CANCELLED);
    const char *were = n == 1 ? "was" : "were";

    if (n == 0)
        return 0;
    return pl_plstat_line(ps, PL_TERM_PLAIN, "%zu more trial%s %s%s%s%s: plstat sweep %s", n,
                          n == 1 ? "" : "s", cancelled < n ? "failed" : "",
                          cancelled && cancelled < n ? " or " : "", cancelled ? were : "",
                          cancelled ? " cancelled" : "", pl_run_sweep(s->run));
}

static int print(struct pl_plstat *ps,
                 const struct pl_run_status *s,
                 const struct pl_trial_status *ts,
                 const struct failures *failures,
                 const json_t *cause)
{
    int r;

    r = add_head(ps, s, ts);
    if (r == 0)
        r = pl_timeline_print(ps, s->run, ts, cause);
    if (r == 0)
        r = add_more(ps, s, ts, failures);
    if (r == 0)
        r = pl_gpus_print(ps, ts->doc, false, ts->ended_s);
    if (r == 0)
        r = pl_stalls_print(ps, s, ts);
    if (r == 0)
        r = pl_releases_print(ps, ts->doc);
    if (r == 0)
        r = pl_rank_facts_print(ps, ts->doc);
    if (r == 0)
        r = pl_plstat_node_reasons(ps, ts);
    if (r == 0)
        r = add_tied(ps, cause);
    if (r == 0)
        r = add_log(ps, s, ts, cause);
    return r < 0 ? r : add_cause(ps, s->run, ts, cause);
}

/* Of a sweep's only trial, whose ranks are not collected yet. */
static int print_facts(struct pl_plstat *ps, const struct pl_run_status *sweep)
{
    _cleanup_(pl_run_status_destroyp) struct pl_run_status *s = NULL;
    int r = pl_run_status_collect(sweep->run, sweep->trials[0].trial, true, &ps->slurm, &s,
                                  &ps->notes, NULL);

    return r < 0 ? r : pl_rank_facts_print(ps, s->trials[0].doc);
}

static int print_none(struct pl_plstat *ps, const struct pl_run_status *s)
{
    char name[PL_WORDS_NAME_MAX];
    int r;

    if (s->n_trials == 1) {
        pl_words_trial(s->run, s->trials[0].trial, name, sizeof(name));
        r = pl_plstat_line(ps, PL_TERM_PLAIN, "no failure: %s is %s", name,
                           pl_trial_state_name(s->trials[0].state));
        if (r == 0)
            r = pl_plstat_earlier(ps, &s->trials[0]);
        if (r == 0)
            r = pl_stalls_print(ps, s, &s->trials[0]);
        return r < 0 ? r : print_facts(ps, s);
    }
    return pl_plstat_line(ps, PL_TERM_PLAIN, "no failure: %s is %s", pl_run_sweep(s->run),
                          pl_sweep_state_name(s->state));
}

/* ---- a job that has no run folder ---- */

static json_t *slurm_cause(const struct pl_slurm_job *job)
{
    enum pl_cause_kind kind = pl_job_state_find(job->state)->cause;
    const char *name;
    json_t *cause;

    if (kind == PL_CAUSE_NONE)
        kind = job->signal >= 0 ? PL_CAUSE_SIGNAL : PL_CAUSE_EXIT;
    name = pl_cause_name(kind);
    cause = json_pack("{s:s, s:[]}", "kind", name, "others");
    if (cause && (kind == PL_CAUSE_SIGNAL || kind == PL_CAUSE_EXIT)) /* the key has that name */
        json_object_set_new(cause, name,
                            json_integer(job->signal >= 0 ? job->signal : PL_MAX(job->exit, 0)));
    return cause;
}

static int report_slurm_job(struct pl_plstat *ps, const struct pl_slurm_job *job)
{
    bool failed = pl_trial_state_is_failure(pl_slurm_trial_state(job));
    _cleanup_(json_decrefp) json_t *cause = failed ? slurm_cause(job) : NULL;
    json_t *doc;

    if (failed && !cause)
        return -ENOMEM;
    pl_plstat_note_slurm_only(ps, failed);
    if (ps->json) {
        doc = pl_plstat_json_slurm_job(job);
        if (doc && cause && json_object_set(doc, "cause", cause) < 0)
            json_decref(PL_TAKE(doc));
        return pl_plstat_document(ps, doc);
    }
    if (failed)
        return add_cause(ps, NULL, NULL, cause);
    return pl_plstat_line(ps, PL_TERM_PLAIN, "no failure: job %s is %s", ps->word,
                          pl_trial_state_name(pl_slurm_trial_state(job)));
}

/* Reports one failed trial. Its ranks are collected only now, so that of a large sweep only one log
 * is read. */
static int report_failure(struct pl_plstat *ps,
                          const struct pl_run_status *sweep,
                          unsigned trial,
                          const struct failures *failures)
{
    _cleanup_(pl_run_status_destroyp) struct pl_run_status *s = NULL;
    _cleanup_(json_decrefp) json_t *cause = NULL;
    int r = pl_run_status_collect(sweep->run, trial, true, &ps->slurm, &s, &ps->notes, NULL);

    if (r < 0)
        return r;
    cause = make_cause(sweep, s->trials);
    if (!cause)
        return -ENOMEM;
    if (ps->json)
        return pl_plstat_document(ps, pl_plstat_json_why(sweep, s->trials, cause));
    return print(ps, sweep, s->trials, failures, cause);
}

static int report_run(struct pl_plstat *ps, const struct pl_run_status *s)
{
    const struct pl_trial_status *ts;
    struct failures failures;

    ts = first_failure(s, &failures);
    ps->any_failure |= ts != NULL;
    if (ts)
        return report_failure(ps, s, ts->trial, &failures);
    if (ps->json)
        return pl_plstat_document(ps,
                                  pl_plstat_json_why(s, s->n_trials == 1 ? s->trials : NULL, NULL));
    return print_none(ps, s);
}

int pl_cmd_why(struct pl_plstat *ps, struct pl_error *err)
{
    static const struct pl_job_report report = {.run = report_run, .slurm_job = report_slurm_job};

    return pl_plstat_report_job(ps, &report, err);
}
