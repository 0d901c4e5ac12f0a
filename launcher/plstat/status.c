/* SPDX-License-Identifier: MIT */
#include "launcher/plstat/status.h"
#include "common/base/fs.h"
#include "common/base/own.h"
#include "common/base/shared_fs.h"
#include "common/proto/json.h"
#include "common/run/cause.h"
#include "common/run/reported.h"
#include "common/run/run_local.h"
#include "common/run/run_state.h"
#include "common/run/run_stop.h"
#include "launcher/plstat/foreign.h"
#include "launcher/plstat/node_reasons.h"
#include "launcher/plstat/status_private.h"
#include "launcher/slurm/slurm_cluster.h"

#include <fcntl.h>
#include <math.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#define HUBS_LIMIT_MS 4000u
#define STATUS_FRESH_S 10.0 /* the hub writes status.json every 2 s: an older one is outdated */
#define SUBMISSION_SLACK_S                                                                         \
    5.0 /* only an answer this much later than a submission proves absence                         \
         */

static const char *const sweep_names[] = {
    [PL_SWEEP_WAITING] = "waiting", [PL_SWEEP_RUNNING] = "running",     [PL_SWEEP_DONE] = "done",
    [PL_SWEEP_FAILED] = "failed",   [PL_SWEEP_CANCELLED] = "cancelled",
};

static const char *const source_names[] = {
    [PL_SOURCE_NONE] = "none", [PL_SOURCE_HUB] = "hub",     [PL_SOURCE_STATUS] = "status.json",
    [PL_SOURCE_LOG] = "log",   [PL_SOURCE_SLURM] = "slurm",
};

const char *pl_sweep_state_name(enum pl_sweep_state state)
{
    return sweep_names[state];
}

const char *pl_source_name(enum pl_source source)
{
    return source_names[source];
}

void pl_run_status_destroy(struct pl_run_status *status)
{
    if (!status)
        return;
    for (size_t i = 0; i < status->n_trials; i++)
        pl_trial_status_finish(&status->trials[i]);
    free(status->trials);
    free(status->objective);
    free(status->missing);
    json_decref(status->reported);
    free(status);
}

void pl_slurm_view_finish(struct pl_slurm_view *view)
{
    pl_slurm_jobs_destroy(view->jobs);
    *view = (struct pl_slurm_view){.never = view->never};
}

const struct pl_slurm_jobs *pl_slurm_view_get(struct pl_slurm_view *view, uid_t uid)
{
    if (view->asked && view->uid != uid) {
        pl_error_set(&view->err, -EPERM, "cannot ask for the jobs of two users at once");
        return NULL;
    }
    if (!view->asked && !view->never)
        pl_slurm_jobs_get(uid, &view->jobs, &view->err);
    view->asked = true;
    view->uid = uid;
    return view->jobs;
}

const char *pl_slurm_view_why(const struct pl_slurm_view *view)
{
    return view->jobs && view->jobs->stale ? view->jobs->stale : pl_error_text(&view->err);
}

const struct pl_slurm_jobs *pl_slurm_view_renew(struct pl_slurm_view *view)
{
    double left_s = view->jobs ? view->jobs->answered_s + PL_SLURM_JOBS_AGE_S - pl_wall_s() : 0;
    struct timespec t;

    if (view->never)
        return view->jobs;
    left_s = PL_MIN(PL_MAX(left_s + 0.01, 0), PL_SLURM_JOBS_AGE_S);
    t = (struct timespec){(time_t)left_s, (long)((left_s - floor(left_s)) * 1e9)};
    while (nanosleep(&t, &t) < 0 && errno == EINTR)
        ;
    pl_slurm_view_finish(view);
    return pl_slurm_view_get(view, geteuid());
}

enum pl_sweep_state pl_sweep_state_of(const struct pl_trial_status *trials, size_t n)
{
    size_t waiting = 0, running = 0, done = 0, cancelled = 0;

    for (size_t i = 0; i < n; i++) {
        enum pl_trial_state s = trials[i].state;

        waiting += s == PL_TRIAL_WAITING;
        running += s == PL_TRIAL_RUNNING;
        done += s == PL_TRIAL_DONE || s == PL_TRIAL_PRUNED;
        cancelled += s == PL_TRIAL_CANCELLED;
    }
    if (waiting == n)
        return PL_SWEEP_WAITING;
    if (running || waiting)
        return PL_SWEEP_RUNNING;
    if (done == n)
        return PL_SWEEP_DONE;
    return done + cancelled == n ? PL_SWEEP_CANCELLED : PL_SWEEP_FAILED;
}

/* ---- hubs ---- */

/* Loads the key of a run, else the user's: steps without a sweep have no key. The user's greets no
 * address that somebody else may have written. */
static int load_key(const struct pl_run *run, unsigned char key[PL_KEY_SIZE], struct pl_error *err)
{
    _cleanup_free_ char *path = pl_run_key_path(run);
    _cleanup_close_ int fd = -EBADF;
    int r;

    if (!path)
        return -ENOMEM;
    if (access(path, F_OK) == 0 || errno != ENOENT)
        return pl_key_load(pl_run_dir(run), key, err);
    r = pl_own_folder_open(AT_FDCWD, pl_run_dir(run), &fd, err);
    return r < 0 ? r : pl_key_load(NULL, key, err);
}

static int ask_hubs(struct pl_run_status *s, struct pl_notes *notes)
{
    _cleanup_free_ struct pl_hub_query **queries = calloc(s->n_trials + 1, sizeof(*queries));
    unsigned char key[PL_KEY_SIZE];
    struct pl_error err = {0};
    size_t n = 0;
    int r;

    if (!queries)
        return -ENOMEM;
    for (size_t i = 0; i < s->n_trials; i++)
        if (s->trials[i].query)
            queries[n++] = s->trials[i].query;
    if (n == 0)
        return 0;
    r = load_key(s->run, key, &err);
    if (r == 0)
        pl_hub_query_all(queries, n, key, HUBS_LIMIT_MS);
    else
        for (size_t i = 0; i < n; i++)
            queries[i]->err = err;
    explicit_bzero(key, sizeof(key));
    return 0;
}

/* Reads a trial again if its hub does not answer: it may have ended since its address was read. */
static int reread_unanswered(struct pl_run_status *s, struct pl_notes *notes)
{
    for (size_t i = 0; i < s->n_trials; i++) {
        struct pl_trial_status *ts = &s->trials[i], again = {.trial = ts->trial};
        int r;

        if (!ts->query || ts->query->state)
            continue;
        r = pl_trial_status_read(s->run, &again, notes);
        if (r == 0 && (again.result || !again.query)) {
            struct pl_trial_status before = *ts;

            *ts = again;
            again = before;
        }
        pl_trial_status_finish(&again);
        if (r < 0)
            return r;
    }
    return 0;
}

/* Notes that the hub of a running trial did not answer. Data is missing only if status.json is
 * outdated. */
static void note_hub(const struct pl_trial_status *ts, struct pl_notes *notes)
{
    bool suspended = ts->slurm && strcmp(ts->slurm->state, "SUSPENDED") == 0; /* the hub, too */

    if (ts->source != PL_SOURCE_STATUS || !ts->query || ts->state != PL_TRIAL_RUNNING)
        return;
    pl_notes_add(notes, ts->age_s > STATUS_FRESH_S,
                 "%s: %s: shown as of %.0f s ago, from status.json", ts->job,
                 suspended ? "Slurm has suspended the job" : pl_error_text(&ts->query->err),
                 ts->age_s);
}

/* A step's folder on a full disk may lack the number of its job, which Slurm would be asked for. */
static void
note_no_job(const struct pl_run *run, const struct pl_trial_status *ts, struct pl_notes *notes)
{
    if (ts->state == PL_TRIAL_RUNNING && !ts->submitted && !ts->query && !pl_run_is_local(run))
        pl_notes_add(notes, true,
                     "trial %u: the run folder has no record of its job: whether it still runs is "
                     "not known",
                     ts->trial);
}

/* ---- logs ---- */

/* Reads the ranks from the log. -ENOENT without a log. */
static int load_log(const struct pl_run *run, struct pl_trial_status *ts, struct pl_error *err)
{
    _cleanup_free_ char *dir = pl_run_attempt_path(run, ts->trial, ts->attempts - 1, NULL);
    json_t *doc = NULL;
    int r = dir ? pl_run_state_load(dir, &doc, err) : -ENOMEM;

    if (r < 0)
        return r;
    json_decref(ts->doc);
    ts->doc = doc;
    ts->source = PL_SOURCE_LOG;
    return 0;
}

/* True if it is the hub's last one of the trial's last attempt. */
static bool is_last_of(const json_t *state, const struct pl_trial_status *ts)
{
    return json_object_get(state, "ended") &&
           pl_trial_int(state, "attempt", -1) == (int)ts->attempts - 1;
}

/* Takes the hub's last status.json, for an ended trial whose log cannot be read, or, if `whole`,
 * whose log lacks lines: then only if it was written at the trial's end. */
static void load_last_status(const struct pl_run *run, bool whole, struct pl_trial_status *ts)
{
    _cleanup_free_ char *path = pl_run_trial_path(run, ts->trial, "status.json");
    _cleanup_(json_decrefp) json_t *o = NULL;

    if (!path || pl_json_load_file(path, (size_t)64 * 1024 * 1024, &o, NULL) < 0 ||
        !json_is_object(json_object_get(o, "state")) ||
        (whole && !is_last_of(json_object_get(o, "state"), ts)))
        return;
    json_decref(ts->doc);
    ts->doc = json_incref(json_object_get(o, "state"));
    ts->source = PL_SOURCE_STATUS;
    ts->age_s =
        PL_MAX(0, pl_wall_s() - pl_trial_number(o, "written", pl_trial_number(o, "time", 0)));
}

/* The log of the result's attempt lacks lines for which the disk had no room. */
static void note_unwritten(const struct pl_trial_status *ts, struct pl_notes *notes)
{
    const json_t *lost = json_object_get(ts->result, "unwritten");
    const char *error = pl_json_string(lost, "error");
    int64_t events, metrics = 0;

    if (pl_json_int(lost, "events", &events) < 0)
        return;
    pl_json_int(lost, "metrics", &metrics);
    if (events + metrics == 0)
        pl_notes_add(notes, true, "trial %u: its log may lack events: %s", ts->trial,
                     error ? error : "?");
    else
        pl_notes_add(notes, true, "trial %u: %lld %s could not be written to its log: %s",
                     ts->trial, (long long)(events ? events : metrics),
                     events ? "events" : "records of metrics", error ? error : "?");
}

/* The log of the result's attempt has reached its limits. */
static void note_left_out(const struct pl_trial_status *ts, struct pl_notes *notes)
{
    const json_t *left_out = json_object_get(ts->result, "left_out");
    int64_t facts, metrics, thinned;

    if (pl_json_int(ts->result, "thinned", &thinned) == 0 && thinned > 0)
        pl_notes_add(notes, false,
                     "trial %u: metrics.jsonl is a sample: %lld records were taken out of it",
                     ts->trial, (long long)thinned);
    if (pl_json_int(left_out, "facts", &facts) == 0 && facts > 0)
        pl_notes_add(notes, false, "trial %u: %lld facts are not in events.jsonl, which was full",
                     ts->trial, (long long)facts);
    if (pl_json_int(left_out, "metrics", &metrics) == 0 && metrics > 0)
        pl_notes_add(notes, false,
                     "trial %u: %lld records are not in metrics.jsonl, which was full", ts->trial,
                     (long long)metrics);
}

/* A hub that was killed leaves a status.json that is up to two seconds old: its log may have the
 * ranks' start, and the cause. Without a readable log status.json stays. */
static int take_log_of_killed_hub(const struct pl_run *run,
                                  const struct pl_slurm_jobs *jobs,
                                  struct pl_trial_status *ts)
{
    const struct pl_slurm_job *job;
    int r;

    if (ts->result || ts->attempts == 0 || !ts->live || !ts->query || ts->query->state)
        return 0;
    job = ts->array > 0 ? pl_slurm_jobs_find(jobs, ts->array, ts->task) : NULL;
    if (!job || !pl_slurm_state_final(job->state))
        return 0;
    r = load_log(run, ts, NULL);
    if (r == 0)
        json_decref(PL_TAKE(ts->live));
    return r == -ENOMEM ? r : 0;
}

static int load_ranks(const struct pl_run *run, struct pl_trial_status *ts, struct pl_notes *notes)
{
    struct pl_error err = {0};
    int r;

    if (ts->attempts == 0 || ts->unstarted || (ts->query && ts->query->state) ||
        (ts->live && !ts->result))
        return 0;
    r = load_log(run, ts, &err);
    if (r == -ENOMEM)
        return r;
    note_unwritten(ts, notes);
    note_left_out(ts, notes);
    if (r == 0 && json_object_get(ts->result, "unwritten"))
        load_last_status(run, true, ts);
    if (r == 0)
        return 0;
    load_last_status(run, false, ts);
    if (r != -ENOENT)
        pl_notes_add(notes, !ts->doc, "%s%s", pl_error_text(&err),
                     ts->doc ? ": shown from status.json" : "");
    return 0;
}

/* ---- Slurm ---- */

/* A time not before the submission of the newest array, which is recorded in sweep.json. The clock
 * of the file's server may be slow: the first array is not older than the run either. */
static double submitted_s(const struct pl_run *run)
{
    _cleanup_free_ char *path = pl_path_join(pl_run_dir(run), "sweep.json");
    struct stat st;

    if (!path || stat(path, &st) < 0)
        return pl_wall_s();
    return PL_MAX((double)st.st_mtime, pl_run_created_s(run)) + SUBMISSION_SLACK_S;
}

/* True if Slurm alone knows whether the trial waits, runs or has ended. */
static bool is_open(const struct pl_trial_status *ts)
{
    if (!pl_trial_status_needs_slurm(ts))
        return false;
    return ts->result ? ts->undecided || !pl_trial_state_final(ts->state)
                      : !ts->cancelled || ts->claimed || ts->live;
}

static const struct pl_slurm_jobs *
ask_slurm(const struct pl_run_status *s, struct pl_slurm_view *slurm, struct pl_notes *notes)
{
    const struct pl_slurm_jobs *jobs = NULL;
    bool needed = false, required = false, ours;
    _cleanup_free_ char *here = NULL;
    const char *theirs;
    struct stat st;

    for (size_t i = 0; i < s->n_trials; i++)
        needed |= pl_trial_status_needs_slurm(&s->trials[i]);
    if (!needed || stat(pl_run_dir(s->run), &st) < 0)
        return NULL;
    theirs = pl_run_cluster(s->run);
    here = theirs ? pl_slurm_cluster() : NULL;
    if (here && strcmp(here, theirs) != 0) {
        for (size_t i = 0; i < s->n_trials; i++)
            required |= is_open(&s->trials[i]);
        if (required)
            pl_notes_add(notes, true, "sweep %s is on cluster %s, but Slurm here is that of %s",
                         pl_run_sweep(s->run), theirs, here);
        return NULL;
    }
    /* Slurm may hide other users' jobs: their absence proves nothing. */
    ours = st.st_uid == geteuid() || geteuid() == 0;
    if (ours)
        jobs = pl_slurm_view_get(slurm, st.st_uid);
    if (jobs && !jobs->stale)
        return jobs;
    /* A trial with a result needs no note: its cause shows "(inferred)". */
    for (size_t i = 0; i < s->n_trials && !required; i++)
        required = pl_trial_status_needs_slurm(&s->trials[i]) && !s->trials[i].result &&
                   !pl_slurm_jobs_find(jobs, s->trials[i].array, s->trials[i].task);
    if (required)
        pl_notes_add(notes, true, "cannot ask Slurm%s: %s",
                     ours ? "" : " about another user's jobs",
                     ours ? pl_slurm_view_why(slurm) : pl_run_sweep(s->run));
    return jobs;
}

/* ---- all ---- */

/* "max:NAME" or "min:NAME" from the program of a running trial; NULL: none. */
static const char *program_objective(const json_t *doc)
{
    const json_t *rank;
    size_t i;

    json_array_foreach (json_object_get(doc, "ranks"), i, rank) {
        const char *text = pl_json_string(json_object_get(rank, "facts"), "objective");

        if (text && (strncmp(text, "max:", 4) == 0 || strncmp(text, "min:", 4) == 0))
            return text;
    }
    return NULL;
}

/* Sets the objective from the sweep, else from the program. */
static int choose_objective(struct pl_run_status *s)
{
    const char *name = NULL, *text;
    enum pl_objective direction = pl_run_objective(s->run, &name);

    if (direction != PL_OBJECTIVE_NONE) {
        s->maximize = direction == PL_OBJECTIVE_MAX;
    } else {
        for (size_t i = 0; i < s->n_trials && !name; i++) {
            name = pl_json_string(s->trials[i].result, "objective_name");
            text = pl_json_string(s->trials[i].result, "objective_direction");
            if (!name && (text = program_objective(s->trials[i].doc)))
                name = text + 4;
            s->maximize = text && strncmp(text, "max", 3) == 0;
        }
    }
    s->objective = name ? strdup(name) : NULL;
    return name && !s->objective ? -ENOMEM : 0;
}

/* Programs of a sweep without --objective may name different ones, as by an axis. */
static void note_objectives(const struct pl_run_status *s, struct pl_notes *notes)
{
    for (size_t i = 0; i < s->n_trials; i++) {
        const struct pl_trial_status *ts = &s->trials[i];

        if (!pl_trial_status_has_other_objective(ts, s->objective))
            continue;
        pl_notes_add(notes, false,
                     "trial %u has another objective, %s: the trials are ranked by %s, and one "
                     "that has not reported it has no rank",
                     ts->trial, pl_json_string(ts->result, "objective_name"), s->objective);
        return;
    }
}

/* Adds the metrics of a trial's result, else of its ranks. */
static int
add_reported(struct pl_reported *reported, const struct pl_trial_status *ts, const char *objective)
{
    bool done = ts->state == PL_TRIAL_DONE;
    const json_t *rank;
    size_t i;
    int r = 0;

    if (ts->result)
        return pl_reported_add(reported, json_object_get(ts->result, "metrics"), done, objective);
    json_array_foreach (json_object_get(ts->doc, "ranks"), i, rank)
        if (r == 0)
            r = pl_reported_add(reported, json_object_get(rank, "metrics"), done, objective);
    return r;
}

static int look_at_metrics(struct pl_run_status *s)
{
    _cleanup_(pl_reported_finish) struct pl_reported reported = {0};
    _cleanup_(pl_buf_finish) struct pl_buf text = {0};
    int r = 0;

    for (size_t i = 0; i < s->n_trials && r == 0; i++)
        r = add_reported(&reported, &s->trials[i], s->objective);
    if (r == 0)
        r = pl_reported_missing(&reported, s->objective, &text);
    if (r == 0 && text.len && !(s->missing = pl_buf_take(&text)))
        r = -ENOMEM;
    s->reported = PL_TAKE(reported.names);
    return r;
}

static void choose_best(struct pl_run_status *s)
{
    s->best = -1;
    s->best_value = NAN;
    for (size_t i = 0; s->objective && i < s->n_trials; i++) {
        double v = s->trials[i].objective;

        if (s->trials[i].state != PL_TRIAL_DONE || !isfinite(v))
            continue;
        if (s->best < 0 || (s->maximize ? v > s->best_value : v < s->best_value)) {
            s->best = (int64_t)i;
            s->best_value = v;
        }
    }
}

/* Trials that --max-fail keeps from starting: Slurm keeps no record of those it took from an array.
 */
static int apply_stop(struct pl_run_status *s)
{
    struct pl_run_stop stop = pl_run_read_stop(s->run);
    char text[PL_RUN_STOP_TEXT];

    for (size_t i = 0; stop.stopped && i < s->n_trials; i++) {
        struct pl_trial_status *ts = &s->trials[i];

        if (ts->claimed || ts->result || !ts->submitted || ts->retry > stop.retry)
            continue;
        ts->cancelled = true;
        if (!ts->cause)
            ts->cause = json_pack("{s:s, s:s}", "kind", pl_cause_name(PL_CAUSE_CANCELLED), "text",
                                  pl_run_stop_text(&stop, text));
        if (!ts->cause)
            return -ENOMEM;
    }
    return 0;
}

/* The local executor takes Slurm's place: a trial without a result runs or waits as long as the
 * executor lives. */
static void apply_local(struct pl_run_status *s, struct pl_notes *notes)
{
    _cleanup_free_ char *host = NULL;
    enum pl_local_state state = pl_run_local_state(s->run, NULL, &host);

    if (state == PL_LOCAL_ELSEWHERE)
        pl_notes_add(notes, false, "the sweep runs on host %s, if at all: ask there", host);
    for (size_t i = 0; i < s->n_trials; i++)
        pl_trial_status_apply_local(&s->trials[i], state != PL_LOCAL_ENDED);
}

static int
collect(struct pl_run_status *s, bool ranks, struct pl_slurm_view *slurm, struct pl_notes *notes)
{
    const struct pl_slurm_jobs *jobs;
    double since_s;
    int r = 0;

    pl_dir_renew(pl_run_dir(s->run)); /* for trials' folders that other hosts have made */
    for (size_t i = 0; r == 0 && i < s->n_trials; i++)
        r = pl_trial_status_read(s->run, &s->trials[i], notes);
    if (r == 0)
        r = ask_hubs(s, notes);
    if (r == 0)
        r = reread_unanswered(s, notes);
    for (size_t i = 0; ranks && r == 0 && i < s->n_trials; i++)
        r = load_ranks(s->run, &s->trials[i], notes);
    if (r == 0)
        r = apply_stop(s);
    if (r < 0)
        return r;
    jobs = pl_run_is_local(s->run) ? NULL : ask_slurm(s, slurm, notes);
    since_s = jobs ? submitted_s(s->run) : 0;
    for (size_t i = 0; r == 0 && jobs && i < s->n_trials; i++)
        r = take_log_of_killed_hub(s->run, jobs, &s->trials[i]);
    for (size_t i = 0; i < s->n_trials; i++) {
        pl_trial_status_resolve(&s->trials[i], jobs, since_s);
        note_hub(&s->trials[i], notes);
        note_no_job(s->run, &s->trials[i], notes);
        if (ranks && r == 0 && s->trials[i].to_requeue) /* not loaded before: it may not be */
            r = load_ranks(s->run, &s->trials[i], notes);
    }
    if (r < 0)
        return r;
    if (pl_run_is_local(s->run))
        apply_local(s, notes);
    r = choose_objective(s);
    for (size_t i = 0; i < s->n_trials; i++)
        pl_trial_status_values(&s->trials[i], s->objective);
    choose_best(s);
    if (r == 0)
        r = look_at_metrics(s);
    if (!s->missing) /* which says more */
        note_objectives(s, notes);
    if (r == 0 && ranks)
        r = pl_node_reasons_add(s, slurm, notes);
    s->state = pl_sweep_state_of(s->trials, s->n_trials);
    return r;
}

int pl_run_status_collect(struct pl_run *run,
                          int64_t trial,
                          bool ranks,
                          struct pl_slurm_view *slurm,
                          struct pl_run_status **ret,
                          struct pl_notes *notes,
                          struct pl_error *err)
{
    _cleanup_(pl_run_status_destroyp) struct pl_run_status *s = calloc(1, sizeof(*s));
    size_t n = trial < 0 ? pl_run_n_trials(run) : 1;
    int r = -ENOMEM;

    pl_foreign_limit(pl_run_dir(run));
    if (s)
        s->trials = calloc(n + 1, sizeof(*s->trials));
    if (s && s->trials) {
        s->run = run;
        s->n_trials = n;
        for (size_t i = 0; i < n; i++)
            s->trials[i].trial = trial < 0 ? (unsigned)i : (unsigned)trial;
        r = collect(s, ranks, slurm, notes);
    }
    if (r < 0)
        return pl_error_set(err, r, "out of memory");
    *ret = PL_TAKE(s);
    return 0;
}
