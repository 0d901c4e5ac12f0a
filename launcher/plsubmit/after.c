/* SPDX-License-Identifier: MIT */
#include "launcher/plsubmit/after.h"
#include "common/base/fs.h"
#include "common/base/parse.h"
#include "common/proto/json.h"
#include "common/run/run_index.h"
#include "common/run/run_local.h"
#include "launcher/plsubmit/change.h"
#include "launcher/slurm/slurm_cluster.h"

#include <string.h>
#include <strings.h>

#define TASKS_MAX 500 /* Slurm has no limit, but reads each of them at every pass */

static const char of_ok[] = ":ok", of_any[] = ":any";

/* Splits "SWEEP:any"; true for the condition "ok". */
static bool split(const char *word, size_t *ret_len)
{
    size_t len = strlen(word), ok = strlen(of_ok), any = strlen(of_any);

    *ret_len = len;
    if (len > any && strcmp(word + len - any, of_any) == 0) {
        *ret_len = len - any;
        return false;
    }
    if (len > ok && strcmp(word + len - ok, of_ok) == 0)
        *ret_len = len - ok;
    return true;
}

static int resolve_word(char **word, struct pl_error *err)
{
    _cleanup_(pl_run_ref_finish) struct pl_run_ref ref = {.trial = -1};
    size_t len;
    bool ok = split(*word, &len);
    _cleanup_free_ char *sweep = strndup(*word, len);
    char *full;
    int r = sweep ? pl_slurm_find_run(sweep, &ref, err) : pl_error_nomem(err);

    if (r < 0)
        return r;
    if (ref.trial >= 0)
        return pl_error_set(err, -EINVAL, "'%s' is one trial: --after takes a whole sweep", sweep);
    full = pl_strf("%s%s", ref.folder, ok ? of_ok : of_any);
    if (!full)
        return pl_error_nomem(err);
    free(*word);
    *word = full;
    return 0;
}

int pl_after_resolve(char **words, struct pl_error *err)
{
    for (; words && *words; words++) {
        int r = resolve_word(words, err);

        if (r < 0)
            return pl_error_wrap(err, r, "--after");
    }
    return 0;
}

int pl_after_of_run(const struct pl_run *run, char ***ret)
{
    const json_t *option = json_object_get(pl_run_options(run), "after"), *item;
    _cleanup_(pl_strv_freep) char **list = NULL;
    size_t i;

    json_array_foreach (json_object_get(option, "value"), i, item) {
        if (json_is_string(item) && pl_strv_append(&list, json_string_value(item)) < 0)
            return -ENOMEM;
    }
    *ret = PL_TAKE(list);
    return 0;
}

/* ---- one sweep ---- */

struct view {
    const struct pl_run *run;
    int64_t *arrays; /* of each trial: the array that has it now; 0: it has ended */
    unsigned n;
};

static const char *condition_fails(enum pl_trial_state state)
{
    return state == PL_TRIAL_DONE || state == PL_TRIAL_PRUNED ? NULL : pl_trial_state_name(state);
}

/* Reads a trial of plstat's document. */
static int read_trial(struct view *v, const json_t *o, bool ok, struct pl_error *err)
{
    const char *name = pl_json_string(o, "state"), *job = pl_json_string(o, "job");
    enum pl_trial_state state;
    int64_t trial;
    char *end;

    if (pl_json_int(o, "trial", &trial) < 0 || trial < 0 || trial >= (int64_t)v->n || !name ||
        pl_trial_state_parse(name, &state) < 0)
        return pl_error_set(err, -EIO, "cannot read plstat's report of the trials of '%s'",
                            pl_run_sweep(v->run));
    if (state != PL_TRIAL_WAITING && state != PL_TRIAL_RUNNING) {
        const char *other = ok ? condition_fails(state) : NULL;

        return other ? pl_error_set(err, -EREMOTEIO,
                                    "trial %lld of %s is %s, not done: write %s:any to start all "
                                    "the same, or first plsubmit --retry %s",
                                    (long long)trial, pl_run_sweep(v->run), other,
                                    pl_run_sweep(v->run), pl_run_sweep(v->run))
                     : 0;
    }
    if (pl_run_is_local(v->run))
        return pl_error_set(err, -EREMOTEIO,
                            "%s runs without Slurm (--local), and Slurm cannot wait for it: wait "
                            "until it has ended, as with plsubmit --resume %s --wait",
                            pl_run_sweep(v->run), pl_run_sweep(v->run));
    v->arrays[trial] = job ? strtoll(job, &end, 10) : 0;
    if (v->arrays[trial] <= 0)
        return pl_error_set(err, -EREMOTEIO,
                            "trial %lld of %s is not submitted: first plsubmit --resume %s",
                            (long long)trial, pl_run_sweep(v->run), pl_run_sweep(v->run));
    return 0;
}

/* True if Slurm's "afterok" of the whole array is the trials' "ok": none of its tasks has ended and
 * runs again in another array. */
static bool array_is_whole(const struct view *v, const struct pl_run_submission *sub, int64_t array)
{
    for (unsigned i = 0; i < sub->n_trials && sub->first_trial + i < v->n; i++) {
        unsigned trial = sub->first_trial + i;

        if (!pl_run_submission_has(sub, trial) || v->arrays[trial] == array)
            continue;
        for (size_t k = 0; k < pl_run_n_submissions(v->run); k++) {
            struct pl_run_submission later = pl_run_submission(v->run, k);

            if (later.retry > sub->retry && pl_run_submission_has(&later, trial))
                return false;
        }
    }
    return true;
}

static int add_tasks(const struct view *v,
                     const struct pl_run_submission *sub,
                     int64_t array,
                     struct pl_buf *out,
                     struct pl_error *err)
{
    unsigned n = 0;
    int r = 0;

    for (unsigned trial = sub->first_trial; trial < v->n && r == 0; trial++) {
        if (v->arrays[trial] != array)
            continue;
        if (++n > TASKS_MAX)
            return pl_error_set(err, -EREMOTEIO,
                                "more than %u trials of %s still run: wait, or write %s:any",
                                TASKS_MAX, pl_run_sweep(v->run), pl_run_sweep(v->run));
        r = pl_buf_addf(out, "%safterok:%lld_%u", out->len ? "," : "", (long long)array,
                        trial - sub->first_trial);
    }
    return r < 0 ? pl_error_nomem(err) : 0;
}

static int add_arrays(const struct view *v, bool ok, struct pl_buf *out, struct pl_error *err)
{
    int r = 0;

    for (size_t i = 0; i < pl_run_n_submissions(v->run) && r == 0; i++) {
        struct pl_run_submission sub = pl_run_submission(v->run, i);
        int64_t array = 0;
        bool active = false;

        pl_parse_int(sub.job, 1, INT64_MAX, &array, NULL);
        for (unsigned trial = 0; trial < v->n && !active; trial++)
            active = v->arrays[trial] == array;
        if (!active)
            continue;
        if (ok && !array_is_whole(v, &sub, array))
            r = add_tasks(v, &sub, array, out, err);
        else if (pl_buf_addf(out, "%safter%s:%lld", out->len ? "," : "", ok ? "ok" : "any",
                             (long long)array) < 0)
            r = pl_error_nomem(err);
    }
    return r;
}

static int add_sweep(
    const char *folder, bool ok, const char *bin_dir, struct pl_buf *out, struct pl_error *err)
{
    _cleanup_(pl_run_closep) struct pl_run *run = NULL;
    _cleanup_(json_decrefp) json_t *states = NULL;
    _cleanup_free_ int64_t *arrays = NULL;
    struct view v = {0};
    const json_t *o;
    size_t i;
    int r = pl_run_open(folder, &run, err);

    if (r == 0)
        r = pl_slurm_check_cluster(run, err);
    if (r == 0)
        r = pl_change_states(bin_dir, folder, &states, err);
    if (r < 0)
        return r;
    arrays = calloc(pl_run_n_trials(run), sizeof(*arrays));
    if (!arrays)
        return pl_error_nomem(err);
    v = (struct view){.run = run, .arrays = arrays, .n = pl_run_n_trials(run)};
    json_array_foreach (json_object_get(states, "trials"), i, o) {
        r = read_trial(&v, o, ok, err);
        if (r < 0)
            return r;
    }
    return add_arrays(&v, ok, out, err);
}

/* -EXDEV: Slurm may start the trials on another cluster, which does not know the jobs here. */
static int check_clusters(const char *clusters, struct pl_error *err)
{
    _cleanup_free_ char *here = clusters ? pl_slurm_cluster() : NULL;

    if (!clusters || (here && strcasecmp(here, clusters) == 0))
        return 0;
    return pl_error_set(err, -EXDEV,
                        "--after: sbatch is to choose the cluster '%s', and a job there cannot "
                        "wait for one of this cluster",
                        clusters);
}

int pl_after_dependency(
    char *const *words, const char *clusters, const char *bin_dir, char **ret, struct pl_error *err)
{
    _cleanup_(pl_buf_finish) struct pl_buf out = {0};

    for (; words && *words; words++) {
        size_t len;
        bool ok = split(*words, &len);
        _cleanup_free_ char *folder = strndup(*words, len);
        int r = folder ? add_sweep(folder, ok, bin_dir, &out, err) : pl_error_nomem(err);

        if (r < 0)
            return pl_error_wrap(err, r, "--after");
    }
    if (out.len && check_clusters(clusters, err) < 0)
        return err->code;
    *ret = out.len ? strdup(pl_buf_str(&out)) : NULL;
    return out.len && !*ret ? pl_error_nomem(err) : 0;
}
