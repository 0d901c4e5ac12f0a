/* SPDX-License-Identifier: MIT */
#include "launcher/plsubmit/wait.h"
#include "common/base/child.h"
#include "common/base/fs.h"
#include "common/base/parse.h"
#include "common/base/shared_fs.h"
#include "common/proto/json.h"
#include "common/run/reported.h"
#include "common/run/run_local.h"
#include "launcher/plsubmit/clusters.h"

#include <poll.h>
#include <string.h>
#include <sys/inotify.h>

/* Interval of checks of all trials: inotify does not report changes by other hosts. */
#define SCAN_MS 2000
#define QUEUE_LIMIT_MS 20000
#define SOON_MS 1000
#define CLAIM_MAX 4096
#define EXECUTOR_MS 5000 /* for the end of the local executor */
#define EXECUTOR_POLL_MS 10
#define SOON_QUERIES 5

/* RUNNING -> ENDED                    done, and nothing follows in the job script
 *         -> SETTLING -> ENDED        another result: it counts after the job has left the queue,
 *                                     because a requeued job runs again
 *         -> MISSED -> ENDED          not in two successive answers of the queue, and no result
 *                                     by then: lost
 */
enum trial_mark {
    RUNNING,
    SETTLING,
    MISSED,
    ENDED,
};

struct waiting {
    const struct pl_run *run;
    unsigned char *marks; /* enum trial_mark of each trial */
    unsigned n_left, n_settling;
    int notify;       /* negative without inotify */
    int run_watch;    /* watch of the run folder */
    int *watches;     /* watch of each trial's folder; 0: none yet */
    unsigned *trials; /* trial of each watch */
    unsigned
        *before;     /* attempts of each trial before its retry, which has none; 0: no such retry */
    size_t n_trials; /* size of trials */
    struct pl_wait_result result;
    bool tears_down;    /* the job goes on after a result that is done */
    pl_wait_f progress; /* may be NULL */
    void *ctx;
    uint64_t shown_ns;
};

static void mark(struct waiting *w, unsigned trial, enum trial_mark to)
{
    w->n_settling += (to == SETTLING) - (w->marks[trial] == SETTLING);
    w->marks[trial] = to;
}

static void end(struct waiting *w, unsigned trial, bool done)
{
    mark(w, trial, ENDED);
    w->n_left--;
    if (done)
        w->result.done++;
    else
        w->result.other++;
}

/* The state in a trial's result; PL_TRIAL_RUNNING without a result. */
static enum pl_trial_state result_state(const struct waiting *w, unsigned trial)
{
    _cleanup_free_ char *folder = pl_run_trial_path(w->run, trial, NULL);
    _cleanup_(json_decrefp) json_t *result = NULL;
    enum pl_trial_state state;

    if (folder)
        pl_dir_renew(folder); /* another host may have replaced it */
    if (pl_run_result_read(w->run, trial, &result, &state, NULL) < 0)
        return PL_TRIAL_RUNNING;
    return state;
}

/* Watches the trial's folder if it exists. */
static int watch(struct waiting *w, unsigned trial)
{
    _cleanup_free_ char *path = NULL;
    int wd;

    if (w->notify < 0 || w->watches[trial] > 0)
        return 0;
    path = pl_run_trial_path(w->run, trial, NULL);
    if (!path)
        return -ENOMEM;
    wd = inotify_add_watch(w->notify, path, IN_MOVED_TO | IN_CLOSE_WRITE);
    if (wd <= 0) /* no folder yet, or no watch left: scan() checks this trial */
        return 0;
    if ((size_t)wd >= w->n_trials) {
        size_t n = (size_t)wd * 2;
        unsigned *more = realloc(w->trials, n * sizeof(*more));

        if (!more)
            return -ENOMEM;
        w->trials = more;
        w->n_trials = n;
    }
    w->trials[wd] = trial;
    w->watches[trial] = wd;
    return 0;
}

/* Checks one trial's result. */
static int check_trial(struct waiting *w, unsigned trial)
{
    enum pl_trial_state state;
    int r;

    if (w->marks[trial] == ENDED)
        return 0;
    r = watch(w, trial);
    state = result_state(w, trial);
    if (state == PL_TRIAL_DONE && !w->tears_down)
        end(w, trial, true);
    else if (state != PL_TRIAL_RUNNING)
        mark(w, trial, SETTLING);
    return r;
}

static int scan(struct waiting *w)
{
    int r = 0;

    pl_dir_renew(pl_run_dir(w->run)); /* for trials' folders that other hosts have made */
    for (unsigned trial = 0; trial < pl_run_n_trials(w->run) && r == 0; trial++)
        r = check_trial(w, trial);
    return r;
}

/* Handles a new trial folder, or a new file in one. */
static int on_event(struct waiting *w, const struct inotify_event *event)
{
    static const char prefix[] = "trial-";
    int64_t trial;

    if (event->mask & IN_Q_OVERFLOW)
        return scan(w);
    if (event->wd != w->run_watch) {
        if (event->wd <= 0 || (size_t)event->wd >= w->n_trials)
            return 0;
        trial = w->trials[event->wd];
        return w->watches[trial] == event->wd ? check_trial(w, (unsigned)trial) : 0;
    }
    if (event->len == 0 || strncmp(event->name, prefix, strlen(prefix)) != 0 ||
        pl_parse_int(event->name + strlen(prefix), 0, pl_run_n_trials(w->run) - 1, &trial, NULL) <
            0)
        return 0;
    return check_trial(w, (unsigned)trial);
}

static int on_events(struct waiting *w)
{
    union {
        struct inotify_event align;
        char bytes[16384];
    } events;
    ssize_t n;
    int r = 0;

    while (r == 0 && (n = read(w->notify, events.bytes, sizeof(events.bytes))) > 0) {
        for (char *p = events.bytes; p < events.bytes + n && r == 0;) {
            const struct inotify_event *event = (const struct inotify_event *)(void *)p;

            r = on_event(w, event);
            p += sizeof(*event) + event->len;
        }
    }
    return r;
}

/* Marks the trial of a line "ARRAY TASK" of squeue as queued. */
static void note_queued(struct waiting *w, const char *line, size_t len, bool *queued)
{
    char text[64], *space;
    unsigned trial;
    int64_t task;

    if (len >= sizeof(text))
        return;
    memcpy(text, line, len);
    text[len] = '\0';
    space = strchr(text, ' ');
    if (!space)
        return;
    *space = '\0';
    if (pl_parse_int(space + 1, 0, PL_RUN_TRIAL_LIMIT, &task, NULL) == 0 &&
        pl_run_find_trial(w->run, text, (unsigned)task, &trial) == 0)
        queued[trial] = true;
}

/* Applies the queue's answer to a trial. */
static void apply_queue(struct waiting *w, unsigned trial, bool queued)
{
    if (w->marks[trial] == ENDED)
        return;
    if (queued)
        mark(w, trial, RUNNING);
    else if (w->marks[trial] == SETTLING || w->marks[trial] == MISSED)
        end(w, trial, result_state(w, trial) == PL_TRIAL_DONE); /* it may be newer than the scan */
    else
        mark(w, trial, MISSED);
}

/* Asks squeue which trials are queued. Without an answer nothing changes. */
static int ask_queue(struct waiting *w)
{
    _cleanup_(pl_child_finish) struct pl_child child = {0};
    _cleanup_(pl_buf_finish) struct pl_buf jobs = {0};
    _cleanup_free_ bool *queued = calloc(pl_run_n_trials(w->run), sizeof(*queued));
    const char *chosen = pl_clusters_chosen(pl_run_sbatch_args(w->run), environ);
    _cleanup_free_ char *of = chosen ? pl_strf("--clusters=%s", chosen) : NULL;
    const char *argv[] = {"squeue", "--noheader", "--array", "--format=%F %K", NULL, of, NULL};
    int r = queued && (of || !chosen) ? pl_buf_adds(&jobs, "--jobs=") : -ENOMEM;

    if (r == 0 && pl_run_is_local(w->run)) {
        bool runs = pl_run_local_state(w->run, NULL, NULL) != PL_LOCAL_ENDED;

        for (unsigned trial = 0; trial < pl_run_n_trials(w->run); trial++)
            apply_queue(w, trial, runs);
        return 0;
    }

    for (size_t i = 0; i < pl_run_n_submissions(w->run) && r == 0; i++)
        r = pl_buf_addf(&jobs, "%s%s", i ? "," : "", pl_run_submission(w->run, i).job);
    if (r < 0)
        return r;
    argv[4] = pl_buf_str(&jobs);
    if (pl_child_run(argv, NULL, QUEUE_LIMIT_MS, &child, NULL) < 0)
        return 0;
    if (child.status != 0 && !strstr(pl_buf_str(&child.err), "Invalid job id"))
        return 0;
    for (const char *line = pl_buf_str(&child.out); *line;) {
        size_t len = strcspn(line, "\n");

        note_queued(w, line, len, queued);
        line += len + (line[len] == '\n');
    }
    pl_dir_renew(pl_run_dir(w->run));
    for (unsigned trial = 0; trial < pl_run_n_trials(w->run); trial++)
        apply_queue(w, trial, queued[trial]);
    return 0;
}

/* Waits for a change in the folder, or for the next scan. */
static int wait_for_change(struct waiting *w, uint64_t *scanned_ns)
{
    /* A scan of many trials takes long: scan less often. */
    uint64_t scan_ms = SCAN_MS + pl_run_n_trials(w->run);
    uint64_t passed_ms = (pl_now_ns() - *scanned_ns) / 1000000u;
    struct pollfd p = {.fd = w->notify, .events = POLLIN};
    int limit_ms = passed_ms < scan_ms ? (int)(scan_ms - passed_ms) : 0;

    if (w->n_settling == w->n_left || w->progress)
        limit_ms = PL_MIN(limit_ms, SOON_MS);
    if (poll(&p, 1, limit_ms) > 0)
        return on_events(w);
    if ((pl_now_ns() - *scanned_ns) / 1000000u < scan_ms)
        return 0;
    *scanned_ns = pl_now_ns();
    return scan(w);
}

/* The number of attempts before the trial's retry, if that has none; else 0. */
static unsigned attempts_before(const struct pl_run *run, unsigned trial)
{
    unsigned n = 0, retry = 0;
    _cleanup_(json_decrefp) json_t *claim = NULL;
    _cleanup_free_ char *path = NULL;
    int64_t of = 0;

    for (size_t i = pl_run_n_submissions(run); i-- > 0 && retry == 0;) {
        struct pl_run_submission sub = pl_run_submission(run, i);

        if (pl_run_submission_has(&sub, trial) && sub.retry == 0)
            return 0;
        if (pl_run_submission_has(&sub, trial))
            retry = sub.retry;
    }
    if (retry == 0 || pl_run_n_attempts(run, trial, &n) < 0 || n == 0)
        return 0;
    path = pl_run_attempt_path(run, trial, n - 1, "claim");
    if (!path || pl_json_load_file(path, CLAIM_MAX, &claim, NULL) < 0)
        return 0;
    pl_json_int(claim, "retry", &of);
    return of < (int64_t)retry ? n : 0;
}

/* True if the trial, or its retry, has begun: it has a folder. */
static bool has_begun(const struct waiting *w, unsigned trial)
{
    _cleanup_free_ char *path = NULL;
    unsigned before = w->before[trial];

    if (!before && w->watches[trial] > 0)
        return true;
    path = before ? pl_run_attempt_path(w->run, trial, before, NULL)
                  : pl_run_trial_path(w->run, trial, NULL);
    return path && access(path, F_OK) == 0;
}

static void show(struct waiting *w)
{
    unsigned n = pl_run_n_trials(w->run), running = 0;
    uint64_t now = pl_now_ns();

    /* Many trials on a slow file system: less often. */
    if (!w->progress || (w->shown_ns && now - w->shown_ns < (SOON_MS + (uint64_t)n) * 1000000u))
        return;
    w->shown_ns = now;
    for (unsigned trial = 0; trial < n; trial++)
        running += w->marks[trial] != ENDED && has_begun(w, trial);
    w->progress(w->ctx, &w->result, running);
}

static int wait_all(struct waiting *w)
{
    uint64_t asked_ns = pl_now_ns(), scanned_ns = asked_ns;
    unsigned soon = SOON_QUERIES;
    int r = scan(w);

    while (r == 0 && w->n_left > 0) {
        uint64_t passed_ms;
        bool settling;

        show(w);
        r = wait_for_change(w, &scanned_ns);
        passed_ms = (pl_now_ns() - asked_ns) / 1000000u;
        /* All results are there, only the queue must confirm them: ask sooner a few times. */
        settling = soon > 0 && w->n_settling == w->n_left && passed_ms >= SOON_MS;
        if (r < 0 || w->n_left == 0 || (!settling && passed_ms < PL_WAIT_QUEUE_S * 1000u))
            continue;
        soon -= settling;
        asked_ns = pl_now_ns();
        r = ask_queue(w);
    }
    return r;
}

/* The local executor writes its last files after the last trial's result. */
static void await_executor(const struct pl_run *run)
{
    if (!pl_run_is_local(run))
        return;
    for (int turn = 0; turn < EXECUTOR_MS / EXECUTOR_POLL_MS; turn++) {
        if (pl_run_local_state(run, NULL, NULL) != PL_LOCAL_RUNS)
            return;
        poll(NULL, 0, EXECUTOR_POLL_MS); /* a lock has no event to wait for with a limit */
    }
}

int pl_wait_run(const struct pl_run *run,
                pl_wait_f progress,
                void *ctx,
                struct pl_wait_result *ret,
                struct pl_error *err)
{
    unsigned n = pl_run_n_trials(run);
    _cleanup_close_ int notify = inotify_init1(IN_CLOEXEC | IN_NONBLOCK);
    _cleanup_free_ unsigned char *marks = calloc(n, sizeof(*marks));
    _cleanup_free_ int *watches = calloc(n, sizeof(*watches));
    _cleanup_free_ unsigned *before = calloc(n, sizeof(*before));
    struct waiting w = {.run = run,
                        .marks = marks,
                        .watches = watches,
                        .before = before,
                        .n_left = n,
                        .notify = notify,
                        .tears_down = json_object_get(pl_run_options(run), "teardown"),
                        .progress = progress,
                        .ctx = ctx};
    int r;

    if (!marks || !watches || !before)
        return pl_error_set(err, -ENOMEM, "out of memory");
    for (unsigned trial = 0; progress && trial < n; trial++)
        before[trial] = attempts_before(run, trial);
    if (notify >= 0)
        w.run_watch = inotify_add_watch(notify, pl_run_dir(run), IN_CREATE);
    r = wait_all(&w);
    free(w.trials);
    if (r < 0)
        return pl_error_errno(err, r, "cannot wait for the trials");
    await_executor(run);
    *ret = w.result;
    return 0;
}

int pl_wait_missing(const struct pl_run *run, struct pl_buf *out)
{
    _cleanup_(pl_reported_finish) struct pl_reported reported = {0};
    _cleanup_free_ char *of_program = NULL;
    const char *objective = NULL;
    int r = 0;

    pl_run_objective(run, &objective);
    for (unsigned trial = 0; trial < pl_run_n_trials(run) && r == 0; trial++) {
        _cleanup_(json_decrefp) json_t *result = NULL;
        enum pl_trial_state state;
        const char *name;

        if (pl_run_result_read(run, trial, &result, &state, NULL) < 0)
            continue;
        name = pl_json_string(result, "objective_name");
        if (!objective && name)
            objective = of_program = strdup(name);
        r = name && !objective ? -ENOMEM
                               : pl_reported_add(&reported, json_object_get(result, "metrics"),
                                                 state == PL_TRIAL_DONE, objective);
    }
    return r == 0 ? pl_reported_missing(&reported, objective, out) : r;
}
