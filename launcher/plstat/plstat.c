/* SPDX-License-Identifier: MIT */
#include "launcher/plstat/plstat.h"
#include "common/base/fs.h"
#include "common/base/utf8.h"
#include "launcher/plstat/words.h"

#include <poll.h>
#include <stdarg.h>
#include <string.h>

#define WRITE_MS 1000 /* between tries to write to a full pipe */

void pl_plstat_reset(struct pl_plstat *ps)
{
    pl_slurm_view_finish(&ps->slurm);
    pl_notes_finish(&ps->notes);
    pl_buf_finish(&ps->text);
    ps->text = (struct pl_buf){0};
    json_decref(PL_TAKE(ps->doc));
    ps->any_failure = false;
}

int pl_plstat_write(const char *data, size_t len)
{
    while (len > 0) {
        ssize_t n = write(STDOUT_FILENO, data, len);
        struct pollfd p = {.fd = STDOUT_FILENO, .events = POLLOUT};

        if (n < 0 && errno == EAGAIN)
            poll(&p, 1, WRITE_MS);
        else if (n < 0 && errno != EINTR)
            return -errno;
        data += PL_MAX(n, 0);
        len -= (size_t)PL_MAX(n, 0);
    }
    return 0;
}

/* Finds the array of a task that is given by its own job number, which squeue's "%A" shows. */
static int find_array(const struct pl_slurm_job *job, struct pl_target *target)
{
    struct pl_target found;
    char word[64];

    if (!job->array || job->task < 0 || target->task >= 0)
        return 0;
    snprintf(word, sizeof(word), "%lld_%lld", (long long)job->array, (long long)job->task);
    if (pl_target_find(word, &found, NULL) < 0)
        return 0;
    if (!found.run) {
        pl_target_finish(&found);
        return 0;
    }
    pl_target_finish(target);
    *target = found;
    return 1;
}

int pl_plstat_find_job(struct pl_plstat *ps,
                       struct pl_target *ret,
                       const struct pl_slurm_job **ret_job,
                       struct pl_error *err)
{
    double begin_s = pl_wall_s();
    const struct pl_slurm_jobs *jobs;
    const struct pl_slurm_job *job;
    struct pl_target t;
    int r = pl_target_find(ps->word, &t, err);

    *ret_job = NULL;
    if (r < 0)
        return r;
    if (!t.run) {
        jobs = pl_slurm_view_get(&ps->slurm, geteuid());
        job = pl_slurm_jobs_find(jobs, t.job, t.task);
        if (!job && jobs && !jobs->stale &&
            jobs->time_s < begin_s) { /* the job may be younger than that answer */
            jobs = pl_slurm_view_renew(&ps->slurm);
            job = pl_slurm_jobs_find(jobs, t.job, t.task);
        }
        if (!job) {
            if (t.unreadable)
                r = pl_error_set(err, t.elsewhere ? -ENOENT : -EACCES, "%s", t.unreadable);
            else if (jobs && !jobs->stale)
                r = pl_error_set(err, -ENOENT,
                                 "no job '%s': neither the index of runs nor Slurm knows it",
                                 ps->word);
            else
                r = pl_error_set(err, -EHOSTUNREACH,
                                 "the index of runs has no job '%s', and Slurm cannot be asked: %s",
                                 ps->word, pl_slurm_view_why(&ps->slurm));
            pl_target_finish(&t);
            return r;
        }
        if (find_array(job, &t) == 0) {
            if (t.unreadable)
                pl_notes_add(&ps->notes, !t.elsewhere, "%s", t.unreadable);
            *ret_job = job;
        }
    }
    *ret = t;
    return 0;
}

static int report_slurm_job(struct pl_plstat *ps,
                            const struct pl_job_report *report,
                            const struct pl_target *target,
                            const struct pl_slurm_job *job,
                            struct pl_error *err)
{
    if (!report->slurm_job && target->unreadable)
        return pl_error_set(err, target->elsewhere ? -ENOENT : -EACCES, "%s", target->unreadable);
    if (!report->slurm_job)
        return pl_error_set(err, -ENOENT, "job '%s' is not a sweep: see plstat show %s", ps->word,
                            ps->word);
    ps->any_failure |= pl_trial_state_is_failure(pl_slurm_trial_state(job));
    return report->slurm_job(ps, job) < 0 ? pl_error_set(err, -ENOMEM, "out of memory") : 0;
}

int pl_plstat_report_job(struct pl_plstat *ps,
                         const struct pl_job_report *report,
                         struct pl_error *err)
{
    _cleanup_(pl_run_status_destroyp) struct pl_run_status *s = NULL;
    _cleanup_(pl_target_finish) struct pl_target target = {0};
    const struct pl_slurm_job *job;
    int r = pl_plstat_find_job(ps, &target, &job, err);

    if (r < 0)
        return r;
    if (!target.run)
        return report_slurm_job(ps, report, &target, job, err);
    r = pl_run_status_collect(target.run, target.trial, report->ranks, &ps->slurm, &s, &ps->notes,
                              err);
    if (r < 0)
        return r;
    for (size_t i = 0; i < s->n_trials; i++)
        ps->any_failure |= pl_trial_state_is_failure(s->trials[i].state);
    ps->any_failure |= s->missing != NULL;
    if (report->settle && ps->json)
        pl_run_status_settle(s, &ps->slurm);
    return report->run(ps, s) < 0 ? pl_error_set(err, -ENOMEM, "out of memory") : 0;
}

int pl_plstat_document(struct pl_plstat *ps, json_t *doc)
{
    ps->doc = doc;
    return doc ? 0 : -ENOMEM;
}

void pl_plstat_note_slurm_only(struct pl_plstat *ps, bool partial)
{
    pl_notes_add(&ps->notes, partial, "from Slurm alone: no run folder is known for job '%s'",
                 ps->word);
}

int pl_plstat_line(struct pl_plstat *ps, enum pl_term_style style, const char *fmt, ...)
{
    bool styled = ps->color && style != PL_TERM_PLAIN;
    _cleanup_free_ char *line = NULL;
    va_list args;
    int r, n;

    va_start(args, fmt);
    n = vasprintf(&line, fmt, args);
    va_end(args);
    if (n < 0) {
        line = NULL;
        return -ENOMEM;
    }
    while (n > 0 && line[n - 1] == ' ')
        line[--n] = '\0';
    r = styled ? pl_buf_adds(&ps->text, pl_term_style(style, true)) : 0;
    if (r == 0)
        r = pl_term_cell(&ps->text, line, PL_MIN(pl_term_width(line), ps->columns), false, true);
    if (r == 0 && styled)
        r = pl_buf_adds(&ps->text, pl_term_style(PL_TERM_PLAIN, true));
    return r < 0 ? r : pl_buf_addc(&ps->text, '\n');
}

/* The number of bytes of a line that fit into `width` columns; at least one character. */
static size_t fitting(const char *s, size_t len, size_t width)
{
    size_t at = 0, columns = 0;

    while (at < len) {
        uint32_t c;
        int n = pl_utf8_decode(s + at, len - at, &c);
        char one[5] = {0};
        size_t bytes = n < 0 ? 1 : (size_t)n;

        memcpy(one, s + at, bytes);
        columns += pl_term_width(one);
        if (columns > width && at > 0)
            break;
        at += bytes;
    }
    return at;
}

int pl_plstat_text(struct pl_plstat *ps, size_t indent, const char *text)
{
    size_t width = !ps->wrap ? SIZE_MAX : ps->columns > indent + 20 ? ps->columns - indent : 20;
    int r = 0;

    while (r == 0 && *text) {
        size_t len = strcspn(text, "\n"), used = 0;
        size_t shown = len && text[len - 1] == '\r' ? len - 1 : len;

        do {
            size_t n = fitting(text + used, shown - used, width);

            r = pl_buf_addf(&ps->text, "%*s", n ? (int)indent : 0, "");
            if (r == 0)
                r = pl_term_escape(&ps->text, text + used, n);
            if (r == 0)
                r = pl_buf_addc(&ps->text, '\n');
            used += n;
        } while (r == 0 && used < shown);
        text += len + (text[len] == '\n');
    }
    return r;
}

int pl_plstat_earlier(struct pl_plstat *ps, const struct pl_trial_status *ts)
{
    _cleanup_(pl_buf_finish) struct pl_buf line = {0};
    int r = pl_words_earlier(ts, &line);

    return r < 0 || !line.len ? r : pl_plstat_text(ps, 0, pl_buf_str(&line));
}

int pl_plstat_node_reasons(struct pl_plstat *ps, const struct pl_trial_status *ts)
{
    const json_t *reason;
    size_t i;
    int r = 0;

    json_array_foreach (ts->node_reasons, i, reason) {
        _cleanup_(pl_buf_finish) struct pl_buf line = {0};

        if (r == 0)
            r = pl_words_node_reason(reason, &line);
        if (r == 0)
            r = pl_plstat_line(ps, PL_TERM_YELLOW, "! %s", pl_buf_str(&line));
    }
    return r;
}
