/* SPDX-License-Identifier: MIT */
#include "runtime/plrun/requeue.h"
#include "common/base/child.h"
#include "common/base/env.h"
#include "common/base/fs.h"
#include "common/proto/json.h"
#include "common/run/requeue_rule.h"
#include "common/run/run_local.h"

#include <dirent.h>
#include <string.h>
#include <sys/stat.h>

#define ASK_MS 10000
#define SHORT_S 60 /* an attempt that reports no steps and ends earlier made no progress */
#define FILE_MAX (64u << 10)

/* ---- the file ---- */

static json_t *read_history(const struct pl_run *run, const struct pl_attempt_end *end)
{
    _cleanup_free_ char *path = pl_run_trial_path(run, end->trial, "requeues.json");
    json_t *o = NULL;
    int64_t retry;

    if (path && pl_json_load_file(path, FILE_MAX, &o, NULL) == 0 &&
        pl_json_int(o, "retry", &retry) == 0 && retry == (int64_t)end->retry)
        return o;
    json_decref(o);
    return json_pack("{s:i, s:i, s:{}}", "retry", (int)end->retry, "total", 0, "counts");
}

static int
write_history(const struct pl_run *run, unsigned trial, const json_t *history, struct pl_error *err)
{
    _cleanup_free_ char *name = pl_strf("trial-%04u/requeues.json", trial);
    _cleanup_(pl_buf_finish) struct pl_buf text = {0};

    if (!name || pl_json_dump_line(history, &text) < 0)
        return pl_error_nomem(err);
    return pl_run_write_file(run, name, pl_buf_str(&text), text.len, 0666, true, err);
}

static int64_t int_or(const json_t *o, const char *key, int64_t otherwise)
{
    int64_t n;

    return pl_json_int(o, key, &n) == 0 ? n : otherwise;
}

/* ---- progress ---- */

/* Time of the newest file in the trial's folder for checkpoints; 0: none. */
static double newest_checkpoint(const struct pl_run *run, unsigned trial)
{
    _cleanup_free_ char *path = pl_run_trial_path(run, trial, "checkpoints");
    DIR *list = path ? opendir(path) : NULL;
    const struct dirent *entry;
    double newest = 0;

    while (list && (entry = readdir(list))) {
        struct stat st;

        if (entry->d_name[0] != '.' && fstatat(dirfd(list), entry->d_name, &st, 0) == 0)
            newest = PL_MAX(newest, (double)st.st_mtim.tv_sec + (double)st.st_mtim.tv_nsec * 1e-9);
    }
    if (list)
        closedir(list);
    return newest;
}

/* Seconds of an attempt; without a result, from its claim. */
static double seconds_of(const json_t *result)
{
    double start = json_number_value(json_object_get(result, "started"));
    double end = json_number_value(json_object_get(result, "ended"));

    if (end <= 0)
        end = json_number_value(json_object_get(result, "time"));
    return start > 0 && end > start ? end - start : 0;
}

static json_t *
describe(const struct pl_run *run, const struct pl_attempt_end *end, const char *cause)
{
    return json_pack("{s:i, s:s, s:I, s:f, s:f}", "attempt", (int)end->attempt, "cause", cause,
                     "step", (json_int_t)int_or(end->result, "step", -1), "checkpoint",
                     newest_checkpoint(run, end->trial), "seconds", seconds_of(end->result));
}

/* True if both attempts ended alike and the second got no farther. */
static bool stands_still(const json_t *before, const json_t *now)
{
    const char *cause = pl_json_string(before, "cause");
    int64_t step = int_or(now, "step", -1);

    if (!cause || strcmp(cause, pl_json_string(now, "cause")) != 0 ||
        json_number_value(json_object_get(now, "checkpoint")) >
            json_number_value(json_object_get(before, "checkpoint")))
        return false;
    if (step >= 0)
        return step <= int_or(before, "step", -1);
    return json_number_value(json_object_get(before, "seconds")) < SHORT_S &&
           json_number_value(json_object_get(now, "seconds")) < SHORT_S;
}

/* ---- the decision ---- */

static int decide(const struct pl_requeue_rule *rule,
                  enum pl_requeue_cause cause,
                  const json_t *history,
                  const json_t *now,
                  bool by_slurm,
                  struct pl_error *err)
{
    const char *name = pl_requeue_cause_name(cause);
    int64_t count = int_or(json_object_get(history, "counts"), name, 0);
    int64_t total = int_or(history, "total", 0);

    if (rule->most[cause] == 0 && !by_slurm)
        return pl_error_set(err, -ECANCELED, "--requeue-on does not have the cause %s", name);
    if (rule->most[cause] && count >= (int64_t)rule->most[cause])
        return pl_error_set(err, -ECANCELED, "--requeue-on allows %u requeue%s after the cause %s",
                            rule->most[cause], rule->most[cause] == 1 ? "" : "s", name);
    if (total >= (int64_t)rule->total)
        return pl_error_set(err, -ECANCELED, "--max-requeues allows %u", rule->total);
    if (stands_still(json_object_get(history, "last"), now))
        return pl_error_set(err, -ECANCELED,
                            "two attempts in a row ended alike (%s), the second without a higher "
                            "step or a newer checkpoint",
                            name);
    return 0;
}

int pl_requeue_decide(const struct pl_run *run,
                      const struct pl_attempt_end *end,
                      struct pl_error *err)
{
    _cleanup_(json_decrefp) json_t *history = NULL, *now = NULL;
    enum pl_requeue_cause cause = pl_requeue_cause_of(end->state, end->result);
    struct pl_requeue_rule rule;
    json_t *counts;
    const char *name;
    int r;

    if (cause == PL_REQUEUE_N_CAUSES || !pl_requeue_of_run(run, &rule) || pl_run_is_local(run))
        return 0;
    name = pl_requeue_cause_name(cause);
    history = read_history(run, end);
    now = describe(run, end, name);
    counts = json_object_get(history, "counts");
    if (!counts || !now)
        return pl_error_nomem(err);
    if (int_or(json_object_get(history, "last"), "attempt", -1) == (int64_t)end->attempt)
        return 1;
    r = decide(&rule, cause, history, now, end->by_slurm, err);
    if (r < 0)
        return r;
    if (json_object_set_new(counts, name, json_integer(int_or(counts, name, 0) + 1)) < 0 ||
        json_object_set_new(history, "total", json_integer(int_or(history, "total", 0) + 1)) < 0 ||
        json_object_set(history, "last", now) < 0)
        return pl_error_nomem(err);
    r = write_history(run, end->trial, history, err);
    return r < 0 ? r : 1;
}

int pl_requeue_ask(struct pl_error *err)
{
    const char *array = pl_env(PL_ENV_SLURM_ARRAY_JOB_ID),
               *task = pl_env(PL_ENV_SLURM_ARRAY_TASK_ID);
    const char *job = pl_env(PL_ENV_SLURM_JOB_ID);
    /* The first task's own number stands for the whole array. */
    _cleanup_free_ char *name =
        array && task ? pl_strf("%s_%s", array, task) : strdup(job ? job : "");
    const char *argv[] = {"scontrol", "requeue", name, NULL};
    _cleanup_(pl_child_finish) struct pl_child child = {0};
    const char *text;
    int r = name ? pl_child_run(argv, NULL, ASK_MS, &child, err) : pl_error_nomem(err);

    if (r < 0 || child.status == 0)
        return r;
    text = pl_buf_str(child.err.len ? &child.err : &child.out);
    return pl_error_set(err, -EIO, "scontrol requeue %s: %.*s", name, (int)strcspn(text, "\n"),
                        text);
}
