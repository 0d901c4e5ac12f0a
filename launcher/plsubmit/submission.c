/* SPDX-License-Identifier: MIT */
#include "launcher/plsubmit/submission.h"
#include "common/base/log.h"
#include "common/base/term.h"
#include "common/run/run_end.h"
#include "common/run/run_index.h"
#include "common/run/run_local.h"
#include "launcher/plsubmit/advice.h"
#include "launcher/plsubmit/after.h"
#include "launcher/plsubmit/clusters.h"
#include "launcher/plsubmit/local.h"
#include "launcher/plsubmit/on_end.h"
#include "launcher/plsubmit/report.h"
#include "launcher/plsubmit/submit.h"
#include "launcher/plsubmit/wait_report.h"

#include <limits.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

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

/* Asks about the array that a new sweep will be, while sbatch submits it. */
static void ask_early(const struct pl_submission *s, struct pl_advice *ret)
{
    const struct pl_run *run = s->change->run;
    unsigned n = pl_run_n_trials(run);

    if (!s->resumed && !s->only && pl_run_n_submissions(run) == 0 && n <= PL_SUBMIT_ARRAY_SIZE)
        pl_advice_ask(run, &(struct pl_chunk){.n = n}, ret);
}

/* Warns about arrays from submission `before` on. */
static void
advise(struct pl_advice *advice, const struct pl_run *run, const char *folder, size_t before)
{
    _cleanup_free_ char *start = NULL, *place = NULL;
    struct pl_run_submission sub;

    if (pl_run_n_submissions(run) == before)
        return;
    sub = pl_run_submission(run, before);
    pl_advice_answer(advice, run,
                     &(struct pl_chunk){sub.first_trial, sub.n_trials, sub.tasks, sub.retry},
                     folder, &start, &place);
    if (start)
        pl_term_complain(stderr, "plsubmit: warning", start);
    if (place)
        pl_term_complain(stderr, "plsubmit: warning", place);
}

static int wait_for_trials(const struct pl_run *run, const char *bin_dir, bool quiet)
{
    _cleanup_(pl_buf_finish) struct pl_buf missing = {0}, causes = {0};
    struct pl_wait_result result;
    struct pl_error err = {0};

    if (pl_wait_show(run, &result, &err) < 0)
        return pl_report_error(&err, PL_EXIT_FAILED);
    if (result.other && pl_wait_causes(run, bin_dir, result.other, &causes, &err) < 0)
        pl_report_error(&err, PL_EXIT_FAILED);
    pl_report_messages(&causes);
    if (!quiet)
        printf("%s: %u of %u trials done\n", pl_run_sweep(run), result.done, pl_run_n_trials(run));
    if (pl_wait_missing(run, &missing) == 0 && missing.len)
        pl_term_complain(stderr, "plsubmit: warning", pl_buf_str(&missing));
    return result.other == 0 ? PL_EXIT_OK : PL_EXIT_FAILED;
}

/* Adds the run to the index. changed: the index cannot have its submissions yet. False if it could
 * not be added. */
static bool add_to_index(const struct pl_run *run, bool changed)
{
    struct pl_error err = {0};

    if ((!changed && !pl_run_index_lacks(run)) || pl_run_index_try(run, &err) == 0)
        return true;
    pl_log_warn("submit",
                "cannot add the run to the index: %s; plstat finds it by its folder only, until "
                "plsubmit --resume %s adds it",
                err.text, pl_run_dir(run));
    return false;
}

/* --no-submit. */
static int show_not_submitted(const struct pl_submission *s, const struct pl_spec *spec)
{
    const struct pl_run *run = s->change->run;
    size_t n = s->only ? s->only : pl_run_n_trials(run);

    (void)add_to_index(run, true);
    pl_change_unlock(s->change);
    if (spec->parsable)
        printf("%s;%s;\n", pl_run_sweep(run), pl_run_dir(run));
    else
        printf("not submitted: %zu trial%s of %s, folder %s\nplsubmit --resume %s\n", n,
               n == 1 ? "" : "s", pl_run_sweep(run), s->folder, pl_run_sweep(run));
    return fflush(stdout) != 0 || ferror(stdout) ? PL_EXIT_FAILED : PL_EXIT_OK;
}

/* The trials of the submissions from `from` on. */
static size_t count_trials(const struct pl_run *run, size_t from)
{
    size_t n = 0;

    for (size_t i = from; i < pl_run_n_submissions(run); i++) {
        struct pl_run_submission sub = pl_run_submission(run, i);

        for (unsigned k = 0; k < sub.n_trials; k++)
            n += pl_run_submission_has(&sub, sub.first_trial + k);
    }
    return n;
}

/* A call that submits the rest of a sweep reports that part. Scripts get all jobs of --resume. */
static int
report(const struct pl_submission *s, const struct pl_spec *spec, size_t before, bool indexed)
{
    static const char all_submitted[] = "nothing to submit: Slurm has had all trials\n";
    const struct pl_run *run = s->change->run;

    if (pl_run_n_submissions(run) == before) {
        fputs(all_submitted, spec->parsable ? stderr : stdout);
        if (!spec->parsable)
            return fflush(stdout) != 0 ? -EIO : 0;
    }
    return pl_report_submitted(run, s->only || !spec->parsable ? before : 0,
                               count_trials(run, before), s->folder, s->shape, indexed,
                               spec->parsable);
}

/* After a failure of pl_submit_run(): returns the exit code. */
static int not_submitted(const struct pl_submission *s, int r, const struct pl_error *err)
{
    struct pl_error later;

    if (r == -EHOSTUNREACH || r == -ETIMEDOUT || r == -EAGAIN || r == -EBUSY) {
        pl_error_set(&later, r, "%.700s; try again later: plsubmit --resume %.300s", err->text,
                     s->folder);
        return pl_report_error(&later, PL_EXIT_TRY_AGAIN);
    }
    /* sbatch refused or does not exist: Slurm has none of the trials. */
    if (!s->resumed && !s->only && pl_run_n_submissions(s->change->run) == 0 &&
        (r == -EREMOTEIO || r == -ENOENT || r == -EXDEV))
        pl_run_discard(PL_TAKE(s->change->run));
    return pl_report_error(err, PL_EXIT_FAILED);
}

/* Submits arrays, and the job of --on-end after them: it waits for all. */
static int submit_to_slurm(const struct pl_submission *s,
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

int pl_submission_send(const struct pl_submission *s,
                       const struct pl_spec *spec,
                       const char *bin_dir)
{
    struct pl_run *run = s->change->run;
    _cleanup_(pl_buf_finish) struct pl_buf messages = {0};
    _cleanup_(pl_advice_drop) struct pl_advice advice = {0};
    _cleanup_free_ char *depends = NULL;
    struct pl_error err = {0};
    size_t before = pl_run_n_submissions(run);
    bool indexed = true;
    int r;

    set_signal_text("submit the rest with: plsubmit --resume", s->folder);
    if (spec->no_submit)
        return show_not_submitted(s, spec);
    r = pl_after_dependency(s->after, pl_clusters_chosen(pl_run_sbatch_args(run), environ), bin_dir,
                            &depends, &err);
    if (r == 0 && pl_run_is_local(run))
        r = pl_local_submit(run, &err);
    else if (r == 0) {
        ask_early(s, &advice);
        r = submit_to_slurm(s, bin_dir, depends, &messages, &err);
    }
    pl_report_messages(&messages);
    if (r == 0 || pl_run_n_submissions(run) > before)
        indexed = add_to_index(run, pl_run_n_submissions(run) > before && !pl_run_is_local(run));
    if (r < 0) {
        pl_advice_drop(&advice); /* sbatch --test-only reads the folder, which may go away */
        return not_submitted(s, r, &err);
    }
    pl_change_unlock(s->change); /* whoever reads the report may change the sweep */
    if (report(s, spec, before, indexed) < 0) {
        pl_error_set(&err, -EIO, "submitted, run folder '%.700s', but cannot write this to stdout",
                     s->folder);
        return pl_report_error(&err, PL_EXIT_FAILED);
    }
    set_signal_text("the trials continue: plstat sweep", indexed ? pl_run_sweep(run) : s->folder);
    if (!pl_run_is_local(run))
        advise(&advice, run, s->folder, before);
    return spec->wait ? wait_for_trials(run, bin_dir, spec->parsable) : PL_EXIT_OK;
}
