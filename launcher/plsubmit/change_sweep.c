/* SPDX-License-Identifier: MIT */
#include "launcher/plsubmit/change_sweep.h"
#include "common/base/fs.h"
#include "common/base/log.h"
#include "common/base/slow_fs.h"
#include "common/run/run_local.h"
#include "common/run/run_stop.h"
#include "launcher/plsubmit/after.h"
#include "launcher/plsubmit/extend.h"
#include "launcher/plsubmit/hints.h"
#include "launcher/plsubmit/hparams.h"
#include "launcher/plsubmit/local.h"
#include "launcher/plsubmit/report.h"
#include "launcher/plsubmit/submission.h"
#include "launcher/plsubmit/submit.h"
#include "launcher/plsubmit/trial_env.h"
#include "launcher/plsubmit/update.h"

#include <string.h>

/* Submits what is recorded in the folder of an earlier submission. */
static int submit_change(struct pl_change *change,
                         const struct pl_spec *spec,
                         const char *bin_dir,
                         bool resumed,
                         size_t only)
{
    _cleanup_(pl_strv_freep) char **after = NULL;
    struct pl_submission s = {
        .change = change,
        .folder = resumed && strchr(spec->changed, '/') ? spec->changed : pl_run_dir(change->run),
        .resumed = resumed,
        .only = only};
    struct pl_error err = {0};

    if (pl_after_of_run(change->run, &after) < 0) {
        pl_error_nomem(&err);
        return pl_report_error(&err, PL_EXIT_FAILED);
    }
    s.after = after;
    return pl_submission_send(&s, spec, bin_dir);
}

static int check_whole(const struct pl_change *change, const char *option)
{
    struct pl_error err = {0};

    if (!change->trials)
        return 0;
    pl_error_set(&err, -EINVAL, "%s takes a whole sweep, not one trial of it", option);
    pl_report_error(&err, PL_EXIT_USAGE);
    return -EINVAL;
}

/* -EAGAIN: an earlier retry or extension is not submitted yet. -EBUSY: trials of --local run.
 * -EINVAL:
 * --env NAME has no value. */
static int check_ready(const struct pl_run *run, struct pl_error *err)
{
    _cleanup_free_ struct pl_chunk *rest = NULL;
    _cleanup_(pl_strv_freep) char **env = NULL;
    _cleanup_close_ int lock = -EBADF;
    size_t n;

    if (pl_run_is_local(run) && pl_run_local_lock(run, &lock, err) < 0)
        return err->code;
    if (pl_submit_plan(run, UINT32_MAX, &rest, &n) < 0)
        return pl_error_nomem(err);
    if (n == 0 && pl_run_n_planned(run) == 0)
        return pl_trial_env_add(run, &env, err);
    return pl_error_set(err, -EAGAIN, "an earlier %s is not complete: plsubmit --resume %s",
                        pl_run_n_planned(run) ? "retry" : "submission", pl_run_sweep(run));
}

/* -EINVAL: --max-fail has stopped the sweep. New trials belong to its first submission, and only a
 * retry's start then. */
static int check_not_stopped(const struct pl_run *run, struct pl_error *err)
{
    struct pl_run_stop stop = pl_run_read_stop(run);
    char text[PL_RUN_STOP_TEXT];

    if (!stop.stopped)
        return 0;
    return pl_error_set(err, -EINVAL,
                        "sweep %s was stopped: %s: trials that are added to it would not start: "
                        "submit them as a sweep of their own",
                        pl_run_sweep(run), pl_run_stop_text(&stop, text));
}

/* --extend. Returns an exit code or a negative errno. */
static int
extend(struct pl_change *change, struct pl_spec *spec, const char *bin_dir, struct pl_error *err)
{
    _cleanup_free_ char *pltrain = pl_path_join(bin_dir, "pltrain"), *warning = NULL;
    _cleanup_(pl_buf_finish) struct pl_buf lines = {0};
    struct pl_run *run = change->run;
    const char *const *argv = pl_run_argv(run, NULL);
    unsigned n = 0, known = 0;
    int r = pltrain ? pl_spec_make_trials(spec, err) : pl_error_nomem(err);

    if (r == 0 && pl_hparams_is_pltrain(argv[0]))
        r = pl_hparams_check(&spec->grid, (char *const *)(uintptr_t)argv, pltrain, &warning, err);
    if (r == -ENOENT) { /* the sweep's set-up may make the module */
        warning = strdup(pl_error_text(err));
        r = warning ? 0 : pl_error_nomem(err);
    }
    if (r == 0 && ((warning && pl_spec_warn(spec, "%s", warning) < 0) || pl_hints_axes(spec) < 0))
        r = pl_error_nomem(err);
    if (r == 0)
        r = pl_extend_hints(run, spec, err);
    if (r == 0 && pl_hints_show(spec) < 0)
        return PL_EXIT_USAGE;
    if (r == 0 && spec->expand) {
        r = pl_extend_lines(run, &spec->grid, &lines, &n, &known, err);
        return r < 0 ? r : fwrite(pl_buf_str(&lines), 1, lines.len, stdout) < lines.len ? -EIO : 0;
    }
    if (r == 0)
        r = check_not_stopped(run, err);
    if (r == 0)
        r = check_ready(run, err);
    if (r == 0)
        r = pl_extend_run(run, &spec->grid, &n, &known, err);
    if (r < 0)
        return r;
    if (n == 0)
        return pl_report_nothing(run, "submit", "the sweep has all these trials", spec->parsable);
    if (known)
        fprintf(stderr, "plsubmit: warning: the sweep has %u of these trials already\n", known);
    return submit_change(change, spec, bin_dir, false, n);
}

static int retry(struct pl_change *change,
                 const struct pl_spec *spec,
                 const char *bin_dir,
                 const int64_t *trials,
                 size_t n,
                 struct pl_error *err)
{
    struct pl_run *run = change->run;
    unsigned max = PL_SUBMIT_ARRAY_SIZE;
    int r = check_ready(run, err);

    if (r == 0 && trials[n - 1] - trials[0] >= max)
        r = pl_submit_ask_limit(&max, err);
    if (r == 0)
        r = pl_change_plan_retry(run, trials, n, max, err);
    return r < 0 ? r : submit_change(change, spec, bin_dir, false, n);
}

/* --retry, --cancel, --hold and --release. Returns an exit code or a negative errno. */
static int change_trials(struct pl_change *change,
                         const struct pl_spec *spec,
                         const char *bin_dir,
                         struct pl_error *err)
{
    static const char *const verbs[][2] = {
        [PL_CHANGE_RETRY] = {"submit", "submitted"},
        [PL_CHANGE_CANCEL] = {"cancel", "cancelled"},
        [PL_CHANGE_HOLD] = {"hold", "held"},
        [PL_CHANGE_RELEASE] = {"release", "released"},
    };
    _cleanup_(json_decrefp) json_t *states = NULL;
    _cleanup_(pl_strv_freep) char **jobs = NULL;
    _cleanup_free_ int64_t *trials = NULL;
    _cleanup_free_ char *counts = NULL;
    struct pl_error unrecorded = {0};
    bool local = pl_run_is_local(change->run);
    size_t n = 0;
    int r = pl_change_states(bin_dir, pl_run_dir(change->run), &states, err);

    if (r == 0 && spec->change == PL_CHANGE_RETRY)
        r = pl_change_await_ends(change->run, bin_dir, change->trials, &states, err);
    if (r == 0)
        r = pl_change_select(spec->change, states, change->trials, &trials, &n, err);
    if (r < 0)
        return r;
    if (n == 0) {
        counts = pl_change_counts(states, change->trials);
        pl_change_unlock(change);
        return pl_report_nothing(change->run, verbs[spec->change][0], counts ? counts : "",
                                 spec->parsable);
    }
    if (spec->change == PL_CHANGE_RETRY)
        return retry(change, spec, bin_dir, trials, n, err);
    r = pl_change_jobs(states, trials, n, &jobs);
    if (r < 0)
        return pl_error_set(err, r, "plstat does not report the jobs of the trials");
    /* A full disk may be the reason to cancel. A local run's executor reads the record. */
    if (spec->change == PL_CHANGE_CANCEL && change->slow && !local)
        pl_error_set(&unrecorded, -ETIMEDOUT, "the file system of '%s' does not answer",
                     pl_run_dir(change->run));
    else if (spec->change == PL_CHANGE_CANCEL)
        r = pl_run_add_cancelled(change->run, jobs, local ? err : &unrecorded);
    if (r == 0 && local)
        r = pl_local_cancel(change->run, err);
    else if (!local)
        r = pl_change_apply(spec->change, jobs, err);
    if (r < 0)
        return r;
    if (unrecorded.code < 0)
        pl_log_warn("submit",
                    "cannot record what is cancelled: %s; plstat may call trials that have not "
                    "begun lost",
                    unrecorded.text);
    pl_change_unlock(change);
    return pl_report_jobs(change->run, verbs[spec->change][1], n, (const char *const *)jobs,
                          pl_run_dir(change->run), NULL, spec->parsable);
}

/* Sets the limits of the trials that wait.
 * ret_jobs  theirs; the caller frees with pl_strv_free()
 * ret_n     their number */
static int update_limits(struct pl_change *change,
                         const struct pl_spec *spec,
                         const char *bin_dir,
                         char ***ret_jobs,
                         size_t *ret_n,
                         struct pl_error *err)
{
    _cleanup_(json_decrefp) json_t *states = NULL;
    _cleanup_(pl_strv_freep) char **jobs = NULL;
    _cleanup_free_ int64_t *trials = NULL;
    int r = pl_change_states(bin_dir, pl_run_dir(change->run), &states, err);

    if (r == 0) /* those that wait */
        r = pl_change_select(PL_CHANGE_HOLD, states, NULL, &trials, ret_n, err);
    if (r == 0 && pl_change_jobs(states, trials, *ret_n, &jobs) < 0)
        r = pl_error_set(err, -EPROTO, "plstat does not report the jobs of the trials");
    if (r == 0)
        r = pl_update_limits(change->run, spec, jobs, err);
    if (r < 0)
        return r;
    *ret_jobs = PL_TAKE(jobs);
    return 0;
}

/* --update. Returns an exit code or a negative errno. */
static int update(struct pl_change *change,
                  const struct pl_spec *spec,
                  const char *bin_dir,
                  struct pl_error *err)
{
    const struct pl_run *run = change->run;
    _cleanup_(pl_strv_freep) char **jobs = NULL, **waiting = NULL;
    const char *k = spec->values[PL_SPEC_MAX_PARALLEL].text;
    bool limits = pl_update_has_limits(spec);
    size_t n = pl_run_n_trials(run);
    int r = limits ? update_limits(change, spec, bin_dir, &waiting, &n, err) : 0;

    if (r == 0 && k)
        r = pl_update_parallel(change->run, k, &jobs, err);
    if (r < 0)
        return r;
    pl_change_unlock(change);
    if (k && jobs[0])
        return pl_report_jobs(run, "updated", pl_run_n_trials(run), (const char *const *)jobs,
                              pl_run_dir(run), NULL, spec->parsable);
    if (!waiting || !waiting[0])
        return pl_report_nothing(run, "update",
                                 limits ? "no trial waits; later retries get the values"
                                        : "no array waits or runs; later ones get the value",
                                 spec->parsable);
    return pl_report_jobs(run, "updated", n, (const char *const *)waiting, pl_run_dir(run), NULL,
                          spec->parsable);
}

/* Checks the other options of a change. */
static int check_change(const struct pl_spec *spec, char *const *words, struct pl_error *err)
{
    bool submits = spec->change == PL_CHANGE_RETRY || spec->change == PL_CHANGE_EXTEND;
    bool takes_trials = pl_change_takes_trials(spec->change);

    if (spec->change == PL_CHANGE_UPDATE && !spec->values[PL_SPEC_MAX_PARALLEL].text &&
        !pl_update_has_limits(spec))
        return pl_error_set(err, -EINVAL,
                            "--update changes --max-parallel, --time, --partition and --mem only: "
                            "give one of them");
    if (spec->wait && !submits && spec->change != PL_CHANGE_RESUME)
        return pl_error_set(err, -EINVAL,
                            "option '--wait' is for calls that submit trials: omit it, and follow "
                            "the sweep by plstat sweep --watch");
    if (takes_trials && words[0] && !words[1] && !words[0][strspn(words[0], "0123456789,-")] &&
        *words[0] && !strchr(spec->changed, '/'))
        return pl_error_set(err, -EINVAL, "for some trials of the sweep write %s/%s", spec->changed,
                            words[0]);
    if (!words[0] && submits && pl_update_has_limits(spec))
        return pl_error_set(err, -EINVAL,
                            "a change of a sweep takes --time, --partition and --mem from the run "
                            "folder: change them first by plsubmit --update %s",
                            spec->changed);
    if (words[0] || pl_spec_has_options(spec))
        return pl_error_set(err, -EINVAL,
                            "a change of a sweep takes the program and its options from the run "
                            "folder: omit them");
    if (spec->no_submit && !submits)
        return pl_error_set(err, -EINVAL, "--no-submit has no meaning here: omit it");
    return 0;
}

/* Whoever writes to a file system that does not answer cannot even be interrupted. */
static void try_folder(struct pl_change *change, const struct pl_spec *spec)
{
    if (spec->change == PL_CHANGE_HOLD || spec->change == PL_CHANGE_RELEASE) /* write nothing */
        return;
    change->slow = pl_slow_fs_try(pl_run_dir(change->run), PL_SUBMIT_WRITE_MS) < 0;
    if (change->slow && (spec->change != PL_CHANGE_CANCEL || pl_run_is_local(change->run)))
        pl_log_warn("submit", PL_SUBMIT_WAITS, pl_run_dir(change->run));
}

int pl_change_sweep(struct pl_spec *spec, char *const *words, const char *bin_dir)
{
    _cleanup_(pl_change_finish) struct pl_change change = PL_CHANGE_UNLOCKED;
    struct pl_error err = {0};
    int r;

    if (check_change(spec, words, &err) < 0)
        return pl_report_error(&err, PL_EXIT_USAGE);
    r = pl_change_open(spec->change, spec->changed, &change, &err);
    if (r < 0)
        return pl_report_error(&err, r == -EPERM || r == -EXDEV ? PL_EXIT_FAILED
                                     : r == -ENOENT             ? PL_EXIT_NOT_FOUND
                                     : r == -EBUSY              ? PL_EXIT_TRY_AGAIN
                                                                : PL_EXIT_USAGE);
    if (spec->change == PL_CHANGE_UPDATE && pl_run_is_local(change.run)) {
        pl_error_set(&err, -EINVAL,
                     "--local=J of a sweep stays as it is: cancel its trials, and submit anew");
        return pl_report_error(&err, PL_EXIT_USAGE);
    }
    if ((spec->change == PL_CHANGE_HOLD || spec->change == PL_CHANGE_RELEASE) &&
        pl_run_is_local(change.run)) {
        pl_error_set(&err, -EINVAL,
                     "trials of --local cannot be held: cancel them, and retry them later");
        return pl_report_error(&err, PL_EXIT_USAGE);
    }
    if (spec->change == PL_CHANGE_RESUME && check_whole(&change, "--resume") < 0)
        return PL_EXIT_USAGE;
    if (spec->change == PL_CHANGE_EXTEND && check_whole(&change, "--extend") < 0)
        return PL_EXIT_USAGE;
    if (spec->change == PL_CHANGE_UPDATE && check_whole(&change, "--update") < 0)
        return PL_EXIT_USAGE;
    try_folder(&change, spec);
    if (spec->change == PL_CHANGE_RESUME)
        return submit_change(&change, spec, bin_dir, true, 0);
    r = spec->change == PL_CHANGE_EXTEND   ? extend(&change, spec, bin_dir, &err)
        : spec->change == PL_CHANGE_UPDATE ? update(&change, spec, bin_dir, &err)
                                           : change_trials(&change, spec, bin_dir, &err);
    if (r >= 0)
        return r;
    return pl_report_error(&err,
                           r == -EAGAIN || r == -EBUSY || r == -EHOSTUNREACH || r == -ETIMEDOUT
                               ? PL_EXIT_TRY_AGAIN
                           : r == -EINVAL || r == -E2BIG ? PL_EXIT_USAGE
                                                         : PL_EXIT_FAILED);
}
