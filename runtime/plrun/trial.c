/* SPDX-License-Identifier: MIT */
#include "runtime/plrun/trial.h"
#include "common/base/child.h"
#include "common/base/env.h"
#include "common/base/fs.h"
#include "common/base/log.h"
#include "common/base/own.h"
#include "common/base/parse.h"
#include "common/base/program.h"
#include "common/base/tail.h"
#include "common/proto/json.h"
#include "common/run/cause.h"
#include "common/run/requeue_rule.h"
#include "common/run/run_local.h"
#include "common/run/run_state.h"
#include "common/run/run_stop.h"
#include "runtime/plrun/requeue.h"

#include <dirent.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#define CLAIM_MAX 4096
#define ASK_MS 5000
#define HUB_WRITES_S 5 /* a log as young as this may have a hub that has not written its result */
#define HUB_POLL_MS 50

static int env_number(enum pl_env_id id, int64_t fallback, unsigned *ret, struct pl_error *err)
{
    const char *v = pl_env(id), *name = pl_env_var(id)->name;
    int64_t n = fallback;
    int r = 0;

    if (v && *v)
        r = pl_parse_int(v, 0, INT32_MAX, &n, err);
    else if (fallback < 0)
        return pl_error_set(err, -ENOENT, "%s is not set: this is for Plume's job script", name);
    if (r < 0)
        return pl_error_wrap(err, r, "%s", name);
    *ret = (unsigned)n;
    return 0;
}

static int open_run(struct pl_run **ret, unsigned *ret_trial, struct pl_error *err)
{
    const char *dir = pl_env(PL_ENV_PLUME_RUN_DIR);
    int r;

    if (!dir || !*dir)
        return pl_error_set(err, -ENOENT,
                            "PLUME_RUN_DIR is not set: this is for Plume's job script");
    r = pl_run_open_own(dir, ret, err);
    if (r == 0)
        r = env_number(PL_ENV_PLUME_TRIAL, -1, ret_trial, err);
    if (r == 0 && *ret_trial >= pl_run_n_trials(*ret))
        r = pl_error_set(err, -EINVAL, "trial %u is not in this sweep of %u trials", *ret_trial,
                         pl_run_n_trials(*ret));
    return r;
}

/* ---- claim ---- */

struct claim {
    const char *array; /* the array's job id, or the job's */
    unsigned task, restart;
    unsigned retry; /* number of the retry that submitted the job; 0: none */
};

static int own_claim(struct claim *ret, struct pl_error *err)
{
    ret->array = pl_env(PL_ENV_SLURM_ARRAY_JOB_ID);
    if (!ret->array || !*ret->array)
        ret->array = pl_env(PL_ENV_SLURM_JOB_ID);
    if (!ret->array || !*ret->array)
        return pl_error_set(err, -ENOENT, "not inside a Slurm job (SLURM_JOB_ID is not set)");
    return env_number(PL_ENV_SLURM_ARRAY_TASK_ID, 0, &ret->task, err) ||
                   env_number(PL_ENV_SLURM_RESTART_COUNT, 0, &ret->restart, err) ||
                   env_number(PL_ENV_PLUME_RETRY, 0, &ret->retry, err)
               ? err->code
               : 0;
}

static int write_claim(int dir_fd, const struct claim *c, struct pl_error *err)
{
    _cleanup_(pl_buf_finish) struct pl_buf text = {0};
    _cleanup_(json_decrefp) json_t *o = NULL;
    _cleanup_close_ int fd = -EBADF;
    const char *job = pl_env(PL_ENV_SLURM_JOB_ID), *node = pl_env(PL_ENV_SLURMD_NODENAME);
    int r;

    o = json_pack("{s:s, s:i, s:s, s:i, s:i, s:s, s:f}", "array", c->array, "task", (int)c->task,
                  "job", job ? job : c->array, "restart", (int)c->restart, "retry", (int)c->retry,
                  "host", node ? node : "?", "time", pl_wall_s());
    if (!o || pl_json_dump_line(o, &text) < 0)
        return pl_error_set(err, -ENOMEM, "out of memory");
    r = pl_own_file_open(dir_fd, "claim", O_WRONLY | O_CREAT | O_EXCL, pl_own_mode(dir_fd, 0666),
                         &fd, err);
    if (r < 0)
        return r;
    r = pl_write_all(fd, text.data, text.len);
    return r < 0 ? pl_error_errno(err, r, "cannot write the claim") : 0;
}

/* Takes attempt K; -EEXIST where it is taken. */
static int take_attempt(int trial_fd, const char *name, const struct claim *c, struct pl_error *err)
{
    _cleanup_free_ char *temp = pl_temp_name(name);
    _cleanup_close_ int fd = -EBADF;
    int r;

    if (!temp)
        return pl_error_set(err, -ENOMEM, "out of memory");
    r = pl_own_folder_make(trial_fd, temp, pl_own_mode(trial_fd, 0777), &fd, err);
    if (r < 0)
        return r;
    r = write_claim(fd, c, err);
    /* fails on a folder that has something in it */
    if (r == 0 && renameat(trial_fd, temp, trial_fd, name) < 0)
        r = errno == ENOTEMPTY || errno == EEXIST
                ? -EEXIST
                : pl_error_errno(err, errno, "cannot make the trial's folder '%s'", name);
    if (r < 0) {
        unlinkat(fd, "claim", 0);
        unlinkat(trial_fd, temp, AT_REMOVEDIR);
    }
    return r;
}

/* 1 where the attempt is of an earlier submission of the trial, 2 where it is of this very job
 * before Slurm requeued it, 0 where it is this start's own, -EEXIST where it is another array's. */
static int
look_at_attempt(int trial_fd, const char *name, const struct claim *c, struct pl_error *err)
{
    _cleanup_close_ int fd = -EBADF;
    _cleanup_free_ char *text = NULL;
    _cleanup_(json_decrefp) json_t *o = NULL;
    const char *array;
    int64_t restart, task, retry = 0;
    size_t len;
    int r = pl_own_folder_open(trial_fd, name, &fd, err);

    if (r == 0)
        r = pl_own_file_read(fd, "claim", CLAIM_MAX, &text, &len, err);
    if (r < 0)
        return r == -ENOENT ? -EEXIST : r;
    r = pl_json_parse(text, len, CLAIM_MAX, &o, err);
    if (r < 0)
        return pl_error_wrap(err, r, "the claim of '%s'", name);
    array = pl_json_string(o, "array");
    if (!array || pl_json_int(o, "restart", &restart) < 0 || pl_json_int(o, "task", &task) < 0)
        return pl_error_set(err, -EINVAL, "the claim of '%s' is damaged", name);
    pl_json_int(o, "retry", &retry); /* older claims have none */
    if (retry < (int64_t)c->retry)
        return 1;
    if (strcmp(array, c->array) != 0 || task != (int64_t)c->task)
        return pl_error_set(err, -EEXIST, "job %s has claimed this trial already", array);
    return restart != (int64_t)c->restart ? 2 : 0;
}

/* True if the program said in this attempt that the trial is complete (plume.finished()). */
static bool has_finished(const struct pl_run *run, unsigned trial, unsigned attempt)
{
    _cleanup_(json_decrefp) json_t *result = NULL;
    int64_t of = -1;

    return pl_run_result_read(run, trial, &result, NULL, NULL) == 0 &&
           pl_json_int(result, "attempt", &of) == 0 && of == (int64_t)attempt &&
           json_is_true(json_object_get(result, "finished"));
}

/* The result of a trial that does not start.
 * cause  borrowed
 * key    of the reason's text in the result; NULL: the cause has it */
static int write_unstarted(const struct pl_run *run,
                           unsigned trial,
                           unsigned attempt,
                           const struct claim *c,
                           enum pl_trial_state state,
                           json_t *cause,
                           const char *key,
                           const char *text,
                           struct pl_error *err)
{
    _cleanup_(json_decrefp) json_t *result = NULL;
    char job[64];
    int r;

    snprintf(job, sizeof(job), "%s_%u", c->array, c->task);
    result = json_pack("{s:i, s:i, s:s, s:i, s:f, s:O?}", "attempt", (int)attempt, "attempts",
                       (int)attempt + 1, "job", job, "exit_code", PL_EXIT_FAILED, "time",
                       pl_wall_s(), "cause", cause);
    if (!result || (key && json_object_set_new(result, key, json_string(text)) < 0))
        return pl_error_nomem(err);
    r = pl_run_result_write(run, trial, state, result, err);
    return r < 0 ? r : pl_error_set(err, -ECANCELED, "the trial does not start: %s", text);
}

/* Looks at --max-fail before an attempt that has been claimed. */
static int check_stop(const struct pl_run *run,
                      unsigned trial,
                      unsigned attempt,
                      const struct claim *c,
                      struct pl_error *err)
{
    struct pl_run_stop stop = pl_run_read_stop(run);
    _cleanup_(json_decrefp) json_t *cause = NULL;
    char text[PL_RUN_STOP_TEXT];

    if (!stop.stopped || stop.retry < c->retry)
        return 0;
    cause = json_pack("{s:s, s:s}", "kind", pl_cause_name(PL_CAUSE_CANCELLED), "text",
                      pl_run_stop_text(&stop, text));
    return write_unstarted(run, trial, attempt, c, PL_TRIAL_CANCELLED, cause, NULL, text, err);
}

/* Looks at --requeue-on before the next attempt of a job that has been requeued. */
static int check_requeue(const struct pl_run *run,
                         unsigned trial,
                         unsigned attempt,
                         const struct claim *c,
                         struct pl_error *err)
{
    struct pl_attempt_end end = {.trial = trial,
                                 .attempt = attempt - 1,
                                 .retry = c->retry,
                                 .state = PL_TRIAL_NODE_FAILED,
                                 .by_slurm = true};
    _cleanup_(json_decrefp) json_t *result = NULL;
    struct pl_error why = {0};
    int64_t of;
    int r;

    if (pl_run_result_read(run, trial, &result, &end.state, NULL) == 0 &&
        (pl_json_int(result, "attempt", &of) < 0 || of != (int64_t)end.attempt))
        end.state = PL_TRIAL_NODE_FAILED; /* the one before: the last one could write none */
    else
        end.result = result;
    r = pl_requeue_decide(run, &end, &why);
    if (r >= 0)
        return 0;
    if (r != -ECANCELED) {
        pl_log_warn("run", "cannot count the requeue: %s", pl_error_text(&why));
        return 0;
    }
    return write_unstarted(run, trial, attempt, c, end.state, json_object_get(end.result, "cause"),
                           "not_requeued", pl_error_text(&why), err);
}

/* Checks an attempt that has been claimed. before: 2 if this job had the attempt before. */
static int check_start(const struct pl_run *run,
                       unsigned trial,
                       unsigned attempt,
                       const struct claim *c,
                       int before,
                       struct pl_error *err)
{
    int r = check_stop(run, trial, attempt, c, err);

    if (r == 0 && before == 2)
        r = check_requeue(run, trial, attempt, c, err);
    if (r == 0 && attempt > 0)
        pl_run_forget_failure(run, trial);
    return r;
}

int pl_trial_claim(unsigned *ret_attempt, struct pl_error *err)
{
    _cleanup_(pl_run_closep) struct pl_run *run = NULL;
    _cleanup_close_ int trial_fd = -EBADF;
    struct claim c = {0};
    unsigned trial;
    int before = 0, r = open_run(&run, &trial, err);

    if (r == 0)
        r = own_claim(&c, err);
    if (r == 0)
        r = pl_run_make_trial(run, trial, &trial_fd, err);
    for (unsigned k = 0; r == 0 && k < 100000; k++) {
        char name[32];

        snprintf(name, sizeof(name), "attempt-%u", k);
        r = faccessat(trial_fd, name, F_OK, AT_SYMLINK_NOFOLLOW) == 0
                ? -EEXIST
                : take_attempt(trial_fd, name, &c, err);
        if (r == 0) {
            *ret_attempt = k;
            return check_start(run, trial, k, &c, before, err);
        }
        if (r != -EEXIST)
            return r;
        r = look_at_attempt(trial_fd, name, &c, err);
        if (r == 0) {
            *ret_attempt = k;
            return 0;
        }
        if (r == 2 && has_finished(run, trial, k))
            return pl_error_set(err, -EEXIST,
                                "the trial's program has reported that it is complete");
        before = r;
        r = r > 0 ? 0 : r;
    }
    return r < 0 ? r : pl_error_set(err, -ERANGE, "too many attempts");
}

/* ---- reason ---- */

/* The number of the retry that claimed an attempt. */
static int read_retry(const struct pl_run *run, unsigned trial, unsigned attempt, int64_t *ret)
{
    _cleanup_free_ char *path = pl_run_attempt_path(run, trial, attempt, "claim");
    _cleanup_(json_decrefp) json_t *o = NULL;
    int r = path ? pl_json_load_file(path, CLAIM_MAX, &o, NULL) : -ENOMEM;

    *ret = 0; /* older claims have none */
    if (r == 0)
        pl_json_int(o, "retry", ret);
    return r;
}

int pl_trial_reason(const char **ret, struct pl_error *err)
{
    _cleanup_(pl_run_closep) struct pl_run *run = NULL;
    _cleanup_(json_decrefp) json_t *result = NULL;
    enum pl_trial_state state = PL_TRIAL_NODE_FAILED;
    enum pl_requeue_cause cause;
    unsigned trial, attempt;
    int64_t own, before, of;
    int r = open_run(&run, &trial, err);

    if (r == 0)
        r = env_number(PL_ENV_PLUME_ATTEMPT, -1, &attempt, err);
    if (r < 0)
        return r;
    if (attempt == 0) {
        *ret = "first";
        return 0;
    }
    if (read_retry(run, trial, attempt, &own) < 0 ||
        read_retry(run, trial, attempt - 1, &before) < 0)
        own = before = 0;
    /* The result is still that of the attempt before, if that could write one. */
    if (pl_run_result_read(run, trial, &result, &state, NULL) < 0 ||
        pl_json_int(result, "attempt", &of) < 0 || of + 1 != (int64_t)attempt)
        state = PL_TRIAL_NODE_FAILED;
    cause = pl_requeue_cause_of(state, result);
    *ret = own > before || cause == PL_REQUEUE_N_CAUSES ? "retry" : pl_requeue_cause_name(cause);
    return 0;
}

/* ---- finish ---- */

/* The last lines of our stderr, if that is a file (Slurm's output file). */
static char *stderr_tail(void)
{
    char link[PATH_MAX];
    ssize_t n = readlink("/proc/self/fd/2", link, sizeof(link) - 1);

    if (n <= 0)
        return NULL;
    link[n] = '\0';
    return pl_tail_file(link, 0);
}

/* The cause by Slurm's record of the job. hub_died: there is a log without an end. */
static enum pl_cause_kind ask_slurm(int code, unsigned restart, bool hub_died, bool *ret_inferred)
{
    const char *job = pl_env(PL_ENV_SLURM_JOB_ID);
    const char *argv[] = {"scontrol", "-o", "show", "job", job ? job : "", NULL};
    struct pl_child child = {0};
    enum pl_cause_kind kind = PL_CAUSE_NONE;

    if (pl_child_run(argv, NULL, ASK_MS, &child, NULL) == 0 && child.status == 0) {
        /* Ranks that lost their hub end by SIGTERM too: then only Slurm's record counts. */
        kind = pl_cause_from_slurm(pl_buf_str(&child.out), restart,
                                   code == 128 + SIGTERM && !hub_died, ret_inferred);
    } else if (code == 128 + SIGTERM && !hub_died) {
        kind = PL_CAUSE_CANCELLED;
        *ret_inferred = true;
    }
    pl_child_finish(&child);
    return kind;
}

/* The cause of an end that began a log and that the hub did not finish. Slurm writes into the
 * output that it ended a step, and keeps no other record of that. Where we run on the hub's node,
 * the node is well. */
static enum pl_cause_kind
after_hub_died(const json_t *doc, int code, const char *text, enum pl_confidence *ret)
{
    const char *hub = pl_json_string(json_array_get(json_object_get(doc, "nodes"), 0), "node");
    const char *node = pl_env(PL_ENV_SLURMD_NODENAME);
    const char *step = text ? strstr(text, "*** STEP ") : NULL;

    *ret = PL_CONFIDENCE_INFERRED;
    if (step && strstr(step, " CANCELLED AT ")) {
        *ret = PL_CONFIDENCE_ASKED;
        return PL_CAUSE_CANCELLED;
    }
    /* plrun says so and ends its rank, with SIGKILL if need be. It does where the hub was:
     * elsewhere the daemon lives and says that it has lost the hub. */
    if (text && strstr(text, "the node daemon ") && strstr(text, "; ending rank "))
        return PL_CAUSE_RUNTIME;
    if (code == 128 + SIGKILL) {
        *ret = PL_CONFIDENCE_SEEN; /* who sent it is not known */
        return PL_CAUSE_SIGNAL;
    }
    return hub && node && strcmp(hub, node) == 0 ? PL_CAUSE_RUNTIME : PL_CAUSE_NODE;
}

/* The cause of an end that the hub did not record. A new reference; NULL if nothing failed. */
static json_t *make_cause(const char *attempt_dir, int code, struct pl_error *err)
{
    _cleanup_(json_decrefp) json_t *doc = NULL;
    _cleanup_free_ char *text = stderr_tail();
    bool inferred = false, reached_srun = pl_env(PL_ENV_PLUME_HUB) != NULL;
    enum pl_confidence confidence = PL_CONFIDENCE_SEEN;
    const char *node = pl_env(PL_ENV_SLURMD_NODENAME);
    enum pl_cause_kind kind;
    unsigned restart = 0;
    json_t *cause;

    env_number(PL_ENV_SLURM_RESTART_COUNT, 0, &restart, NULL);
    if (pl_run_state_load(attempt_dir, &doc, err) == 0 && json_object_get(doc, "cause"))
        return json_incref(json_object_get(doc, "cause"));
    kind = code ? ask_slurm(code, restart, doc != NULL, &inferred) : PL_CAUSE_NONE;
    if (kind == PL_CAUSE_NONE && code == 0 && !doc)
        return NULL;
    if (kind != PL_CAUSE_NONE)
        confidence = inferred ? PL_CONFIDENCE_INFERRED : PL_CONFIDENCE_ASKED;
    else if (doc)
        kind = after_hub_died(doc, code, text, &confidence);
    if (kind == PL_CAUSE_NONE)
        kind = reached_srun ? PL_CAUSE_LAUNCH : PL_CAUSE_SETUP;
    cause = json_pack("{s:s, s:s, s:i}", "kind", pl_cause_name(kind), "node", node ? node : "?",
                      "exit", code);
    if (cause && kind == PL_CAUSE_SIGNAL) {
        json_object_del(cause, "exit");
        pl_run_state_set_status(cause, code - 128);
    }
    if (cause && kind == PL_CAUSE_RUNTIME)
        json_object_set_new(cause, "process", json_string("plrund"));
    pl_run_state_set_confidence(cause, confidence);
    if (cause && text && *text)
        json_object_set_new(cause, "text", json_string(text));
    return cause;
}

/* The hub's result of this attempt. A new reference; NULL if there is none. */
static json_t *result_of(const struct pl_run *run, unsigned trial, unsigned attempt)
{
    json_t *result = NULL;
    int64_t n;

    if (pl_run_result_read(run, trial, &result, NULL, NULL) == 0 &&
        pl_json_int(result, "attempt", &n) == 0 && n == (int64_t)attempt)
        return result;
    json_decref(result);
    return NULL;
}

static enum pl_trial_state result_state(const json_t *result)
{
    const char *name = pl_json_string(result, "state");
    enum pl_trial_state state;

    return name && pl_trial_state_parse(name, &state) == 0 ? state : PL_TRIAL_DONE;
}

/* As result_of(). Under the plugin srun ends with the last rank, and the job script may come here
 * before the hub, on another process's time, has written the result. A hub that still writes keeps
 * its log young. */
static json_t *
await_result(const struct pl_run *run, unsigned trial, unsigned attempt, const char *attempt_dir)
{
    _cleanup_free_ char *log = pl_strf("%s/events.jsonl", attempt_dir);
    json_t *result = result_of(run, trial, attempt);

    for (int turn = 0; !result && log && turn < 2 * HUB_WRITES_S * 1000 / HUB_POLL_MS; turn++) {
        struct stat st;

        if (lstat(log, &st) < 0 || (double)st.st_mtime + HUB_WRITES_S < pl_wall_s())
            break;
        /* a file on another node's side of the file system has no event to wait for */
        nanosleep(&(struct timespec){.tv_nsec = HUB_POLL_MS * 1000000l}, NULL);
        result = result_of(run, trial, attempt);
    }
    return result;
}

/* Cancels what waits of the sweep. */
static void cancel_waiting(const struct pl_run *run)
{
    size_t n = pl_run_n_submissions(run), k = 0;
    _cleanup_free_ const char **argv = calloc(n + 3, sizeof(*argv));
    struct pl_child child = {0};
    struct pl_error err = {0};

    if (!argv || pl_run_is_local(run)) /* which has no queue: their claims end them */
        return;
    argv[k++] = "scancel";
    argv[k++] = "--state=PENDING";
    for (size_t i = 0; i < n; i++)
        argv[k++] = pl_run_submission(run, i).job;
    /* A trial that starts all the same ends at once, by its claim. */
    if (n > 0 && pl_child_run(argv, NULL, ASK_MS, &child, &err) < 0)
        pl_log_warn("run", "cannot cancel the waiting trials: %s", pl_error_text(&err));
    pl_child_finish(&child);
}

/* Requeues the job if --requeue-on says so. Returns true if the trial starts again. */
static bool requeue(const struct pl_run *run,
                    unsigned trial,
                    unsigned attempt,
                    json_t *result,
                    enum pl_trial_state state)
{
    struct pl_attempt_end end = {
        .trial = trial, .attempt = attempt, .state = state, .result = result};
    struct pl_error err = {0};
    int r;

    if (json_is_true(json_object_get(result, "finished")))
        return false;
    env_number(PL_ENV_PLUME_RETRY, 0, &end.retry, NULL);
    r = pl_requeue_decide(run, &end, &err);
    if (r > 0)
        r = pl_requeue_ask(&err) < 0 ? err.code : 1;
    if (r >= 0)
        return r > 0;
    pl_log_warn("run", "the trial is not requeued: %s", pl_error_text(&err));
    if (json_object_set_new(result, "not_requeued", json_string(pl_error_text(&err))) == 0)
        pl_run_result_write(run, trial, state, result, NULL);
    return false;
}

/* Counts a trial that failed for --max-fail. */
static void count_failure(const struct pl_run *run, unsigned trial, enum pl_trial_state state)
{
    char text[PL_RUN_STOP_TEXT];
    struct pl_run_stop stop;
    struct pl_error err = {0};
    unsigned retry = 0;
    bool stopped;

    if (state != PL_TRIAL_FAILED && state != PL_TRIAL_TIMED_OUT && state != PL_TRIAL_NODE_FAILED)
        return;
    env_number(PL_ENV_PLUME_RETRY, 0, &retry, NULL);
    if (pl_run_count_failure(run, trial, retry, &stopped, &err) < 0) {
        pl_log_warn("run", "cannot count the failure for --max-fail: %s", pl_error_text(&err));
        return;
    }
    if (!stopped)
        return;
    stop = pl_run_read_stop(run);
    pl_log_warn("run", "%s: cancelling the waiting trials", pl_run_stop_text(&stop, text));
    cancel_waiting(run);
}

int pl_trial_finish(int code, int *ret_code, struct pl_error *err)
{
    _cleanup_(pl_run_closep) struct pl_run *run = NULL;
    _cleanup_(json_decrefp) json_t *result = NULL, *cause = NULL;
    _cleanup_free_ char *dir = NULL;
    const char *job = pl_env(PL_ENV_SLURM_JOB_ID), *array = pl_env(PL_ENV_SLURM_ARRAY_JOB_ID);
    const char *task = pl_env(PL_ENV_SLURM_ARRAY_TASK_ID);
    _cleanup_free_ char *name = array && task ? pl_strf("%s_%s", array, task) : NULL;
    enum pl_trial_state state;
    unsigned trial, attempt = 0;
    int64_t n;
    int r = open_run(&run, &trial, err);

    *ret_code = code;
    if (r == 0)
        r = env_number(PL_ENV_PLUME_ATTEMPT, -1, &attempt, err);
    if (r < 0)
        return r;
    dir = pl_run_attempt_path(run, trial, attempt, NULL);
    if (!dir)
        return pl_error_set(err, -ENOMEM, "out of memory");
    result = await_result(run, trial, attempt, dir);
    state = result_state(result);
    if (result) {
        if (pl_json_int(result, "exit_code", &n) == 0 && n >= 0 && n <= 255)
            *ret_code = (int)n;
        if (!requeue(run, trial, attempt, result, state))
            count_failure(run, trial, state);
        return 0;
    }
    cause = make_cause(dir, code, err);
    if (cause && code == 0)
        *ret_code = code = PL_EXIT_FAILED;
    result = json_pack("{s:i, s:i, s:s, s:s, s:i, s:f}", "attempt", (int)attempt, "attempts",
                       (int)attempt + 1, "job",
                       name  ? name
                       : job ? job
                             : "",
                       "job_id", job ? job : "", "exit_code", code, "time", pl_wall_s());
    if (!result)
        return pl_error_set(err, -ENOMEM, "out of memory");
    if (cause)
        json_object_set(result, "cause", cause);
    state = pl_cause_state(pl_cause_parse(pl_json_string(cause, "kind")));
    r = pl_run_result_write(run, trial, state, result, err);
    if (!requeue(run, trial, attempt, result, state))
        count_failure(run, trial, state);
    return r;
}

/* ---- program ---- */

int pl_trial_find_program(const char *name, char **ret, struct pl_error *err)
{
    _cleanup_(pl_run_closep) struct pl_run *run = NULL;
    unsigned trial;
    int r = pl_program_search(name, ret);

    if (r < 0)
        return pl_error_set(err, r, "out of memory");
    if (*ret)
        return 0;
    r = open_run(&run, &trial, err);
    if (r < 0)
        return r;
    *ret = strdup(pl_run_argv(run, NULL)[0]);
    if (!*ret)
        return pl_error_set(err, -ENOMEM, "out of memory");
    pl_log_warn("run", "'%s' is not in PATH after the set-up; the program is '%s'", name, *ret);
    return 0;
}

static int set_program(const struct pl_run *run, char **argv, struct pl_error *err)
{
    char *path = strdup(pl_run_program_file(run));

    if (!path)
        return pl_error_set(err, -ENOMEM, "out of memory");
    free(argv[0]);
    argv[0] = path;
    return 0;
}

int pl_trial_program(char ***ret, struct pl_error *err)
{
    _cleanup_(pl_run_closep) struct pl_run *run = NULL;
    _cleanup_(json_decrefp) json_t *params = NULL;
    _cleanup_(pl_strv_freep) char **env = NULL, **argv = NULL;
    unsigned trial;
    int r = open_run(&run, &trial, err);

    if (r == 0)
        r = pl_run_one_trial_params(run, trial, &params, err);
    if (r == 0)
        r = pl_run_trial_env(params, &env, err);
    for (char **e = env; r == 0 && e && *e; e++) {
        char *equals = strchr(*e, '=');

        *equals = '\0';
        if (setenv(*e, equals + 1, 1) < 0)
            r = pl_error_errno(err, errno, "cannot set %s", *e);
    }
    if (r == 0)
        r = pl_run_trial_argv(run, params, &argv, err);
    if (r == 0)
        r = set_program(run, argv, err);
    if (r == 0)
        *ret = PL_TAKE(argv);
    return r;
}
