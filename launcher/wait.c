/* SPDX-License-Identifier: MIT */
#include "launcher/wait.h"
#include "common/base/fs.h"
#include "common/base/parse.h"
#include "common/child.h"

#include <poll.h>
#include <string.h>
#include <sys/inotify.h>

#define SCAN_MS 200       /* shortest time between two looks at the folder */
#define UNWATCHED_MS 2000 /* longest: inotify sees nothing that other hosts do */
#define QUEUE_LIMIT_MS 20000
#define SOON_MS 1000
#define SOON_LOOKS 5

/* RUNNING -> ENDED                    done
 *         -> SETTLING -> ENDED        another end: it counts once the job has left the queue, since
 *                                     a requeued one goes on
 *         -> MISSED -> ENDED          not in the queue at two looks, and no result: lost */
enum trial_mark {
    RUNNING,
    SETTLING,
    MISSED,
    ENDED,
};

struct waiting {
    const struct pl_run *run;
    unsigned char *marks; /* enum trial_mark of each trial */
    bool *watched;
    unsigned n_left, n_settling;
    int notify; /* -EBADF where there is no inotify */
    struct pl_wait_result result;
};

static void end(struct waiting *w, unsigned trial, bool done)
{
    w->marks[trial] = ENDED;
    w->n_left--;
    if (done)
        w->result.done++;
    else
        w->result.other++;
}

/* The state in a trial's result; PL_TRIAL_RUNNING where there is none. */
static enum pl_trial_state result_state(const struct waiting *w, unsigned trial)
{
    _cleanup_(json_decrefp) json_t *result = NULL;
    enum pl_trial_state state;

    if (pl_run_result_read(w->run, trial, &result, &state, NULL) < 0)
        return PL_TRIAL_RUNNING;
    return state;
}

/* Looks at the results of all trials that have not ended. */
static int scan(struct waiting *w)
{
    w->n_settling = 0;
    for (unsigned trial = 0; trial < pl_run_n_trials(w->run); trial++) {
        _cleanup_free_ char *path = NULL;
        enum pl_trial_state state;

        if (w->marks[trial] == ENDED)
            continue;
        path = pl_run_trial_path(w->run, trial, NULL);
        if (!path)
            return -ENOMEM;
        if (!w->watched[trial] && w->notify >= 0)
            w->watched[trial] =
                inotify_add_watch(w->notify, path, IN_MOVED_TO | IN_CLOSE_WRITE) >= 0;
        state = result_state(w, trial);
        if (state == PL_TRIAL_DONE) {
            end(w, trial, true);
        } else if (state != PL_TRIAL_RUNNING) {
            w->marks[trial] = SETTLING;
            w->n_settling++;
        }
    }
    return 0;
}

/* Notes the trial of a line "ARRAY TASK" of squeue. */
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

/* What a look at the queue means for a trial. */
static void judge(struct waiting *w, unsigned trial, bool queued)
{
    if (w->marks[trial] == ENDED)
        return;
    if (queued)
        w->marks[trial] = RUNNING;
    else if (w->marks[trial] == SETTLING) /* a later attempt may have ended meanwhile */
        end(w, trial, result_state(w, trial) == PL_TRIAL_DONE);
    else if (w->marks[trial] == MISSED)
        end(w, trial, false);
    else
        w->marks[trial] = MISSED;
}

/* Slurm's silence changes nothing. */
static int ask_queue(struct waiting *w)
{
    _cleanup_(pl_child_finish) struct pl_child child = {0};
    _cleanup_(pl_buf_finish) struct pl_buf jobs = {0};
    _cleanup_free_ bool *queued = calloc(pl_run_n_trials(w->run), sizeof(*queued));
    const char *argv[] = {"squeue", "--noheader", "--array", "--format=%F %K", NULL, NULL};
    int r = queued ? pl_buf_adds(&jobs, "--jobs=") : -ENOMEM;

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
    for (unsigned trial = 0; trial < pl_run_n_trials(w->run); trial++)
        judge(w, trial, queued[trial]);
    return 0;
}

/* Sleeps until something happens in the folder, or for a while. */
static void sleep_until_change(const struct waiting *w)
{
    char events[4096];
    struct pollfd p = {.fd = w->notify, .events = POLLIN};

    poll(NULL, 0, SCAN_MS);
    if (poll(&p, 1, UNWATCHED_MS - SCAN_MS) > 0)
        while (read(w->notify, events, sizeof(events)) > 0)
            ;
}

static int wait_all(struct waiting *w)
{
    uint64_t asked = pl_now_ns();
    unsigned soon = SOON_LOOKS;
    int r = scan(w);

    while (r == 0 && w->n_left > 0) {
        uint64_t passed_ms;
        bool settling;

        sleep_until_change(w);
        r = scan(w);
        passed_ms = (pl_now_ns() - asked) / 1000000u;
        /* Only the queue's word is missing: a few looks come sooner. */
        settling = soon > 0 && w->n_settling == w->n_left && passed_ms >= SOON_MS;
        if (r < 0 || w->n_left == 0 || (!settling && passed_ms < PL_WAIT_QUEUE_S * 1000u))
            continue;
        soon -= settling;
        asked = pl_now_ns();
        r = ask_queue(w);
    }
    return r;
}

int pl_wait_run(const struct pl_run *run, struct pl_wait_result *ret, struct pl_error *err)
{
    unsigned n = pl_run_n_trials(run);
    _cleanup_close_ int notify = inotify_init1(IN_CLOEXEC | IN_NONBLOCK);
    _cleanup_free_ unsigned char *marks = calloc(n, sizeof(*marks));
    _cleanup_free_ bool *watched = calloc(n, sizeof(*watched));
    struct waiting w = {
        .run = run, .marks = marks, .watched = watched, .n_left = n, .notify = notify};
    int r;

    if (!marks || !watched)
        return pl_error_set(err, -ENOMEM, "out of memory");
    if (notify >= 0)
        inotify_add_watch(notify, pl_run_dir(run), IN_CREATE);
    r = wait_all(&w);
    if (r < 0)
        return pl_error_errno(err, r, "cannot wait for the trials");
    *ret = w.result;
    return 0;
}
