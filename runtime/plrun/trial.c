/* SPDX-License-Identifier: MIT */
#include "common/base/fs.h"
#include "common/base/log.h"
#include "common/base/own.h"
#include "common/base/parse.h"
#include "common/base/program.h"
#include "common/proto/json.h"
#include "common/run/cause.h"
#include "common/run/requeue_rule.h"
#include "common/run/run_stop.h"
#include "runtime/plrun/requeue.h"
#include "runtime/plrun/trial_private.h"

#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>

int pl_trial_env_number(enum pl_env_id id, int64_t fallback, unsigned *ret, struct pl_error *err)
{
    const char *v = pl_env(id), *name = pl_env_var(id)->name;
    int64_t n = fallback;
    int r = 0;

    if (v && *v)
        r = pl_parse_int(v, 0, INT32_MAX, &n, err);
    else if (fallback < 0)
        return pl_error_set(
            err, -ENOENT, "%s is not set: only the job script of plsubmit calls plrun in this way",
            name);
    if (r < 0)
        return pl_error_wrap(err, r, "%s", name);
    *ret = (unsigned)n;
    return 0;
}

int pl_trial_open_run(struct pl_run **ret, unsigned *ret_trial, struct pl_error *err)
{
    const char *dir = pl_env(PL_ENV_PLUME_RUN_DIR);
    int r;

    if (!dir || !*dir)
        return pl_error_set(
            err, -ENOENT,
            "PLUME_RUN_DIR is not set: only the job script of plsubmit calls plrun in this way");
    r = pl_run_open_own(dir, ret, err);
    if (r == 0)
        r = pl_trial_env_number(PL_ENV_PLUME_TRIAL, -1, ret_trial, err);
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
    return pl_trial_env_number(PL_ENV_SLURM_ARRAY_TASK_ID, 0, &ret->task, err) ||
                   pl_trial_env_number(PL_ENV_SLURM_RESTART_COUNT, 0, &ret->restart, err) ||
                   pl_trial_env_number(PL_ENV_PLUME_RETRY, 0, &ret->retry, err)
               ? err->code
               : 0;
}

/* path: of the claim, for messages. */
static int write_claim(int dir_fd, const struct claim *c, const char *path, struct pl_error *err)
{
    _cleanup_(pl_buf_finish) struct pl_buf text = {0};
    _cleanup_(json_decrefp) json_t *o = NULL;
    _cleanup_close_ int fd = -EBADF;
    const char *job = pl_env(PL_ENV_SLURM_JOB_ID), *node = pl_env(PL_ENV_SLURMD_NODENAME);
    struct stat st;
    int r;

    o = json_pack("{s:s, s:i, s:s, s:i, s:i, s:s, s:f}", "array", c->array, "task", (int)c->task,
                  "job", job ? job : c->array, "restart", (int)c->restart, "retry", (int)c->retry,
                  "host", node ? node : "?", "time", pl_wall_s());
    /* An attempt appends to the file of the one before, which is no word about this one. */
    if (o && fstat(2, &st) == 0 && S_ISREG(st.st_mode) &&
        json_object_set_new(o, "stderr",
                            json_pack("{s:I, s:I}", "inode", (json_int_t)st.st_ino, "bytes",
                                      (json_int_t)st.st_size)) < 0)
        json_decref(PL_TAKE(o));
    if (!o || pl_json_dump_line(o, &text) < 0)
        return pl_error_set(err, -ENOMEM, "out of memory");
    r = pl_own_file_open(dir_fd, "claim", O_WRONLY | O_CREAT | O_EXCL, pl_own_mode(dir_fd, 0666),
                         &fd, err);
    if (r < 0)
        return r;
    r = pl_write_all(fd, text.data, text.len);
    if (r == 0) /* or a node that fails may leave it empty, and no later attempt could start */
        r = pl_fd_sync(fd);
    if (close(PL_TAKE_FD(fd)) < 0 && r == 0) /* a network file system writes it now */
        r = -errno;
    return r < 0 ? pl_error_errno(err, r, "cannot write '%s'", path) : 0;
}

/* Removes a folder and its claim. By path: NFS may have forgotten the folder that is open. */
static void remove_claim(int trial_fd, const char *temp)
{
    _cleanup_free_ char *claim = pl_path_join(temp, "claim");

    if (claim)
        unlinkat(trial_fd, claim, 0);
    unlinkat(trial_fd, temp, AT_REMOVEDIR);
}

/* Takes attempt K; -EEXIST where it is taken. */
static int take_attempt(
    int trial_fd, const char *name, const struct claim *c, const char *path, struct pl_error *err)
{
    _cleanup_free_ char *temp = pl_temp_name(name);
    _cleanup_close_ int fd = -EBADF;
    int r;

    if (!temp)
        return pl_error_set(err, -ENOMEM, "out of memory");
    r = pl_own_folder_make(trial_fd, temp, pl_own_mode(trial_fd, 0777), &fd, err);
    if (r == 0)
        r = write_claim(fd, c, path, err);
    if (r == 0) {
        r = pl_file_place(trial_fd, temp, name); /* fails on a folder that has something in it */
        if (r == -ENOTEMPTY)
            r = -EEXIST;
        else if (r < 0 && r != -EEXIST)
            pl_error_errno(err, r, "cannot make the folder of '%s'", path);
    }
    if (r < 0)
        remove_claim(trial_fd, temp);
    return r;
}

/* 1 where the attempt is of an earlier submission of the trial, 2 where it is of this very job
 * before Slurm requeued it, 0 where it is this start's own, -EEXIST where it is another array's. */
static int look_at_attempt(
    int trial_fd, const char *name, const struct claim *c, const char *path, struct pl_error *err)
{
    _cleanup_close_ int fd = -EBADF;
    _cleanup_free_ char *text = NULL;
    _cleanup_(json_decrefp) json_t *o = NULL;
    const char *array;
    int64_t restart, task, retry = 0;
    size_t len;
    int r = pl_own_folder_open(trial_fd, name, &fd, err);

    if (r == 0)
        r = pl_own_file_read(fd, "claim", PL_RUN_CLAIM_MAX, &text, &len, err);
    if (r < 0)
        return r == -ENOENT ? -EEXIST : r;
    r = pl_json_parse(text, len, PL_RUN_CLAIM_MAX, &o, err);
    if (r < 0)
        return pl_error_wrap(err, r, "while reading '%s'", path);
    array = pl_json_string(o, "array");
    if (!array || pl_json_int(o, "restart", &restart) < 0 || pl_json_int(o, "task", &task) < 0)
        return pl_error_set(err, -EINVAL, "claim '%s' is damaged", path);
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

/* Slurm may have killed the attempt's own pl_trial_finish(). Called before the claim of the next
 * one, after which no earlier result is written. */
static void settle_before(const struct pl_run *run, unsigned trial, unsigned attempt)
{
    _cleanup_(json_decrefp) json_t *result = pl_trial_result_of(run, trial, attempt);
    enum pl_trial_state state = pl_trial_result_state(result);

    pl_trial_settle_requeue(run, trial, result, &state);
}

int pl_trial_claim(unsigned *ret_attempt, struct pl_error *err)
{
    _cleanup_(pl_run_closep) struct pl_run *run = NULL;
    _cleanup_close_ int trial_fd = -EBADF;
    struct claim c = {0};
    unsigned trial;
    int before = 0, r = pl_trial_open_run(&run, &trial, err);

    if (r == 0)
        r = own_claim(&c, err);
    if (r == 0)
        r = pl_run_make_trial(run, trial, &trial_fd, err);
    for (unsigned k = 0; r == 0 && k < 100000; k++) {
        _cleanup_free_ char *path = pl_run_attempt_path(run, trial, k, "claim");
        char name[32];

        if (!path)
            return pl_error_nomem(err);
        if (before == 2)
            settle_before(run, trial, k - 1);
        snprintf(name, sizeof(name), "attempt-%u", k);
        r = faccessat(trial_fd, name, F_OK, AT_SYMLINK_NOFOLLOW) == 0
                ? -EEXIST
                : take_attempt(trial_fd, name, &c, path, err);
        if (r == 0) {
            *ret_attempt = k;
            return check_start(run, trial, k, &c, before, err);
        }
        if (r != -EEXIST)
            return r;
        r = look_at_attempt(trial_fd, name, &c, path, err);
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
    int r = path ? pl_json_load_file(path, PL_RUN_CLAIM_MAX, &o, NULL) : -ENOMEM;

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
    int r = pl_trial_open_run(&run, &trial, err);

    if (r == 0)
        r = pl_trial_env_number(PL_ENV_PLUME_ATTEMPT, -1, &attempt, err);
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
    r = pl_trial_open_run(&run, &trial, err);
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
    unsigned trial, attempt;
    int r = pl_trial_open_run(&run, &trial, err);

    if (r ==
        0) /* attempt 0 is not the default: it may have ended, and its files would be replaced */
        r = pl_trial_env_number(PL_ENV_PLUME_ATTEMPT, -1, &attempt, err);
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
