/* SPDX-License-Identifier: MIT */
#include "launcher/plsubmit/report.h"
#include "common/base/term.h"

#include <stdio.h>
#include <string.h>

int pl_report_error(const struct pl_error *err, int code)
{
    pl_term_complain(stderr, "plsubmit", pl_error_text(err));
    return code;
}

void pl_report_messages(const struct pl_buf *messages)
{
    _cleanup_(pl_buf_finish) struct pl_buf text = {0};

    for (const char *line = pl_buf_str(messages); *line;) {
        size_t len = strcspn(line, "\n");

        pl_term_escape(&text, line, len);
        pl_buf_addc(&text, '\n');
        line += len + (line[len] == '\n');
    }
    fwrite(pl_buf_str(&text), 1, text.len, stderr);
}

/* plstat: the word by which it finds the sweep. */
static int report_jobs(const struct pl_run *run,
                       const char *done,
                       size_t trials,
                       const char *const *jobs,
                       const char *folder,
                       const char *shape,
                       const char *plstat,
                       bool parsable)
{
    if (parsable)
        printf("%s;%s;", pl_run_sweep(run), pl_run_dir(run));
    else
        printf("%s %s: %zu trial%s, job%s ", done, pl_run_sweep(run), trials,
               trials == 1 ? "" : "s", jobs[0] && !jobs[1] ? "" : "s");
    for (size_t i = 0; jobs[i]; i++)
        printf("%s%s", i == 0 ? "" : parsable ? "," : ", ", jobs[i]);
    if (parsable)
        printf("\n");
    else
        printf(", folder %s\n", folder);
    if (!parsable && shape)
        printf("each trial: %s\n", shape);
    if (!parsable)
        printf("plstat sweep %s\n", plstat);
    return fflush(stdout) != 0 || ferror(stdout) ? -EIO : 0;
}

int pl_report_jobs(const struct pl_run *run,
                   const char *done,
                   size_t trials,
                   const char *const *jobs,
                   const char *folder,
                   const char *shape,
                   bool parsable)
{
    return report_jobs(run, done, trials, jobs, folder, shape, pl_run_sweep(run), parsable);
}

int pl_report_submitted(const struct pl_run *run,
                        size_t from,
                        size_t trials,
                        const char *folder,
                        const char *shape,
                        bool indexed,
                        bool parsable)
{
    size_t n = pl_run_n_submissions(run);
    _cleanup_free_ const char **jobs = calloc(n + 1, sizeof(*jobs));

    if (!jobs)
        return -ENOMEM;
    for (size_t i = from; i < n; i++)
        jobs[i - from] = pl_run_submission(run, i).job;
    return report_jobs(run, "submitted", trials, jobs, folder, shape,
                       indexed ? pl_run_sweep(run) : folder, parsable);
}

int pl_report_nothing(const struct pl_run *run, const char *verb, const char *why, bool parsable)
{
    fprintf(parsable ? stderr : stdout, "nothing to %s: %s\n", verb, why);
    if (parsable)
        printf("%s;%s;\n", pl_run_sweep(run), pl_run_dir(run));
    return fflush(stdout) != 0 || ferror(stdout) ? -EIO : 0;
}
