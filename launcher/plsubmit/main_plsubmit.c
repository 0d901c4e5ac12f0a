/* SPDX-License-Identifier: MIT */
/* plsubmit(1). */
#include "common/base/fs.h"
#include "common/base/log.h"
#include "common/base/site.h"
#include "common/base/term.h"
#include "common/base/trace.h"
#include "common/run/run_end.h"
#include "common/run/run_index.h"
#include "common/run/run_local.h"
#include "common/run/run_stop.h"
#include "launcher/plsubmit/advice.h"
#include "launcher/plsubmit/after.h"
#include "launcher/plsubmit/change.h"
#include "launcher/plsubmit/check.h"
#include "launcher/plsubmit/extend.h"
#include "launcher/plsubmit/hparams.h"
#include "launcher/plsubmit/job_file.h"
#include "launcher/plsubmit/launch.h"
#include "launcher/plsubmit/local.h"
#include "launcher/plsubmit/on_end.h"
#include "launcher/plsubmit/report.h"
#include "launcher/plsubmit/submit.h"
#include "launcher/plsubmit/trial_env.h"
#include "launcher/plsubmit/update.h"
#include "launcher/plsubmit/wait_report.h"

#include <limits.h>
#include <signal.h>
#include <string.h>

static int print_error(const struct pl_error *err, int code)
{
    pl_term_complain(stderr, "plsubmit", pl_error_text(err));
    return code;
}

/* Printed if a signal ends plsubmit: the sweep continues, and this text says how. */
static char signal_text[PATH_MAX + 100];

static void on_signal(int sig)
{
    ssize_t ignored PL_UNUSED = write(STDERR_FILENO, signal_text, strlen(signal_text));

    _exit(sig == SIGINT ? PL_EXIT_INTERRUPTED : 128 + sig);
}

static void set_signal_text(const char *text, const char *name)
{
    static const int signals[] = {SIGINT, SIGTERM, SIGHUP};
    struct sigaction action = {.sa_handler = on_signal}, before;
    _cleanup_(pl_buf_finish) struct pl_buf words = {0};
    sigset_t set, old;

    if (pl_buf_addf(&words, "plsubmit: interrupted; %s ", text) < 0 ||
        pl_term_escape(&words, name, strlen(name)) < 0)
        return;
    sigemptyset(&set);
    for (size_t i = 0; i < PL_COUNT(signals); i++)
        sigaddset(&set, signals[i]);
    sigprocmask(SIG_BLOCK, &set, &old);
    snprintf(signal_text, sizeof(signal_text), "%s\n", pl_buf_str(&words));
    for (size_t i = 0; i < PL_COUNT(signals); i++)
        if (sigaction(signals[i], NULL, &before) == 0 && before.sa_handler != SIG_IGN)
            sigaction(signals[i], &action, NULL);
    sigprocmask(SIG_SETMASK, &old, NULL);
}

/* Finds the folder of this program, which also has the programs of the runtime. */
static int find_bin_dir(char *path, size_t size, struct pl_error *err)
{
    ssize_t n = readlink("/proc/self/exe", path, size - 1);
    char *slash;

    if (n < 0)
        return pl_error_errno(err, errno, "cannot find the folder of plsubmit");
    path[n] = '\0';
    slash = strrchr(path, '/');
    *(slash == path ? slash + 1 : slash) = '\0';
    return 0;
}

static int check_installed(const char *bin_dir, const char *program, struct pl_error *err)
{
    _cleanup_free_ char *path = pl_path_join(bin_dir, program);

    if (!path)
        return pl_error_set(err, -ENOMEM, "out of memory");
    if (access(path, X_OK) < 0)
        return pl_error_set(err, -ENOENT, "%s is not in plsubmit's folder '%s': build all of Plume",
                            program, bin_dir);
    return 0;
}

/* Warns about arrays from submission `before` on. */
static void advise(const struct pl_run *run, const char *folder, size_t before)
{
    _cleanup_free_ char *start = NULL, *place = NULL;
    struct pl_run_submission sub;

    if (pl_run_n_submissions(run) == before)
        return;
    sub = pl_run_submission(run, before);
    start = pl_advice_start(
        run, &(struct pl_chunk){sub.first_trial, sub.n_trials, sub.tasks, sub.retry});
    if (start)
        pl_term_complain(stderr, "plsubmit: warning", start);
    place = pl_advice_folder(pl_run_dir(run), folder);
    if (place)
        pl_term_complain(stderr, "plsubmit: warning", place);
}

static int wait_for_trials(const struct pl_run *run, const char *bin_dir, bool quiet)
{
    _cleanup_(pl_buf_finish) struct pl_buf missing = {0}, causes = {0};
    struct pl_wait_result result;
    struct pl_error err = {0};

    if (pl_wait_show(run, &result, &err) < 0)
        return print_error(&err, PL_EXIT_FAILED);
    if (result.other && pl_wait_causes(run, bin_dir, &causes, &err) < 0)
        print_error(&err, PL_EXIT_FAILED);
    pl_report_messages(&causes);
    if (!quiet)
        printf("%s: %u of %u trials done\n", pl_run_sweep(run), result.done, pl_run_n_trials(run));
    if (pl_wait_missing(run, &missing) == 0 && missing.len)
        pl_term_complain(stderr, "plsubmit: warning", pl_buf_str(&missing));
    return result.other == 0 ? PL_EXIT_OK : PL_EXIT_FAILED;
}

/* The argument of submit(): the submission, and the words of its report. */
struct submission {
    struct pl_change *change;
    const char *folder; /* as the user writes it */
    const char *shape;  /* of a trial; NULL: not shown */
    char *const *after; /* resolved words of --after; NULL: none */
    bool resumed;       /* the folder may have been submitted before */
    size_t only;        /* number of trials of a retry or an extension; 0: all */
};

/* --no-submit. */
static int show_not_submitted(const struct submission *s, const struct pl_spec *spec)
{
    const struct pl_run *run = s->change->run;
    size_t n = s->only ? s->only : pl_run_n_trials(run);
    struct pl_error err = {0};

    if (pl_run_index_add(run, &err) < 0)
        pl_log_warn("submit", "cannot add the run to the index: %s", err.text);
    pl_change_unlock(s->change);
    if (spec->parsable)
        printf("%s;%s;\n", pl_run_sweep(run), pl_run_dir(run));
    else
        printf("not submitted: %zu trial%s of %s, folder %s\nplsubmit --resume %s\n", n,
               n == 1 ? "" : "s", pl_run_sweep(run), s->folder, pl_run_sweep(run));
    return fflush(stdout) != 0 || ferror(stdout) ? PL_EXIT_FAILED : PL_EXIT_OK;
}

static int report(const struct submission *s, const struct pl_spec *spec, size_t before)
{
    static const char all_submitted[] = "nothing to submit: Slurm has had all trials\n";
    const struct pl_run *run = s->change->run;

    if (pl_run_n_submissions(run) == before) {
        fputs(all_submitted, spec->parsable ? stderr : stdout);
        if (!spec->parsable)
            return fflush(stdout) != 0 ? -EIO : 0;
    }
    return pl_report_submitted(run, s->only ? before : 0, s->only ? s->only : pl_run_n_trials(run),
                               s->folder, s->shape, spec->parsable);
}

/* After a failure of pl_submit_run(): returns the exit code. */
static int not_submitted(const struct submission *s, int r, const struct pl_error *err)
{
    struct pl_error later;

    if (r == -EHOSTUNREACH || r == -ETIMEDOUT || r == -EAGAIN || r == -EBUSY) {
        pl_error_set(&later, r, "%.700s; try again later: plsubmit --resume %.300s", err->text,
                     s->folder);
        return print_error(&later, PL_EXIT_TRY_AGAIN);
    }
    /* sbatch refused or does not exist: Slurm has none of the trials. */
    if (!s->resumed && !s->only && pl_run_n_submissions(s->change->run) == 0 &&
        (r == -EREMOTEIO || r == -ENOENT))
        pl_run_discard(PL_TAKE(s->change->run));
    return print_error(err, PL_EXIT_FAILED);
}

/* Submits arrays, and the job of --on-end after them: it waits for all. */
static int submit_to_slurm(const struct submission *s,
                           const char *bin_dir,
                           const char *depends,
                           struct pl_buf *messages,
                           struct pl_error *err)
{
    struct pl_run *run = s->change->run;
    size_t before = pl_run_n_submissions(run);
    int r = 0;

    if (pl_run_on_end(run))
        r = pl_on_end_test(pl_run_sbatch_args(run), pl_run_sweep(run), pl_run_dir(run), bin_dir,
                           err);
    if (r == 0)
        r = pl_submit_run(run, depends, s->resumed, messages, err);
    if (r < 0)
        return r;
    r = pl_on_end_submit(run, bin_dir, messages, err);
    if (r == -EREMOTEIO)
        pl_submit_cancel(run, before, err);
    return r;
}

/* Submits the trials that are not submitted yet, or a planned retry, reports them, and waits with
 * --wait. */
static int submit(const struct submission *s, const struct pl_spec *spec, const char *bin_dir)
{
    struct pl_run *run = s->change->run;
    _cleanup_(pl_buf_finish) struct pl_buf messages = {0};
    _cleanup_free_ char *depends = NULL;
    struct pl_error err = {0};
    size_t before = pl_run_n_submissions(run);
    int r;

    set_signal_text("submit the rest with: plsubmit --resume", s->folder);
    if (spec->no_submit)
        return show_not_submitted(s, spec);
    r = pl_after_dependency(s->after, bin_dir, &depends, &err);
    if (r == 0 && pl_run_is_local(run))
        r = pl_local_submit(run, &err);
    else if (r == 0)
        r = submit_to_slurm(s, bin_dir, depends, &messages, &err);
    pl_report_messages(&messages);
    if (r < 0)
        return not_submitted(s, r, &err);
    pl_change_unlock(s->change); /* whoever reads the report may change the sweep */
    if (report(s, spec, before) < 0) {
        pl_error_set(&err, -EIO, "submitted, run folder '%.700s', but cannot write this to stdout",
                     s->folder);
        return print_error(&err, PL_EXIT_FAILED);
    }
    set_signal_text("the trials continue: plstat sweep", pl_run_sweep(run));
    if (!pl_run_is_local(run))
        advise(run, s->folder, before);
    return spec->wait ? wait_for_trials(run, bin_dir, spec->parsable) : PL_EXIT_OK;
}

/* Submits what is recorded in the folder of an earlier submission. */
static int submit_change(struct pl_change *change,
                         const struct pl_spec *spec,
                         const char *bin_dir,
                         bool resumed,
                         size_t only)
{
    _cleanup_(pl_strv_freep) char **after = NULL;
    struct submission s = {
        .change = change,
        .folder = resumed && strchr(spec->changed, '/') ? spec->changed : pl_run_dir(change->run),
        .resumed = resumed,
        .only = only};
    struct pl_error err = {0};

    if (pl_after_of_run(change->run, &after) < 0) {
        pl_error_nomem(&err);
        return print_error(&err, PL_EXIT_FAILED);
    }
    s.after = after;
    return submit(&s, spec, bin_dir);
}

static int check_whole(const struct pl_change *change, const char *option)
{
    struct pl_error err = {0};

    if (!change->trials)
        return 0;
    pl_error_set(&err, -EINVAL, "%s takes a whole sweep, not one trial of it", option);
    print_error(&err, PL_EXIT_USAGE);
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
    if (spec->change == PL_CHANGE_CANCEL)
        r = pl_run_add_cancelled(change->run, jobs, err);
    if (r == 0 && pl_run_is_local(change->run))
        r = pl_local_cancel(change->run, err);
    else if (r == 0)
        r = pl_change_apply(spec->change, jobs, err);
    if (r < 0)
        return r;
    pl_change_unlock(change);
    return pl_report_jobs(change->run, verbs[spec->change][1], n, (const char *const *)jobs,
                          pl_run_dir(change->run), NULL, spec->parsable);
}

/* --update. Returns an exit code or a negative errno. */
static int update(struct pl_change *change, const struct pl_spec *spec, struct pl_error *err)
{
    const struct pl_run *run = change->run;
    _cleanup_(pl_strv_freep) char **jobs = NULL;
    int r = pl_update_parallel(change->run, spec->values[PL_SPEC_MAX_PARALLEL].text, &jobs, err);

    if (r < 0)
        return r;
    pl_change_unlock(change);
    if (!jobs[0])
        return pl_report_nothing(run, "update", "no array waits or runs; later ones get the value",
                                 spec->parsable);
    return pl_report_jobs(run, "updated", pl_run_n_trials(run), (const char *const *)jobs,
                          pl_run_dir(run), NULL, spec->parsable);
}

/* Checks the other options of a change. */
static int check_change(const struct pl_spec *spec, char *const *words, struct pl_error *err)
{
    bool submits = spec->change == PL_CHANGE_RETRY || spec->change == PL_CHANGE_EXTEND;

    if (spec->change == PL_CHANGE_UPDATE && !spec->values[PL_SPEC_MAX_PARALLEL].text)
        return pl_error_set(err, -EINVAL, "option '--update' needs '--max-parallel K'");
    if (words[0] || pl_spec_has_options(spec))
        return pl_error_set(err, -EINVAL,
                            "a change of a sweep takes the program and its options from the run "
                            "folder: omit them");
    if (spec->no_submit && !submits)
        return pl_error_set(err, -EINVAL, "--no-submit has no meaning here: omit it");
    return 0;
}

static int change_sweep(struct pl_spec *spec, char *const *words, const char *bin_dir)
{
    _cleanup_(pl_change_finish) struct pl_change change = {.lock = -EBADF};
    struct pl_error err = {0};
    int r;

    if (check_change(spec, words, &err) < 0)
        return print_error(&err, PL_EXIT_USAGE);
    r = pl_change_open(spec->changed, &change, &err);
    if (r < 0)
        return print_error(&err, r == -EPERM    ? PL_EXIT_FAILED
                                 : r == -ENOENT ? PL_EXIT_NOT_FOUND
                                 : r == -EBUSY  ? PL_EXIT_TRY_AGAIN
                                                : PL_EXIT_USAGE);
    if (spec->change == PL_CHANGE_UPDATE && pl_run_is_local(change.run)) {
        pl_error_set(&err, -EINVAL,
                     "--local=J of a sweep stays as it is: cancel its trials, and submit anew");
        return print_error(&err, PL_EXIT_USAGE);
    }
    if ((spec->change == PL_CHANGE_HOLD || spec->change == PL_CHANGE_RELEASE) &&
        pl_run_is_local(change.run)) {
        pl_error_set(&err, -EINVAL,
                     "trials of --local cannot be held: cancel them, and retry them later");
        return print_error(&err, PL_EXIT_USAGE);
    }
    if (spec->change == PL_CHANGE_RESUME && check_whole(&change, "--resume") < 0)
        return PL_EXIT_USAGE;
    if (spec->change == PL_CHANGE_EXTEND && check_whole(&change, "--extend") < 0)
        return PL_EXIT_USAGE;
    if (spec->change == PL_CHANGE_UPDATE && check_whole(&change, "--update") < 0)
        return PL_EXIT_USAGE;
    if (spec->change == PL_CHANGE_RESUME)
        return submit_change(&change, spec, bin_dir, true, 0);
    r = spec->change == PL_CHANGE_EXTEND   ? extend(&change, spec, bin_dir, &err)
        : spec->change == PL_CHANGE_UPDATE ? update(&change, spec, &err)
                                           : change_trials(&change, spec, bin_dir, &err);
    if (r >= 0)
        return r;
    return print_error(&err, r == -EAGAIN || r == -EBUSY || r == -EHOSTUNREACH || r == -ETIMEDOUT
                                 ? PL_EXIT_TRY_AGAIN
                             : r == -EINVAL || r == -E2BIG ? PL_EXIT_USAGE
                                                           : PL_EXIT_FAILED);
}

/* At most one option may replace the submission: with two, one would be ignored. */
static int check_questions(const struct pl_spec *spec, struct pl_error *err)
{
    const struct {
        const char *name;
        bool wanted;
    } questions[] = {{"--check", spec->check},         {"--dry-run", spec->dry_run},
                     {"--expand", spec->expand},       {"--show-config", spec->show_config},
                     {"--write-job", spec->write_job}, {"--no-submit", spec->no_submit}};
    const char *first = NULL;

    for (size_t i = 0; i < PL_COUNT(questions); i++) {
        if (questions[i].wanted && first)
            return pl_error_set(err, -EINVAL, "%s and %s cannot be combined: omit one of them",
                                first, questions[i].name);
        if (questions[i].wanted)
            first = questions[i].name;
    }
    return 0;
}

/* --check. */
static int check(const struct pl_launch *plan)
{
    struct pl_error err = {0};
    unsigned wrong;

    if (check_installed(plan->bin_dir, "plrun", &err) < 0 ||
        pl_check_run(plan, stdout, &wrong, &err) < 0)
        return print_error(&err, PL_EXIT_FAILED);
    return wrong ? PL_EXIT_FAILED : PL_EXIT_OK;
}

static int
launch(const struct pl_spec *spec, const struct pl_snapshot *snapshot, const char *bin_dir)
{
    _cleanup_(pl_launch_finish) struct pl_launch plan = {0};
    _cleanup_(pl_change_finish) struct pl_change change = {.lock = -EBADF};
    struct submission s = {.change = &change, .after = spec->lists[PL_SPEC_AFTER]};
    struct pl_error err = {0};
    int r;

    if (spec->no_submit && spec->wait) {
        pl_error_set(&err, -EINVAL, "--wait has nothing to wait for with --no-submit: omit one");
        return print_error(&err, PL_EXIT_USAGE);
    }
    if (pl_launch_init(&plan, spec, snapshot, bin_dir, &err) < 0)
        return print_error(&err, PL_EXIT_USAGE);
    if (spec->dry_run)
        return pl_launch_show(&plan, stdout, &err) < 0 ? print_error(&err, PL_EXIT_FAILED)
                                                       : PL_EXIT_OK;
    if (spec->check)
        return check(&plan);
    if (check_installed(bin_dir, "plrun", &err) < 0 ||
        (spec->bundled && check_installed(bin_dir, "pltrain", &err) < 0))
        return print_error(&err, PL_EXIT_USAGE);
    r = pl_launch_create(&plan, &change.run, &err);
    if (r < 0)
        return print_error(&err, r == -EPERM ? PL_EXIT_FAILED : PL_EXIT_USAGE);
    if (pl_change_lock(plan.dir, &change.lock, &err) < 0)
        return print_error(&err, PL_EXIT_TRY_AGAIN);
    s.folder = plan.folder;
    s.shape = plan.shape;
    return submit(&s, spec, bin_dir);
}

/* pltrain itself checks its options and hyper-parameters, with each value of each axis. */
static int check_hparams(struct pl_spec *spec, const char *bin_dir, struct pl_error *err)
{
    _cleanup_free_ char *pltrain = pl_path_join(bin_dir, "pltrain"), *warning = NULL;
    int r = pltrain ? 0 : -ENOMEM;

    if (r == 0 && pl_hparams_is_pltrain(spec->argv[0]))
        r = pl_hparams_check(&spec->grid, spec->argv, pltrain, &warning, err);
    if (r == 0 && warning && pl_spec_warn(spec, "%s", warning) < 0)
        r = -ENOMEM;
    return r == -ENOMEM ? pl_error_set(err, r, "out of memory") : r;
}

/* Prints the warnings. -EINVAL: there are some, and --strict refuses them. */
static int show_warnings(const struct pl_spec *spec)
{
    const char *prefix = spec->strict ? "plsubmit: --strict" : "plsubmit: warning";

    for (char **line = spec->warnings; line && *line; line++)
        pl_term_complain(stderr, prefix, *line);
    return spec->strict && spec->warnings ? -EINVAL : 0;
}

int main(int argc, char **argv)
{
    _cleanup_(pl_spec_finish) struct pl_spec spec = {0};
    _cleanup_(pl_snapshot_finish) struct pl_snapshot snapshot = {0};
    _cleanup_(pl_buf_finish) struct pl_buf job = {0};
    struct pl_error err = {0};
    char bin_dir[PATH_MAX];
    char *const *words;
    bool done;
    int rest;

    pl_std_open();
    pl_log_init("plsubmit");
    pl_trace_init("plsubmit");
    if (pl_site_load(&err) < 0)
        return print_error(&err, PL_EXIT_FAILED);
    if (pl_options_parse(&pl_spec_command, argc, argv, &spec, &rest, &done, &err) < 0)
        return print_error(&err, PL_EXIT_USAGE);
    if (done)
        return PL_EXIT_OK;
    if (find_bin_dir(bin_dir, sizeof(bin_dir), &err) < 0)
        return print_error(&err, PL_EXIT_FAILED);
    if (spec.change != PL_CHANGE_NONE)
        return change_sweep(&spec, argv + rest, bin_dir);
    if (check_questions(&spec, &err) < 0)
        return print_error(&err, PL_EXIT_USAGE);
    if (pl_job_files_apply(&spec, &err) < 0)
        return print_error(&err, PL_EXIT_USAGE);
    words = argv[rest] || !spec.command ? argv + rest : spec.command;
    spec.own_words = words == spec.command || (rest > 1 && strcmp(argv[rest - 1], "--") == 0);
    if (spec.write_job && pl_job_file_format(&spec, words, &job, &err) < 0)
        return print_error(&err, PL_EXIT_USAGE);
    if (pl_spec_resolve(&spec, words, bin_dir, &err) < 0)
        return print_error(&err, PL_EXIT_USAGE);
    if (pl_local_check(&spec, &err) < 0)
        return print_error(&err, PL_EXIT_USAGE);
    if (pl_trial_env_check(&spec, &err) < 0)
        return print_error(&err, PL_EXIT_USAGE);
    if (pl_after_resolve(spec.lists[PL_SPEC_AFTER], &err) < 0)
        return print_error(&err, err.code == -ENOENT ? PL_EXIT_NOT_FOUND : PL_EXIT_USAGE);
    if (check_hparams(&spec, bin_dir, &err) < 0)
        return print_error(&err, PL_EXIT_USAGE);
    if (!spec.write_job && !spec.expand && !spec.show_config &&
        pl_snapshot_plan(&spec, &snapshot, &err) < 0)
        return print_error(&err, PL_EXIT_USAGE);
    if (!spec.check && show_warnings(&spec) < 0)
        return PL_EXIT_USAGE;
    if (spec.write_job)
        return pl_job_file_write(&spec, &job, &err) < 0 ? print_error(&err, PL_EXIT_FAILED)
                                                        : PL_EXIT_OK;
    if (spec.expand)
        return pl_launch_expand(&spec, stdout, &err) < 0 ? print_error(&err, PL_EXIT_FAILED)
                                                         : PL_EXIT_OK;
    if (spec.show_config)
        return pl_spec_show(&spec, stdout) < 0 ? PL_EXIT_FAILED : PL_EXIT_OK;
    return launch(&spec, &snapshot, bin_dir);
}
