/* SPDX-License-Identifier: MIT */
/* plstat sweep SWEEP: the trials with parameters, state and objective. */
#include "common/base/fs.h"
#include "common/proto/json.h"
#include "common/run/run_end.h"
#include "common/run/run_state.h"
#include "launcher/plstat/plstat.h"
#include "launcher/plstat/plstat_json.h"
#include "launcher/plstat/table.h"
#include "launcher/plstat/words.h"

#include <math.h>
#include <string.h>

#define PARAM_COLUMNS_MAX 12
#define METRIC_COLUMNS_MAX 6
#define CAUSE_LINES_MAX 5

static void count(const struct pl_run_status *s, size_t *counts)
{
    for (size_t i = 0; i < s->n_trials; i++)
        counts[s->trials[i].state]++;
}

/* "9 trials: 7 done 1 failed 1 waiting" */
static int add_counts(const struct pl_run_status *s, struct pl_buf *out)
{
    size_t counts[PL_TRIAL_NODE_FAILED + 1] = {0};
    int r = pl_buf_addf(out, "%zu trial%s:", s->n_trials, s->n_trials == 1 ? "" : "s");

    count(s, counts);
    for (size_t i = 0; r == 0 && i < PL_COUNT(counts); i++)
        if (counts[i])
            r = pl_buf_addf(out, " %zu %s", counts[i], pl_trial_state_name((enum pl_trial_state)i));
    return r;
}

static int add_head(struct pl_plstat *ps, const struct pl_run_status *s)
{
    _cleanup_(pl_buf_finish) struct pl_buf line = {0};
    int r = pl_buf_addf(&line, "%s  %s  ", pl_run_sweep(s->run), pl_sweep_state_name(s->state));

    if (r == 0)
        r = add_counts(s, &line);
    if (r == 0 && s->objective)
        r = pl_buf_addf(&line, "   %s %s", s->maximize ? "max" : "min", s->objective);
    return r < 0 ? r : pl_plstat_line(ps, PL_TERM_BOLD, "%s", pl_buf_str(&line));
}

static void add_columns(const struct pl_run_status *s, struct pl_table *t, size_t n_axes)
{
    pl_table_column(t, "TRIAL", true, false);
    for (size_t i = 0; i < n_axes; i++)
        pl_table_column(t, pl_run_axis(s->run, i), false, true);
    pl_table_column(t, "STATE", false, false);
    pl_table_column(t, "JOB", false, false);
    pl_table_column(t, "TRY", true, false);
    pl_table_column(t, "STEP", true, false);
    pl_table_column(t, s->objective ? s->objective : "OBJECTIVE", true, true);
    pl_table_column(t, "TIME", true, false);
    pl_table_column(t, "NOTE", false, true);
}

/* The metrics other than the objective that have a column. */
static size_t other_metrics(const struct pl_run_status *s, const char **ret)
{
    const char *name;
    json_t *value;
    size_t n = 0;

    json_object_foreach (s->reported, name, value)
        if (n < METRIC_COLUMNS_MAX && (!s->objective || strcmp(name, s->objective) != 0))
            ret[n++] = name;
    return n;
}

/* The last value of a metric in a trial; false: none. */
static bool last_value(const struct pl_trial_status *ts, const char *name, double *ret)
{
    json_t *value = json_object_get(json_object_get(ts->result, "metrics"), name);

    if (!ts->result)
        value = pl_run_state_metric(ts->doc, name);
    return value && pl_run_state_number(value, ret) == 0;
}

static void add_metrics(const struct pl_trial_status *ts,
                        const char *const *names,
                        size_t n,
                        struct pl_table *t)
{
    for (size_t i = 0; i < n; i++) {
        char text[64] = "";
        double value;

        if (last_value(ts, names[i], &value))
            pl_words_number(value, text, sizeof(text));
        pl_table_cell(t, PL_TERM_DIM, text);
    }
}

static const char *note_of(const struct pl_trial_status *ts, char *buf, size_t size)
{
    if (ts->state == PL_TRIAL_WAITING && !ts->submitted)
        return "not submitted";
    if (ts->state == PL_TRIAL_WAITING && ts->slurm)
        return ts->slurm->reason;
    if (ts->state == PL_TRIAL_RUNNING && ts->source == PL_SOURCE_STATUS) {
        snprintf(buf, size, "%.0f s ago", ts->age_s);
        return buf;
    }
    return NULL;
}

static void add_row(const struct pl_run_status *s,
                    const struct pl_trial_status *ts,
                    struct pl_table *t,
                    size_t n_axes)
{
    bool best = s->best >= 0 && ts == &s->trials[s->best];
    enum pl_term_style plain = best ? PL_TERM_BOLD : PL_TERM_PLAIN;
    double until = pl_trial_status_until(ts);
    char text[64] = "";

    pl_table_cellf(t, plain, "%u", ts->trial);
    for (size_t i = 0; i < n_axes; i++)
        pl_table_cell(t, plain, pl_json_string(ts->params, pl_run_axis(s->run, i)));
    pl_table_cell(t, pl_words_trial_style(ts->state), pl_trial_state_name(ts->state));
    pl_table_cell(t, PL_TERM_PLAIN, ts->job);
    pl_table_cellf(t, PL_TERM_PLAIN, ts->attempts > 1 ? "%u" : "%.0u",
                   ts->attempts > 1 ? ts->attempts : 0);
    pl_table_cellf(t, PL_TERM_PLAIN, ts->step >= 0 ? "%lld" : "%.0lld",
                   (long long)(ts->step >= 0 ? ts->step : 0));
    if (!isnan(ts->objective))
        pl_words_number(ts->objective, text, sizeof(text));
    pl_table_cellf(t, plain, "%s%s", text, best ? "*" : s->best >= 0 && *text ? " " : "");
    pl_words_duration(ts->started_s > 0 ? until - ts->started_s : -1, text, sizeof(text));
    pl_table_cell(t, PL_TERM_PLAIN, ts->started_s > 0 && ts->state != PL_TRIAL_WAITING ? text : "");
    pl_table_cell(t, PL_TERM_DIM, note_of(ts, text, sizeof(text)));
}

/* Adds the failures below the table, cancelled trials last, and the command that explains them. */
static int add_causes(struct pl_plstat *ps, const struct pl_run_status *s)
{
    size_t bad = 0;
    int r = 0;

    for (size_t i = 0; r == 0 && i < 2 * s->n_trials; i++) {
        const struct pl_trial_status *ts = &s->trials[i % s->n_trials];
        bool cancelled = ts->state == PL_TRIAL_CANCELLED;
        _cleanup_(pl_buf_finish) struct pl_buf cause = {0};

        if (cancelled != (i >= s->n_trials) || !pl_trial_state_is_failure(ts->state) ||
            ++bad > CAUSE_LINES_MAX)
            continue;
        r = pl_words_failure(ts, &cause);
        if (r == 0 && ts->unstarted)
            r = pl_buf_adds(&cause, "; ");
        if (r == 0)
            r = pl_words_earlier(ts, &cause);
        if (r == 0)
            r = pl_plstat_line(ps, PL_TERM_RED, "! trial %u %s", ts->trial, pl_buf_str(&cause));
    }
    if (r == 0 && bad > CAUSE_LINES_MAX)
        r = pl_plstat_line(ps, PL_TERM_RED, "! %zu more", bad - CAUSE_LINES_MAX);
    if (r == 0 && bad)
        r = pl_plstat_line(ps, PL_TERM_PLAIN, "-> plstat why %s", pl_run_sweep(s->run));
    return r;
}

static int add_best(struct pl_plstat *ps, const struct pl_run_status *s)
{
    const struct pl_trial_status *ts;
    _cleanup_(pl_buf_finish) struct pl_buf params = {0};
    const char *key;
    json_t *value;
    char number[48];
    int r = 0;

    if (s->best < 0)
        return 0;
    ts = &s->trials[s->best];
    pl_words_number(s->best_value, number, sizeof(number));
    json_object_foreach (ts->params, key, value) {
        if (r == 0)
            r = pl_buf_addf(&params, " %s=%s", key, json_string_value(value));
    }
    if (r < 0)
        return r;
    return pl_plstat_line(ps, PL_TERM_GREEN, "* best: trial %u, %s %s:%s", ts->trial, s->objective,
                          number, pl_buf_str(&params));
}

/* Says how the command of --on-end ended. It changes no trial's verdict. */
static int add_on_end(struct pl_plstat *ps, const struct pl_run_status *s)
{
    bool over = s->state != PL_SWEEP_WAITING && s->state != PL_SWEEP_RUNNING;
    _cleanup_(pl_buf_finish) struct pl_buf text = {0};
    int r = pl_run_end_text(s->run, over, &text);

    return r == 0 && text.len ? pl_plstat_line(ps, PL_TERM_RED, "! %s", pl_buf_str(&text)) : r;
}

static int print(struct pl_plstat *ps, const struct pl_run_status *s)
{
    _cleanup_(pl_table_finish) struct pl_table table = {0};
    size_t n_axes = PL_MIN(pl_run_n_axes(s->run), (size_t)PARAM_COLUMNS_MAX), n;
    const char *metrics[METRIC_COLUMNS_MAX];
    int r = add_head(ps, s);

    if (r < 0)
        return r;
    add_columns(s, &table, n_axes);
    n = other_metrics(s, metrics);
    for (size_t i = 0; i < n; i++)
        pl_table_spare_column(&table, metrics[i]);
    for (size_t i = 0; i < s->n_trials; i++) {
        add_row(s, &s->trials[i], &table, n_axes);
        add_metrics(&s->trials[i], metrics, n, &table);
    }
    r = pl_table_print(&table, ps->columns, ps->color, &ps->text);
    if (r == 0)
        r = add_causes(ps, s);
    if (r == 0 && s->missing)
        r = pl_plstat_line(ps, PL_TERM_RED, "! %s", s->missing);
    if (r == 0)
        r = add_on_end(ps, s);
    return r < 0 ? r : add_best(ps, s);
}

static int report_run(struct pl_plstat *ps, const struct pl_run_status *s)
{
    return ps->json ? pl_plstat_document(ps, pl_plstat_json_sweep(s, true)) : print(ps, s);
}

int pl_cmd_sweep(struct pl_plstat *ps, struct pl_error *err)
{
    static const struct pl_job_report report = {.settle = true, .run = report_run};

    return pl_plstat_report_job(ps, &report, err);
}
