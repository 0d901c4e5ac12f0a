/* SPDX-License-Identifier: MIT */
/* plstat: the user's sweeps and jobs. It shows sweeps that have not ended or were submitted within
 * RECENT_S, and jobs that have not ended; with --all it shows all. */
#include "common/base/fs.h"
#include "common/base/parse.h"
#include "common/proto/json.h"
#include "common/run/run_index.h"
#include "launcher/plstat/plstat.h"
#include "launcher/plstat/plstat_json.h"
#include "launcher/plstat/table.h"
#include "launcher/plstat/words.h"
#include "launcher/slurm/slurm_cluster.h"

#include <math.h>
#include <string.h>

#define RECENT_S 86400.0
#define CAUSE_LINES_MAX 3

struct list {
    struct pl_plstat *ps;
    const struct pl_slurm_jobs *jobs; /* NULL: Slurm cannot be asked */
    json_t *arrays;                   /* job number -> sweep, for all runs of this cluster */
    char *cluster;                    /* this one; NULL: not known */
    struct pl_table table;
    json_t *sweeps;       /* for --json */
    struct pl_buf causes; /* lines below the table, each with a NUL */
    size_t n_causes, n_shown;
    struct pl_error *err;
};

/* True if one of the run's arrays is in Slurm's list and has not ended. */
static bool has_active_job(const struct list *l, const json_t *jobs)
{
    const json_t *job;
    size_t i;

    json_array_foreach (jobs, i, job) {
        int64_t number;

        if (!json_is_string(job) ||
            pl_parse_int(json_string_value(job), 1, UINT32_MAX, &number, NULL) < 0)
            continue;
        for (size_t k = 0; l->jobs && k < l->jobs->n_jobs; k++) {
            const struct pl_slurm_job *j = &l->jobs->jobs[k];

            if ((j->array ? j->array : j->id) == number && !pl_slurm_state_final(j->state))
                return true;
        }
    }
    return false;
}

static int add_causes(struct list *l, const struct pl_run_status *s)
{
    for (size_t i = 0; i < s->n_trials && l->n_causes < CAUSE_LINES_MAX; i++) {
        const struct pl_trial_status *ts = &s->trials[i];
        _cleanup_(pl_buf_finish) struct pl_buf cause = {0};
        char name[PL_WORDS_NAME_MAX];
        int r;

        if (!pl_trial_state_is_failure(ts->state) || !ts->cause)
            continue;
        pl_words_trial(s->run, ts->trial, name, sizeof(name));
        r = pl_words_failure(ts, &cause);
        if (r == 0)
            r = pl_buf_addf(&l->causes, "! %s %s", name, pl_buf_str(&cause));
        if (r == 0)
            r = pl_buf_add(&l->causes, "", 1); /* NUL ends a line: causes may have newlines */
        if (r < 0)
            return r;
        l->n_causes++;
    }
    return 0;
}

/* Adds "3 running 1 failed": the counts of the states that have no column. */
static void add_note(struct list *l, const struct pl_run_status *s)
{
    static const enum pl_trial_state shown[] = {
        PL_TRIAL_RUNNING,     PL_TRIAL_WAITING,   PL_TRIAL_FAILED,
        PL_TRIAL_TIMED_OUT,   PL_TRIAL_LOST,      PL_TRIAL_CANCELLED,
        PL_TRIAL_NODE_FAILED, PL_TRIAL_PREEMPTED, PL_TRIAL_PRUNED,
    };
    _cleanup_(pl_buf_finish) struct pl_buf note = {0};

    for (size_t i = 0; i < PL_COUNT(shown); i++) {
        size_t n = 0;

        for (size_t k = 0; k < s->n_trials; k++)
            n += s->trials[k].state == shown[i];
        if (n && pl_buf_addf(&note, "%s%zu %s", note.len ? " " : "", n,
                             pl_trial_state_name(shown[i])) < 0)
            l->table.failed = true;
    }
    pl_table_cell(&l->table, PL_TERM_PLAIN, pl_buf_str(&note));
}

static void add_sweep_row(struct list *l, const struct pl_run_status *s)
{
    size_t n = pl_run_n_submissions(s->run), done = 0;
    double started = 0, ended = 0, now = 0;
    char number[48] = "", duration[32];

    for (size_t i = 0; i < s->n_trials; i++) {
        const struct pl_trial_status *ts = &s->trials[i];

        done += ts->state == PL_TRIAL_DONE || ts->state == PL_TRIAL_PRUNED;
        if (ts->started_s > 0 && (started <= 0 || ts->started_s < started))
            started = ts->started_s;
        ended = PL_MAX(ended, ts->ended_s);
        if (ts->state == PL_TRIAL_RUNNING)
            now = PL_MAX(now, pl_trial_status_until(ts));
    }
    if (s->state == PL_SWEEP_RUNNING || ended <= 0)
        ended = now > 0 ? now : pl_wall_s();
    pl_table_cellf(&l->table, PL_TERM_PLAIN, n > 1 ? "%s+" : "%s",
                   n ? pl_run_submission(s->run, 0).job : "");
    pl_table_cell(&l->table, PL_TERM_PLAIN, pl_run_sweep(s->run));
    pl_table_cell(&l->table, pl_words_sweep_style(s->state), pl_sweep_state_name(s->state));
    pl_table_cellf(&l->table, PL_TERM_PLAIN, "%zu/%zu", done, s->n_trials);
    if (s->best >= 0)
        pl_words_number(s->best_value, number, sizeof(number));
    pl_table_cellf(&l->table, PL_TERM_PLAIN, "%s%s%s", s->best >= 0 ? s->objective : "",
                   s->best >= 0 ? " " : "", number);
    pl_words_duration(started > 0 ? ended - started : -1, duration, sizeof(duration));
    pl_table_cell(&l->table, PL_TERM_PLAIN, started > 0 ? duration : "");
    add_note(l, s);
}

static int add_run(struct list *l, struct pl_run *run)
{
    _cleanup_(pl_run_status_destroyp) struct pl_run_status *s = NULL;
    int r = pl_run_status_collect(run, -1, false, &l->ps->slurm, &s, &l->ps->notes, l->err);

    if (r < 0)
        return r;
    l->n_shown++;
    for (size_t i = 0; i < s->n_trials; i++)
        l->ps->any_failure |= pl_trial_state_is_failure(s->trials[i].state);
    l->ps->any_failure |= s->missing != NULL;
    if (l->ps->json) {
        json_t *o = pl_plstat_json_sweep(s, false);

        return !o || json_array_append_new(l->sweeps, o) < 0 ? -ENOMEM : 0;
    }
    add_sweep_row(l, s);
    return add_causes(l, s);
}

static int each_run(void *ctx, const char *sweep, const char *folder, json_t *line)
{
    struct list *l = ctx;
    json_t *jobs = json_object_get(line, "jobs"), *job;
    double time_s = json_number_value(json_object_get(line, "time"));
    _cleanup_(pl_run_closep) struct pl_run *run = NULL;
    const char *cluster = l->cluster ? pl_json_string(line, "cluster") : NULL;
    bool ours = !cluster || strcmp(cluster, l->cluster) == 0;
    struct pl_error err = {0};
    size_t i;
    int r;

    json_array_foreach (jobs, i, job) {
        if (ours && json_is_string(job) && !json_object_get(l->arrays, json_string_value(job)) &&
            json_object_set_new(l->arrays, json_string_value(job), json_string(sweep)) < 0)
            return -ENOMEM;
    }
    if (!l->ps->all && pl_wall_s() - time_s > RECENT_S && !(ours && has_active_job(l, jobs)))
        return 0;
    r = pl_run_open(folder, &run, &err);
    if (r == -ENOMEM)
        return r;
    if (r < 0) {
        /* A deleted folder needs no note. */
        if (r != -ENOENT)
            pl_notes_add(&l->ps->notes, true, "%s", pl_error_text(&err));
        return 0;
    }
    return add_run(l, run);
}

/* ---- jobs without a run folder ---- */

static const char *sweep_of(const struct list *l, const struct pl_slurm_job *job)
{
    char number[24];

    snprintf(number, sizeof(number), "%lld", (long long)(job->array ? job->array : job->id));
    return pl_json_string(l->arrays, number);
}

static void add_job_row(struct list *l, const struct pl_slurm_job *job)
{
    enum pl_trial_state state = pl_slurm_trial_state(job);
    bool started = state != PL_TRIAL_WAITING && job->started > 0;
    double until = pl_slurm_state_final(job->state) ? (double)job->ended : pl_wall_s();
    char text[96];

    pl_slurm_job_id(job, text, sizeof(text));
    pl_table_cell(&l->table, PL_TERM_PLAIN, text);
    pl_table_cell(&l->table, PL_TERM_PLAIN, job->name);
    pl_table_cell(&l->table, pl_words_trial_style(state), pl_trial_state_name(state));
    pl_table_cell(&l->table, PL_TERM_PLAIN, NULL);
    pl_table_cell(&l->table, PL_TERM_PLAIN, NULL);
    pl_words_duration(until - (double)job->started, text, sizeof(text));
    pl_table_cell(&l->table, PL_TERM_PLAIN, started ? text : "");
    pl_table_cell(&l->table, PL_TERM_PLAIN, state == PL_TRIAL_WAITING ? job->reason : job->nodes);
}

static int add_jobs(struct list *l, json_t *out)
{
    for (size_t i = 0; l->jobs && i < l->jobs->n_jobs; i++) {
        const struct pl_slurm_job *job = &l->jobs->jobs[i];
        const char *sweep = sweep_of(l, job);
        json_t *o;

        if (job->past || (pl_slurm_state_final(job->state) && !l->ps->all))
            continue;
        if (!sweep) {
            l->n_shown++;
            l->ps->any_failure |= pl_trial_state_is_failure(pl_slurm_trial_state(job));
        }
        if (!l->ps->json) {
            if (!sweep)
                add_job_row(l, job);
            continue;
        }
        o = pl_plstat_json_slurm_job(job);
        if (!o || json_array_append_new(out, o) < 0 ||
            (sweep && json_object_set_new(o, "sweep", json_string(sweep)) < 0))
            return -ENOMEM;
    }
    return 0;
}

/* ---- the screen ---- */

static int print(struct list *l)
{
    struct pl_plstat *ps = l->ps;
    int r;

    if (l->n_shown == 0 && ps->notes.partial)
        return pl_plstat_line(ps, PL_TERM_PLAIN,
                              "no %ssweeps or jobs are known, but not all could be looked at",
                              ps->all ? "" : "recent ");
    if (l->n_shown == 0)
        return pl_plstat_line(ps, PL_TERM_PLAIN,
                              ps->all ? "no sweeps or jobs yet: see plsubmit --help"
                                      : "no recent sweeps or jobs: plstat --all lists older ones, "
                                        "plsubmit starts one");
    r = pl_table_print(&l->table, ps->columns, ps->color, &ps->text);
    for (size_t at = 0; r == 0 && at < l->causes.len; at += strlen(l->causes.data + at) + 1)
        r = pl_plstat_line(ps, PL_TERM_RED, "%s", l->causes.data + at);
    if (r == 0 && l->n_causes)
        r = pl_plstat_line(ps, PL_TERM_PLAIN, "-> plstat why JOB, plstat sweep SWEEP");
    return r;
}

static void add_columns(struct pl_table *t)
{
    pl_table_column(t, "JOB", false, true);
    pl_table_column(t, "NAME", false, true);
    pl_table_column(t, "STATE", false, false);
    pl_table_column(t, "DONE", true, false);
    pl_table_column(t, "BEST", false, true);
    pl_table_column(t, "TIME", true, false);
    pl_table_column(t, "NOTE", false, true);
}

static int collect(struct list *l)
{
    json_t *jobs = l->ps->json ? json_array() : NULL;
    int r;

    l->arrays = json_object();
    l->sweeps = json_array();
    if (!l->arrays || !l->sweeps || (l->ps->json && !jobs)) {
        json_decref(jobs);
        return -ENOMEM;
    }
    r = pl_run_index_each(each_run, l, l->err);
    if (r < 0 && r != -ENOMEM) {
        pl_notes_add(&l->ps->notes, true, "cannot read the index of runs: %s",
                     pl_error_text(l->err));
        r = 0;
    }
    if (r == 0)
        r = add_jobs(l, jobs);
    if (r == 0 && l->ps->json)
        r = pl_plstat_document(l->ps, json_pack("{s:O, s:O}", "sweeps", l->sweeps, "jobs", jobs));
    json_decref(jobs);
    return r < 0 || l->ps->json ? r : print(l);
}

int pl_cmd_list(struct pl_plstat *ps, struct pl_error *err)
{
    struct list l = {.ps = ps, .err = err};
    int r;

    l.cluster = pl_slurm_cluster();
    l.jobs = pl_slurm_view_get(&ps->slurm, geteuid());
    if (!l.jobs || l.jobs->stale)
        pl_notes_add(&ps->notes, true, "cannot ask Slurm: %s", pl_slurm_view_why(&ps->slurm));
    add_columns(&l.table);
    r = collect(&l);
    pl_table_finish(&l.table);
    pl_buf_finish(&l.causes);
    json_decref(l.arrays);
    free(l.cluster);
    json_decref(l.sweeps);
    return r == -ENOMEM ? pl_error_set(err, r, "out of memory") : r;
}
