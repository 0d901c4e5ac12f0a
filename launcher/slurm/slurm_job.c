/* SPDX-License-Identifier: MIT */
#include "launcher/slurm/slurm_job.h"
#include "common/base/child.h"
#include "common/base/env.h"
#include "common/base/fs.h"
#include "common/base/strv.h"

#include <string.h>

#define LIMIT_MS 10000
#define UNKNOWN_JOB "Invalid job id specified" /* ESLURM_INVALID_JOB_ID, in squeue's words */

/* Any other state counts as not over: those of newer releases, COMPLETING, REQUEUED. */
static bool is_over(const char *state)
{
    static const char *const over[] = {"BOOT_FAIL", "CANCELLED",     "COMPLETED",
                                       "DEADLINE",  "FAILED",        "NODE_FAIL",
                                       "PREEMPTED", "OUT_OF_MEMORY", "TIMEOUT"};

    for (size_t i = 0; i < PL_COUNT(over); i++)
        if (strcmp(state, over[i]) == 0)
            return true;
    return false;
}

/* Finds the line of this very job: squeue prints all tasks of an array that is asked for by its
 * number. */
static bool find_line(int64_t job, const char *out, struct pl_slurm_job_now *ret)
{
    bool found = false;

    for (const char *p = out; *p; p += strcspn(p, "\n"), p += *p == '\n') {
        struct pl_slurm_job_now now = {0};
        long long number;

        if (sscanf(p, "%lld %31s %u", &number, now.state, &now.n_nodes) < 2)
            continue;
        if (number != job) {
            ret->n_others++;
        } else if (!found) {
            found = true;
            memcpy(ret->state, now.state, sizeof(ret->state));
            ret->n_nodes = now.n_nodes;
        }
    }
    return found;
}

int pl_slurm_job_parse(int64_t job,
                       int status,
                       const char *out,
                       const char *said,
                       struct pl_slurm_job_now *ret,
                       struct pl_error *err)
{
    struct pl_slurm_job_now now = {.life = PL_SLURM_JOB_ENDED};
    bool found = find_line(job, out, &now);

    /* Without an error, too: squeue of some releases leaves out unknown numbers. */
    if (!found && (status == 0 || strstr(said, UNKNOWN_JOB))) {
        *ret = (struct pl_slurm_job_now){.life = PL_SLURM_JOB_ENDED};
        return 0;
    }
    if (!found || status != 0)
        return pl_error_set(err, -EHOSTUNREACH,
                            "squeue does not report the state of job %lld: %.*s", (long long)job,
                            (int)strcspn(said, "\n"), said);
    if (!is_over(now.state))
        now.life = PL_SLURM_JOB_ALIVE;
    *ret = now;
    return 0;
}

/* Our environment with another SLURM_CONF. */
static char **environment(const char *conf)
{
    _cleanup_free_ char *assignment = pl_strf("SLURM_CONF=%s", conf);
    char **list = NULL;
    int r = assignment ? pl_strv_append(&list, assignment) : -ENOMEM;

    for (char **p = environ; *p && r == 0; p++)
        if (strncmp(*p, "SLURM_CONF=", 11) != 0)
            r = pl_strv_append(&list, *p);
    if (r < 0)
        pl_strv_free(PL_TAKE(list));
    return list;
}

static int run_squeue(const char *job,
                      const char *format,
                      const char *conf,
                      struct pl_child *ret,
                      struct pl_error *err)
{
    const char *const argv[] = {"squeue", "--noheader", "--states=all", "--jobs", job,
                                format,   NULL};
    _cleanup_(pl_strv_freep) char **env = conf ? environment(conf) : NULL;
    int r;

    if (conf && !env)
        return pl_error_set(err, -ENOMEM, "out of memory");
    r = pl_child_run(argv, env, LIMIT_MS, ret, err);
    return r == -ETIMEDOUT ? pl_error_set(err, r, "the Slurm controller did not answer within %d s",
                                          LIMIT_MS / 1000)
                           : r;
}

int pl_slurm_job_number(const char *task, int64_t *ret, struct pl_error *err)
{
    _cleanup_(pl_child_finish) struct pl_child child = {0};
    const char *said;
    char name[64];
    long long number;
    int r;

    if (!strchr(task, '_')) {
        *ret = strtoll(task, NULL, 10);
        return 0;
    }
    r = run_squeue(task, "--format=%i %A", NULL, &child, err);
    if (r < 0)
        return r;
    for (const char *p = pl_buf_str(&child.out); *p; p += strcspn(p, "\n"), p += *p == '\n')
        if (sscanf(p, "%63s %lld", name, &number) == 2 && strcmp(name, task) == 0) {
            *ret = number;
            return 0;
        }
    if (child.status != 0 && !child.err.len)
        return pl_error_set(err, -EHOSTUNREACH,
                            "squeue does not report job %s: it failed without a word", task);
    said = child.err.len ? pl_buf_str(&child.err) : "it has not begun, or has ended";
    return pl_error_set(
        err, child.err.len && !strstr(said, "Invalid job id") ? -EHOSTUNREACH : -ENOENT,
        "squeue does not report job %s: %.*s", task, (int)strcspn(said, "\n"), said);
}

int pl_slurm_job_ask(int64_t job,
                     const char *conf,
                     struct pl_slurm_job_now *ret,
                     struct pl_error *err)
{
    _cleanup_(pl_child_finish) struct pl_child child = {0};
    char number[24];
    int r;

    snprintf(number, sizeof(number), "%lld", (long long)job);
    r = run_squeue(number, "--format=%A %T %D", conf, &child, err);
    if (r < 0)
        return r;
    return pl_slurm_job_parse(job, child.status, pl_buf_str(&child.out), pl_buf_str(&child.err),
                              ret, err);
}
