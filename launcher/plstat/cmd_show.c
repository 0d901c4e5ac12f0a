/* SPDX-License-Identifier: MIT */
/* plstat show JOB: the ranks. Equal ranks share a line (fold.h). */
#include "common/base/fs.h"
#include "common/proto/json.h"
#include "common/run/rank_state.h"
#include "common/run/run_state.h"
#include "common/run/run_tasks.h"
#include "launcher/plstat/fold.h"
#include "launcher/plstat/gpu_use.h"
#include "launcher/plstat/gpus.h"
#include "launcher/plstat/plstat.h"
#include "launcher/plstat/plstat_json.h"
#include "launcher/plstat/rank_facts.h"
#include "launcher/plstat/releases.h"
#include "launcher/plstat/stalls.h"
#include "launcher/plstat/table.h"
#include "launcher/plstat/words.h"

#include <math.h>
#include <string.h>

#define METRICS_MAX 3

/* "123_4 lr-x3/4  running 0:32  12 nodes 12 ranks  attempt 1" */
static int
add_head(struct pl_plstat *ps, const struct pl_run_status *s, const struct pl_trial_status *ts)
{
    size_t nodes = json_array_size(json_object_get(ts->doc, "nodes"));
    size_t ranks = json_array_size(json_object_get(ts->doc, "ranks"));
    _cleanup_(pl_buf_finish) struct pl_buf line = {0};
    double until = pl_trial_status_until(ts);
    char duration[32], name[PL_WORDS_NAME_MAX];
    int r;

    pl_words_trial(s->run, ts->trial, name, sizeof(name));
    pl_words_duration(until - ts->started_s, duration, sizeof(duration));
    r = pl_buf_addf(&line, "%s%s%s  %s", ts->job, *ts->job ? "  " : "", name,
                    pl_trial_state_name(ts->state));
    if (r == 0 && ts->started_s > 0 && ts->state != PL_TRIAL_WAITING)
        r = pl_buf_addf(&line, " %s%s", ts->state == PL_TRIAL_RUNNING ? "" : "after ", duration);
    if (r == 0 && ranks)
        r = pl_buf_addf(&line, "  %zu node%s %zu rank%s", nodes, nodes == 1 ? "" : "s", ranks,
                        ranks == 1 ? "" : "s");
    if (r == 0)
        r = pl_buf_adds(&line, "  ");
    if (r == 0)
        r = pl_words_attempt(ts, &line);
    return r < 0 ? r : pl_plstat_line(ps, PL_TERM_BOLD, "%s", pl_buf_str(&line));
}

static int add_params(struct pl_plstat *ps, const struct pl_trial_status *ts)
{
    _cleanup_(pl_buf_finish) struct pl_buf line = {0};
    const char *key;
    json_t *value;
    int r = 0;

    json_object_foreach (ts->params, key, value) {
        if (r == 0)
            r = pl_buf_addf(&line, " %s=%s", key, json_string_value(value));
    }
    return r < 0 || !line.len ? r : pl_plstat_line(ps, PL_TERM_PLAIN, "with%s", pl_buf_str(&line));
}

/* Adds the source and age of the ranks, or the reason why there are none. */
static int add_origin(struct pl_plstat *ps, const struct pl_trial_status *ts)
{
    bool ranks = json_array_size(json_object_get(ts->doc, "ranks")) > 0;

    if (ts->state == PL_TRIAL_WAITING && ts->slurm)
        return pl_plstat_line(ps, PL_TERM_PLAIN, "waits in Slurm's queue: %s",
                              ts->slurm->reason ? ts->slurm->reason : "no reason yet");
    if (ts->state == PL_TRIAL_WAITING)
        return pl_plstat_line(ps, PL_TERM_PLAIN, "%s",
                              ts->submitted ? "has not started yet" : "is not submitted yet");
    if (ts->state == PL_TRIAL_RUNNING && ts->source == PL_SOURCE_HUB)
        return pl_plstat_line(ps, PL_TERM_DIM, "live, from the hub");
    if (ts->state == PL_TRIAL_RUNNING && ts->source == PL_SOURCE_STATUS)
        return pl_plstat_line(ps, PL_TERM_YELLOW, "as of %.0f s ago, from status.json", ts->age_s);
    if (!ranks && ts->state == PL_TRIAL_RUNNING)
        return pl_plstat_line(ps, PL_TERM_PLAIN, "no rank has started yet");
    if (!ranks)
        return pl_plstat_line(ps, PL_TERM_PLAIN, "no data about its ranks");
    return 0;
}

static int add_program(struct pl_plstat *ps, const struct pl_trial_status *ts)
{
    const char *program = pl_json_string(ts->doc, "program");
    _cleanup_free_ char *line = program ? pl_strf("program %s", program) : NULL;

    if (!program)
        return 0;
    return line ? pl_plstat_text(ps, 0, line) : -ENOMEM;
}

/* ---- ranks ---- */

static const char *text_of(const json_t *rank, const char *key)
{
    const char *s = pl_json_string(rank, key);

    return s ? s : "";
}

/* Formats "0.64" or, if the ranks differ, "0.64..0.66". */
static void metric_range(const struct pl_fold_group *g, const char *name, char *ret, size_t size)
{
    char low_text[32], high_text[32];
    double low = NAN, high = NAN, v;

    for (size_t i = 0; i < g->n; i++) {
        json_t *value = json_object_get(json_object_get(g->ranks[i], "metrics"), name);

        if (!value || pl_run_state_number(value, &v) < 0)
            continue;
        if (isnan(v) || isnan(low)) { /* NaN has precedence: it is a failure */
            low = high = v;
            if (isnan(v))
                break;
            continue;
        }
        low = fmin(low, v);
        high = fmax(high, v);
    }
    pl_words_number(low, low_text, sizeof(low_text));
    pl_words_number(high, high_text, sizeof(high_text));
    if (strcmp(low_text, high_text) == 0)
        snprintf(ret, size, "%s", low_text);
    else
        snprintf(ret, size, "%s..%s", low_text, high_text);
}

static int add_metric(struct pl_buf *line, const struct pl_fold_group *g, const char *name)
{
    char range[80];

    metric_range(g, name, range, sizeof(range));
    return pl_buf_addf(line, "%s%s %s", line->len ? "  " : "", name, range);
}

/* Adds the objective, then the other metrics of the group's first rank that has any. */
static void add_metrics(struct pl_table *t, const struct pl_fold_group *g, const char *objective)
{
    _cleanup_(pl_buf_finish) struct pl_buf line = {0};
    const json_t *with = NULL;
    const char *name;
    json_t *value;
    size_t n = 0;
    int r = 0;

    for (size_t i = 0; i < g->n; i++) {
        const json_t *metrics = json_object_get(g->ranks[i], "metrics");

        if (!with && json_object_size(metrics) > 0)
            with = metrics;
        if (n == 0 && objective && json_object_get(metrics, objective)) {
            r = add_metric(&line, g, objective);
            n++;
        }
    }
    json_object_foreach ((json_t *)with, name, value) {
        if (r < 0 || n == METRICS_MAX)
            break;
        if (objective && strcmp(name, objective) == 0)
            continue;
        r = add_metric(&line, g, name);
        n++;
    }
    t->failed |= r < 0;
    pl_table_cell(t, PL_TERM_PLAIN, pl_buf_str(&line));
}

static void add_step(struct pl_table *t, const struct pl_fold_group *g)
{
    int64_t low = INT64_MAX, high = -1, v;

    for (size_t i = 0; i < g->n; i++)
        if (pl_json_int(g->ranks[i], "step", &v) == 0) {
            low = PL_MIN(low, v);
            high = PL_MAX(high, v);
        }
    if (high < 0)
        pl_table_cell(t, PL_TERM_PLAIN, NULL);
    else if (low == high)
        pl_table_cellf(t, PL_TERM_PLAIN, "%lld", (long long)low);
    else
        pl_table_cellf(t, PL_TERM_PLAIN, "%lld-%lld", (long long)low, (long long)high);
}

static int add_names(struct pl_table *t, const struct pl_fold_group *g)
{
    _cleanup_free_ const char **nodes = calloc(g->n + 1, sizeof(*nodes));
    _cleanup_free_ int64_t *numbers = calloc(g->n + 1, sizeof(*numbers));
    _cleanup_(pl_buf_finish) struct pl_buf text = {0};
    int r;

    if (!nodes || !numbers)
        return -ENOMEM;
    for (size_t i = 0; i < g->n; i++) {
        if (pl_json_int(g->ranks[i], "rank", &numbers[i]) < 0)
            numbers[i] = -1;
        nodes[i] = text_of(g->ranks[i], "node");
    }
    r = pl_tasks_format(numbers, g->n, &text);
    if (r < 0)
        return r;
    pl_table_cell(t, PL_TERM_PLAIN, pl_buf_str(&text));
    pl_buf_consume(&text, text.len);
    r = pl_words_nodes(nodes, g->n, &text);
    pl_table_cell(t, PL_TERM_PLAIN, pl_buf_str(&text));
    return r;
}

static enum pl_term_style rank_style(const char *state)
{
    static const enum pl_term_style styles[] = {
        [PL_RANK_STARTING] = PL_TERM_DIM,  [PL_RANK_RUNNING] = PL_TERM_CYAN,
        [PL_RANK_DONE] = PL_TERM_GREEN,    [PL_RANK_FAILED] = PL_TERM_RED,
        [PL_RANK_KILLED] = PL_TERM_YELLOW, [PL_RANK_LOST] = PL_TERM_RED,
        [PL_RANK_UNKNOWN] = PL_TERM_DIM,
    };

    return styles[pl_rank_state_parse(state)];
}

static int add_group(struct pl_table *t,
                     const struct pl_run_status *s,
                     const struct pl_fold_group *g,
                     const struct pl_trial_status *ts,
                     bool gpus)
{
    const json_t *cause = ts->cause;
    const json_t *first = g->ranks[0];
    bool culprit = cause && g->n == 1 && json_is_integer(json_object_get(cause, "rank")) &&
                   json_equal(json_object_get(cause, "rank"), json_object_get(first, "rank"));
    char status[96];
    int64_t pid;
    int r = add_names(t, g);

    if (g->n == 1 && pl_json_int(first, "pid", &pid) == 0)
        pl_table_cellf(t, PL_TERM_PLAIN, "%lld", (long long)pid);
    else
        pl_table_cell(t, PL_TERM_PLAIN, NULL);
    pl_table_cell(t, rank_style(text_of(first, "state")), text_of(first, "state"));
    add_step(t, g);
    if (gpus)
        pl_gpus_cells(t, ts->doc, g);
    add_metrics(t, g, s->objective);
    pl_words_exit_short(first, status, sizeof(status));
    pl_table_cell(t, PL_TERM_PLAIN, status);
    pl_table_cell(t, culprit ? PL_TERM_RED : PL_TERM_DIM,
                  culprit ? "cause" : text_of(first, "role"));
    return r;
}

static int
add_ranks(struct pl_plstat *ps, const struct pl_run_status *s, const struct pl_trial_status *ts)
{
    _cleanup_(pl_table_finish) struct pl_table t = {0};
    struct pl_fold fold = {0};
    bool gpus = pl_gpus_known(ts->doc);
    int r = pl_fold_ranks(ts->doc, ps->all, &fold, NULL);

    if (r < 0 || fold.n == 0) {
        pl_fold_finish(&fold);
        return r;
    }
    pl_table_column(&t, "RANK", true, true);
    pl_table_column(&t, "NODE", false, true);
    pl_table_column(&t, "PID", true, false);
    pl_table_column(&t, "STATE", false, false);
    pl_table_column(&t, "STEP", true, false);
    if (gpus)
        pl_gpus_columns(&t);
    pl_table_column(&t, "METRICS", false, true);
    pl_table_column(&t, "END", false, true);
    pl_table_column(&t, "ROLE", false, true);
    for (size_t i = 0; r == 0 && i < fold.n; i++)
        r = add_group(&t, s, &fold.groups[i], ts, gpus);
    pl_fold_finish(&fold);
    return r < 0 ? r : pl_table_print(&t, ps->columns, ps->color, &ps->text);
}

static int
print_trial(struct pl_plstat *ps, const struct pl_run_status *s, const struct pl_trial_status *ts)
{
    _cleanup_(pl_buf_finish) struct pl_buf cause = {0};
    char name[PL_WORDS_NAME_MAX];
    int r = add_head(ps, s, ts);

    if (r == 0)
        r = add_params(ps, ts);
    if (r == 0)
        r = add_origin(ps, ts);
    if (r == 0)
        r = pl_plstat_earlier(ps, ts);
    if (r == 0)
        r = add_program(ps, ts);
    if (r == 0)
        r = add_ranks(ps, s, ts);
    if (r == 0)
        r = pl_gpus_print(ps, ts->doc, ts->state == PL_TRIAL_RUNNING, -1);
    if (r == 0 && ts->state == PL_TRIAL_RUNNING)
        r = pl_gpu_use_print(ps, ts->doc);
    if (r == 0)
        r = pl_stalls_print(ps, s, ts);
    if (r == 0)
        r = pl_releases_print(ps, ts->doc);
    if (r == 0)
        r = pl_rank_facts_print(ps, ts->doc);
    if (r == 0)
        r = pl_plstat_node_reasons(ps, ts);
    if (r == 0 && ts->cause)
        r = pl_words_cause(ts->cause, &cause);
    if (r == 0 && ts->cause)
        r = pl_plstat_line(ps, PL_TERM_RED, "! %s", pl_buf_str(&cause));
    pl_words_trial(s->run, ts->trial, name, sizeof(name));
    if (r == 0 && ts->cause)
        r = pl_plstat_line(ps, PL_TERM_PLAIN, "-> plstat why %s", name);
    return r;
}

/* Prints all trials that have started, or the one asked for. */
static int print(struct pl_plstat *ps, const struct pl_run_status *s)
{
    size_t shown = 0;
    int r = 0;

    for (size_t i = 0; r == 0 && i < s->n_trials; i++) {
        const struct pl_trial_status *ts = &s->trials[i];

        if (s->n_trials > 1 && !ts->doc && !pl_trial_state_is_failure(ts->state))
            continue;
        if (shown++)
            r = pl_buf_addc(&ps->text, '\n');
        if (r == 0)
            r = print_trial(ps, s, ts);
    }
    if (r == 0 && shown < s->n_trials)
        r = pl_plstat_line(ps, PL_TERM_DIM, "%zu of %zu trials have no ranks: plstat sweep %s",
                           s->n_trials - shown, s->n_trials, pl_run_sweep(s->run));
    return r;
}

/* ---- a job that has no run folder ---- */

static int print_slurm(struct pl_plstat *ps, const struct pl_slurm_job *job)
{
    enum pl_trial_state state = pl_slurm_trial_state(job);
    char id[64];
    int r;

    pl_slurm_job_id(job, id, sizeof(id));
    r = pl_plstat_line(ps, PL_TERM_BOLD, "%s  %s  %s  %lld node%s%s%s", id,
                       job->name ? job->name : "", pl_trial_state_name(state),
                       (long long)job->n_nodes, job->n_nodes == 1 ? "" : "s",
                       job->nodes ? "  " : "", job->nodes ? job->nodes : "");
    if (r == 0 && state == PL_TRIAL_WAITING)
        r = pl_plstat_line(ps, PL_TERM_PLAIN, "waits in Slurm's queue: %s",
                           job->reason ? job->reason : "no reason yet");
    if (r == 0 && pl_slurm_state_final(job->state) && job->signal >= 0)
        r = pl_plstat_line(ps, PL_TERM_PLAIN, "ended as %s, signal %lld", job->state,
                           (long long)job->signal);
    else if (r == 0 && pl_slurm_state_final(job->state))
        r = pl_plstat_line(ps, PL_TERM_PLAIN, "ended as %s, exit %lld", job->state,
                           (long long)job->exit);
    return r;
}

static int report_slurm_job(struct pl_plstat *ps, const struct pl_slurm_job *job)
{
    json_t *doc;

    if (pl_slurm_trial_state(job) != PL_TRIAL_WAITING)
        pl_plstat_note_slurm_only(ps, true);
    if (!ps->json)
        return print_slurm(ps, job);
    doc = pl_plstat_json_slurm_job(job);
    if (doc && json_object_set_new(doc, "ranks", json_array()) < 0)
        json_decref(PL_TAKE(doc));
    return pl_plstat_document(ps, doc);
}

static int report_run(struct pl_plstat *ps, const struct pl_run_status *s)
{
    return ps->json ? pl_plstat_document(ps, pl_plstat_json_show(s)) : print(ps, s);
}

int pl_cmd_show(struct pl_plstat *ps, struct pl_error *err)
{
    static const struct pl_job_report report = {
        .ranks = true, .run = report_run, .slurm_job = report_slurm_job};

    return pl_plstat_report_job(ps, &report, err);
}
