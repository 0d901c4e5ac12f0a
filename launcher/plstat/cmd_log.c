/* SPDX-License-Identifier: MIT */
/* plstat log JOB: the output of a trial's ranks; with --follow as it is written, over its attempts,
 * until it has ended. The files tell nearly all: the state is collected only if a result appears or
 * goes, and seldom otherwise. */
#include "common/base/fs.h"
#include "common/base/parse.h"
#include "common/base/shared_fs.h"
#include "common/base/shared_open.h"
#include "common/proto/json.h"
#include "common/run/output_ranks.h"
#include "launcher/plstat/follow.h"
#include "launcher/plstat/plstat.h"
#include "launcher/plstat/words.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/stat.h>

#define PASS_MS 200        /* between passes, and at least ten times as long as one takes */
#define PASS_MOST_MS 10000 /* however long that is */
#define WAIT_MS 1000       /* between looks for an attempt that has not begun */
#define ASK_MS 10000       /* between questions for the state of a trial */
#define ASK_SOON_MS                                                                                \
    2000              /* after it has ended, until it is known that Slurm does not start it again */
#define WORLD_MS 5000 /* for the number of ranks, once they write */
#define GONE_MS 60000 /* a run folder may be away for so long */
#define HEAD_BYTES 16384 /* of events.jsonl: has its first line */

struct log {
    struct pl_plstat *ps;
    struct pl_run *run;
    unsigned trial, attempt; /* the attempt that is shown */
    char name[PL_WORDS_NAME_MAX];
    struct pl_follow *follow; /* NULL: the attempt has not begun */
    int64_t world;            /* ranks of the attempt; 0: not known yet, -1: not at all */
    uint64_t begun_ns;        /* its first file was seen */
    bool said_waiting, said_reason, said_partial;
    uint64_t asked_ns, gone_ns; /* 0: never, and not gone */
    struct stat result;         /* of result.json at the last question; zeroed: none */
    bool unsettled;
};

static void say(const char *text)
{
    pl_term_complain(stderr, "plstat", text);
}

static int write_out(void *ctx, const char *data, size_t len, struct pl_error *err)
{
    int r = pl_plstat_write(data, len);

    return r < 0 ? pl_error_errno(err, r, "cannot write the output") : 0;
}

static void note_file(void *ctx, const char *text)
{
    say(text);
}

/* ---- one attempt ---- */

static const char *ranks_of(const struct log *log)
{
    return log->ps->log.ranks ? log->ps->log.ranks : PL_OUTPUT_RANKS_ALL;
}

/* True if at most one rank is asked for. */
static bool asks_one(const struct log *log)
{
    const char *ranks = ranks_of(log);

    return !ranks[strspn(ranks, "0123456789")];
}

/* Opens the attempt if its folder is there. */
static int open_attempt(struct log *log, struct pl_error *err)
{
    static const struct pl_follow_ops ops = {write_out, note_file, NULL};
    const struct pl_log_options *o = &log->ps->log;
    struct pl_follow_options options = {
        .ranks = ranks_of(log),
        .out = o->stream != PL_LOG_ERR,
        .err = o->stream != PL_LOG_OUT,
        .lines = o->lines,
        .whole = !o->follow,
    };
    _cleanup_free_ char *dir = pl_run_attempt_path(log->run, log->trial, log->attempt, NULL);

    if (!dir)
        return pl_error_nomem(err);
    if (log->follow)
        return 0;
    pl_dir_renew(pl_run_dir(log->run)); /* another host makes the trial's folder */
    if (pl_file_look(dir) < 0)
        return 0;
    log->world = asks_one(log) ? 1 : 0;
    log->begun_ns = 0;
    log->said_waiting = log->said_reason = false; /* it may wait for the next attempt */
    return pl_follow_create(dir, &options, &ops, &log->follow, err);
}

/* The number of ranks, from the first event of the attempt; 0: not known. */
static int64_t read_world(const struct log *log)
{
    _cleanup_free_ char *path =
        pl_run_attempt_path(log->run, log->trial, log->attempt, "events.jsonl");
    _cleanup_close_ int fd = path ? pl_shared_open(path) : -EBADF;
    _cleanup_(json_decrefp) json_t *event = NULL;
    char head[HEAD_BYTES];
    ssize_t n = fd >= 0 ? read(fd, head, sizeof(head)) : -1;
    const char *end = n > 0 ? memchr(head, '\n', (size_t)n) : NULL;
    int64_t world;

    if (!end || pl_json_parse(head, (size_t)(end - head), HEAD_BYTES, &event, NULL) < 0)
        return 0;
    return pl_json_int(event, "world_size", &world) == 0 ? world : 0;
}

static void choose_label(struct log *log)
{
    if (log->world != 1)
        pl_follow_label(log->follow);
    log->world = log->world ? log->world : -1;
}

/* True if something is there to be shown, and it is known how: with labels or without. */
static bool is_ready(struct log *log)
{
    uint64_t now = pl_now_ns();

    if (!log->follow || log->world)
        return log->follow;
    if (!pl_follow_look(log->follow))
        return false;
    log->world = read_world(log);
    if (!log->world && !log->begun_ns)
        log->begun_ns = now;
    if (!log->world && now - log->begun_ns < WORLD_MS * 1000000ull)
        return false;
    choose_label(log);
    return true;
}

/* Shows what is new. */
static int pass(struct log *log, bool *ret_more, struct pl_error *err)
{
    bool any;

    *ret_more = false;
    return is_ready(log) ? pl_follow_pass(log->follow, &any, ret_more, err) : 0;
}

/* Shows all that is left of the attempt, which has ended. */
static int end_attempt(struct log *log, struct pl_error *err)
{
    bool any = true, more = false;
    int r = open_attempt(log, err);

    if (r < 0 || !log->follow)
        return r;
    if (!log->world) {
        log->world = read_world(log);
        choose_label(log);
    }
    while (r == 0 && (any || more))
        r = pl_follow_pass(log->follow, &any, &more, err);
    if (r == 0)
        r = pl_follow_end(log->follow, err);
    log->ps->notes.partial |= pl_follow_unreadable(log->follow);
    return r;
}

static int next_attempt(struct log *log, struct pl_error *err)
{
    _cleanup_free_ char *text =
        pl_strf("%s has started again: attempt %u", log->name, log->attempt + 2);
    int r = end_attempt(log, err);

    if (r < 0)
        return r;
    pl_follow_destroy(PL_TAKE(log->follow));
    log->attempt++;
    log->asked_ns = 0;       /* this attempt may have ended already */
    log->ps->log.lines = -1; /* of the first attempt only */
    if (!text)
        return pl_error_nomem(err);
    say(text);
    return open_attempt(log, err);
}

/* ---- the trial ---- */

/* True if result.json is another one than at the last question. */
static bool has_changed(const struct log *log)
{
    _cleanup_free_ char *path = pl_run_trial_path(log->run, log->trial, "result.json");
    struct stat st = {0};

    if (!path || pl_file_look(path) < 0 || stat(path, &st) < 0)
        st = (struct stat){0};
    return st.st_ino != log->result.st_ino || st.st_mtim.tv_sec != log->result.st_mtim.tv_sec ||
           st.st_mtim.tv_nsec != log->result.st_mtim.tv_nsec;
}

static void keep_result(struct log *log)
{
    _cleanup_free_ char *path = pl_run_trial_path(log->run, log->trial, "result.json");

    if (!path || stat(path, &log->result) < 0)
        log->result = (struct stat){0};
}

/* Says once that the trial waits for an attempt, and once why, which Slurm may know later. */
static void say_waiting(struct log *log, const struct pl_trial_status *ts)
{
    const char *reason = ts->slurm ? ts->slurm->reason : NULL;
    _cleanup_free_ char *text = NULL;

    if ((log->said_waiting && (log->said_reason || !reason)) || ts->state != PL_TRIAL_WAITING)
        return;
    log->said_waiting = true;
    log->said_reason = reason != NULL;
    if (!ts->submitted)
        text = pl_strf("%s is not submitted yet: plsubmit --resume %s", log->name,
                       pl_run_sweep(log->run));
    else if (reason)
        text = pl_strf("%s waits in Slurm's queue: %s", log->name, reason);
    else
        text = pl_strf("%s %s", log->name,
                       log->follow ? "waits to start again" : "has not started yet");
    if (text)
        say(text);
}

static void say_partial(struct log *log, const struct pl_notes *notes)
{
    const char *text = json_string_value(json_array_get(notes->list, 0));

    if (notes->partial && !log->said_partial && text)
        say(text);
    log->said_partial = notes->partial;
}

/* Collects the state. -EAGAIN: the run folder is away, for now. */
static int collect(struct log *log,
                   struct pl_slurm_view *slurm,
                   struct pl_run_status **ret,
                   struct pl_error *err)
{
    _cleanup_free_ char *dir = strdup(pl_run_dir(log->run));
    struct pl_notes notes = {0};
    struct pl_run *run = NULL;
    uint64_t now = pl_now_ns();
    int r = dir ? pl_run_open(dir, &run, err) : -ENOMEM; /* a retry and --extend change it */

    log->asked_ns = now;
    if (r < 0) {
        log->gone_ns = log->gone_ns ? log->gone_ns : now;
        return r == -ENOMEM || now - log->gone_ns >= GONE_MS * 1000000ull ? r : -EAGAIN;
    }
    log->gone_ns = 0;
    pl_run_close(log->run);
    log->run = run;
    keep_result(log);
    r = pl_run_status_collect(run, log->trial, false, slurm, ret, &notes, err);
    if (r == 0) {
        pl_run_status_settle(*ret, slurm);
        say_partial(log, &notes);
    }
    pl_notes_finish(&notes);
    return r;
}

/* Says how a trial ended that is not done, and has the exit code show it. */
static int report_end(struct log *log, const struct pl_trial_status *ts, struct pl_error *err)
{
    _cleanup_(pl_buf_finish) struct pl_buf line = {0};

    if (!pl_trial_state_is_failure(ts->state))
        return 0;
    log->ps->any_failure = true;
    if (pl_buf_addf(&line, "%s ", log->name) < 0 || pl_words_failure(ts, &line) < 0)
        return pl_error_nomem(err);
    say(pl_buf_str(&line));
    return 0;
}

/* Says that there is no file of the ranks. */
static int say_nothing(const struct log *log, struct pl_error *err)
{
    const char *ranks = log->ps->log.ranks;
    _cleanup_free_ char *text =
        ranks
            ? pl_strf("%s: there is no output of ranks %s: see plstat show %s", log->name, ranks,
                      log->name)
            : pl_strf("%s: no rank has written anything: see plstat show %s", log->name, log->name);

    if (!text)
        return pl_error_nomem(err);
    say(text);
    return 0;
}

/* Asks for the trial's state. *ret_ended: it has ended, and all is shown. */
static int ask(struct log *log, bool *ret_ended, struct pl_error *err)
{
    _cleanup_(pl_run_status_destroyp) struct pl_run_status *s = NULL;
    _cleanup_(pl_slurm_view_finish) struct pl_slurm_view slurm = {0};
    const struct pl_trial_status *ts;
    int r = collect(log, &slurm, &s, err);

    *ret_ended = false;
    if (r < 0)
        return r == -EAGAIN ? 0 : r;
    ts = &s->trials[0];
    log->unsettled = ts->unsettled;
    if (ts->attempts > log->attempt + 1)
        return 0; /* the next attempt is there: the loop goes on to it */
    say_waiting(log, ts);
    if (ts->state == PL_TRIAL_WAITING || ts->state == PL_TRIAL_RUNNING || ts->unsettled)
        return 0;
    *ret_ended = true;
    r = end_attempt(log, err);
    if (r == 0 && log->ps->log.ranks && log->follow && !pl_follow_n_files(log->follow))
        r = say_nothing(log, err);
    return r < 0 ? r : report_end(log, ts, err);
}

static bool is_due(const struct log *log)
{
    uint64_t passed_ms = (pl_now_ns() - log->asked_ns) / 1000000u;

    return !log->asked_ns || has_changed(log) ||
           passed_ms >= (log->unsettled ? ASK_SOON_MS : ASK_MS);
}

/* Waits for the next pass. A reader that has gone would else be noticed at the next line only. */
static int wait_for_pass(const struct log *log, uint64_t took_ns, struct pl_error *err)
{
    uint64_t ms = log->follow ? PL_MAX(took_ns / 100000u, (uint64_t)PASS_MS) : WAIT_MS;
    struct pollfd p = {.fd = STDOUT_FILENO};

    if (poll(&p, 1, (int)PL_MIN(ms, (uint64_t)PASS_MOST_MS)) <= 0)
        return 0;
    /* A socket reports POLLHUP. So does a terminal, which sends SIGHUP, too. */
    if ((p.revents & (POLLERR | POLLNVAL)) || !isatty(STDOUT_FILENO)) {
        raise(SIGPIPE);
        return pl_error_set(err, -EPIPE, "cannot write the output: %s", strerror(EPIPE));
    }
    poll(NULL, 0, PASS_MS);
    return 0;
}

/* True if the next attempt has a folder. */
static bool has_next(const struct log *log)
{
    _cleanup_free_ char *dir = pl_run_attempt_path(log->run, log->trial, log->attempt + 1, NULL);

    return log->follow && dir && pl_file_look(dir) == 0;
}

static int follow(struct log *log, struct pl_error *err)
{
    bool ended = false, more = false;
    int r = 0;

    while (r == 0 && !ended) {
        uint64_t start = pl_now_ns();

        r = open_attempt(log, err);
        if (r == 0)
            r = pass(log, &more, err);
        if (r < 0 || more)
            continue;
        if (has_next(log)) {
            r = next_attempt(log, err);
            continue;
        }
        if (is_due(log))
            r = ask(log, &ended, err);
        if (r == 0 && !ended)
            r = wait_for_pass(log, pl_now_ns() - start, err);
    }
    return r;
}

/* Shows what there is now. */
static int show(struct log *log, struct pl_error *err)
{
    _cleanup_(pl_run_status_destroyp) struct pl_run_status *s = NULL;
    _cleanup_(pl_slurm_view_finish) struct pl_slurm_view slurm = {0};
    int r = open_attempt(log, err);

    if (r == 0)
        r = end_attempt(log, err);
    if (r < 0 || (log->follow && pl_follow_n_files(log->follow) && !log->ps->check))
        return r;
    r = collect(log, &slurm, &s, err);
    if (r < 0)
        return r;
    log->ps->any_failure |= pl_trial_state_is_failure(s->trials[0].state);
    log->ps->notes.partial |= log->said_partial;
    say_waiting(log, &s->trials[0]);
    if (log->said_waiting || (log->follow && pl_follow_n_files(log->follow)))
        return 0;
    return say_nothing(log, err);
}

/* RUN/trial-0000/attempt-1: that attempt. False: the word names none. */
static bool names_attempt(const char *word, unsigned *ret)
{
    _cleanup_free_ char *path = realpath(word, NULL);
    const char *slash = path ? strrchr(path, '/') : NULL;
    int64_t n;

    if (!slash || strncmp(slash, "/attempt-", 9) != 0 ||
        pl_parse_int(slash + 9, 0, INT32_MAX, &n, NULL) < 0)
        return false;
    *ret = (unsigned)n;
    return true;
}

/* A job of several steps stands for the newest one. */
static void say_step(const struct log *log)
{
    const char *word = log->ps->word, *step = pl_run_sweep(log->run);
    size_t len = strlen(word);
    _cleanup_free_ char *text = NULL;

    if (strncmp(step, word, len) != 0 || step[len] != '.' || strcmp(step + len, ".0") == 0)
        return;
    text = pl_strf("%s is the newest step of job %s", step, word);
    if (text)
        say(text);
}

static int choose_trial(struct log *log, int64_t trial, struct pl_error *err)
{
    unsigned n = pl_run_n_trials(log->run), attempts;
    int r;

    if (trial < 0 && n > 1)
        return pl_error_set(err, -EINVAL,
                            "sweep '%s' has %u trials: name one of them, as in plstat log %s/0",
                            pl_run_sweep(log->run), n, pl_run_sweep(log->run));
    log->trial = trial < 0 ? 0 : (unsigned)trial;
    pl_words_trial(log->run, log->trial, log->name, sizeof(log->name));
    pl_dir_renew(pl_run_dir(log->run));
    r = pl_run_n_attempts(log->run, log->trial, &attempts);
    if (r < 0)
        return pl_error_errno(err, r, "cannot read the folder of trial %u", log->trial);
    log->attempt = attempts ? attempts - 1 : 0;
    names_attempt(log->ps->word, &log->attempt);
    return 0;
}

int pl_cmd_log(struct pl_plstat *ps, struct pl_error *err)
{
    _cleanup_(pl_target_finish) struct pl_target target = {0};
    struct log log = {.ps = ps};
    const struct pl_slurm_job *job;
    int r = pl_plstat_find_job(ps, &target, &job, err);

    if (r < 0)
        return r;
    if (!target.run)
        return pl_error_set(err, target.unreadable && !target.elsewhere ? -EACCES : -ENOENT, "%s",
                            target.unreadable ? target.unreadable
                                              : "the job has no run folder: only Slurm's own file "
                                                "has its output (scontrol show job)");
    log.run = PL_TAKE(target.run);
    say_step(&log);
    r = choose_trial(&log, target.trial, err);
    ps->check |= ps->log.follow;
    if (r == 0)
        r = ps->log.follow ? follow(&log, err) : show(&log, err);
    pl_follow_destroy(log.follow);
    pl_run_close(log.run);
    return r;
}
