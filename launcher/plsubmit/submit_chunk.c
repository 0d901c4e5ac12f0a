/* SPDX-License-Identifier: MIT */
/* One array: sbatch, its answer, and the queue where the answer is lost. */
#include "common/base/fs.h"
#include "common/base/log.h"
#include "launcher/plsubmit/clusters.h"
#include "launcher/plsubmit/submit_private.h"
#include "launcher/slurm/slurm_limits.h"

#include <errno.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* The text after the script's path in its line, if the line is the array's: "[ARGS]|REASON". */
static const char *reason_after(const char *p, const char *args)
{
    if (*p == ' ' && strncmp(p, args, strlen(args)) == 0)
        p += strlen(args);
    return *p == '|' ? p + 1 : NULL;
}

char *pl_submit_find(const char *lines, const char *run_dir, unsigned first, unsigned retry)
{
    static const char failed[] = " FAILED ", refused[] = "BadConstraints";
    _cleanup_free_ char *script = pl_submit_script(run_dir, first, retry);
    _cleanup_free_ char *args = retry ? pl_strf(" %u %u", first, retry) : pl_strf(" %u", first);
    size_t len = script ? strlen(script) : 0;

    for (const char *p = lines; script && args && *p; p += *p == '\n') {
        const char *line = p, *state = p + strspn(p, "0123456789"), *reason;

        p += strcspn(p, "\n");
        if (state == line || *state != ' ')
            continue;
        reason = state + 1 + strcspn(state + 1, " \n");
        reason = *reason == ' ' && strncmp(reason + 1, script, len) == 0
                     ? reason_after(reason + 1 + len, args)
                     : NULL;
        if (reason && (strncmp(state, failed, strlen(failed)) != 0 ||
                       strncmp(reason, refused, strlen(refused)) != 0))
            return strndup(line, (size_t)(state - line));
    }
    return NULL;
}

/* Finds a chunk's array in the queue. *ret is NULL if it is not there. -EHOSTUNREACH, -ETIMEDOUT.
 * cluster  whose queue; NULL: this host's */
static int find_in_queue_of(const char *cluster,
                            const struct pl_run *run,
                            const struct pl_chunk *chunk,
                            char *const *env,
                            char **ret,
                            struct pl_error *err)
{
    _cleanup_(pl_child_finish) struct pl_child child = {0};
    _cleanup_free_ char *user = pl_strf("--user=%u", (unsigned)geteuid());
    _cleanup_free_ char *of = cluster ? pl_strf("--clusters=%s", cluster) : NULL;
    const char *argv[] = {"squeue", "--noheader", "--states=all", "--format=%F %T %o|%r", user,
                          of,       NULL};
    int r;

    if (!user || (cluster && !of))
        return pl_error_nomem(err);
    r = pl_child_run(argv, env, PL_SUBMIT_SQUEUE_MS, &child, err);
    if (r < 0)
        return r;
    if (child.status != 0)
        return pl_error_set(err, -EHOSTUNREACH, "%.*s", (int)strcspn(pl_buf_str(&child.err), "\n"),
                            pl_buf_str(&child.err));
    *ret = pl_submit_find(pl_buf_str(&child.out), pl_run_dir(run), chunk->first, chunk->retry);
    return 0;
}

int pl_submit_find_in_queue(struct pl_run *run,
                            const struct pl_chunk *chunk,
                            char *const *env,
                            char **ret,
                            struct pl_error *err)
{
    const char *chosen = pl_clusters_chosen(pl_run_sbatch_args(run), env);
    _cleanup_free_ char *list = chosen ? strdup(chosen) : NULL; /* pl_clusters_set() frees chosen */
    char *rest = NULL, *cluster;
    int r = 0;

    if (!chosen)
        return find_in_queue_of(NULL, run, chunk, env, ret, err);
    if (!list)
        return pl_error_nomem(err);
    *ret = NULL;
    for (cluster = strtok_r(list, ",", &rest); cluster && r == 0 && !*ret;
         cluster = strtok_r(NULL, ",", &rest)) {
        r = find_in_queue_of(cluster, run, chunk, env, ret, err);
        if (r == 0 && *ret && strcmp(cluster, "all") != 0 && pl_clusters_set(run, cluster) < 0)
            r = pl_error_nomem(err);
    }
    return r;
}

int pl_submit_join(const char *text, struct pl_buf *out)
{
    static const char *const prefixes[] = {"sbatch: error: ", "sbatch: fatal: ", "sbatch: "};

    while (*text) {
        size_t len;
        int r = 0;

        for (size_t i = 0; i < PL_COUNT(prefixes); i++)
            if (strncmp(text, prefixes[i], strlen(prefixes[i])) == 0) {
                text += strlen(prefixes[i]);
                break;
            }
        len = strcspn(text, "\n");
        if (out->len && len)
            r = pl_buf_adds(out, "; ");
        if (r == 0)
            r = pl_buf_add(out, text, len);
        if (r < 0)
            return r;
        text += len + (text[len] == '\n');
    }
    return 0;
}

char *pl_submit_job_id(const struct pl_buf *out)
{
    const char *s = pl_buf_str(out), *last = s;
    size_t digits;

    /* A site's wrapper may print lines before it. */
    for (const char *p = s; *p; p++)
        if (*p == '\n' && p[1])
            last = p + 1;
    digits = strspn(last, "0123456789"); /* "123" or "123;cluster" */
    if (digits == 0 || (last[digits] && !strchr(";\n", last[digits])))
        return NULL;
    return strndup(last, digits);
}

bool pl_submit_is_no_answer(const char *messages)
{
    static const char *const signs[] = {
        "Unable to contact",     "timed out",        "Connection refused", "connect failure",
        "communication",         "Connection reset", "Transport endpoint", "try again",
        "Zero Bytes were trans", "in standby mode"};

    for (size_t i = 0; i < PL_COUNT(signs); i++)
        if (strstr(messages, signs[i]))
            return true;
    return false;
}

/* Handles an sbatch that printed no job id: the queue shows whether it submitted the array. */
static int resolve_missing_id(struct pl_run *run,
                              const struct pl_chunk *chunk,
                              char *const *env,
                              bool refused,
                              const char *messages,
                              char **ret,
                              struct pl_error *err)
{
    _cleanup_free_ char *job = NULL;
    struct pl_error why = {0};
    /* A cluster that Slurm does not know has no queue to look at, either. */
    bool unknown = refused && strstr(messages, "invalid entry for --cluster");
    int r = unknown ? 0 : pl_submit_find_in_queue(run, chunk, env, &job, &why);

    if (r == 0 && job) {
        *ret = PL_TAKE(job);
        return 0;
    }
    if (r == 0 && refused)
        return pl_error_set(err, -EREMOTEIO, "sbatch refused the array: %s", messages);
    return pl_error_set(err, -EHOSTUNREACH, "no answer from the Slurm controller: %s",
                        *messages  ? messages
                        : why.code ? why.text
                                   : "sbatch ended without a job id");
}

/* Tells pl_child_run_patiently() whether to wait for sbatch. --resume finds an array that sbatch
 * has submitted nevertheless. */
static int controller_reachable(struct pl_error *err)
{
    int r = pl_slurm_limits_ping(err);

    return r == -ETIMEDOUT ? (err->code = -EHOSTUNREACH) : r;
}

/* Slurm may be at MaxJobCount: sbatch says so and tries again. */
static void say_wait(const char *said)
{
    _cleanup_(pl_buf_finish) struct pl_buf line = {0};
    _cleanup_free_ char *first = strndup(said, strcspn(said, "\n"));
    bool any = first && pl_submit_join(first, &line) == 0 && line.len;

    pl_log_warn("submit", "sbatch has not ended after %d s%s%s%s: waiting for it, %d s at most",
                PL_SUBMIT_NOTICE_MS / 1000, any ? " (" : "", any ? pl_buf_str(&line) : "",
                any ? ")" : "", PL_SUBMIT_SBATCH_MS / 1000);
}

int pl_submit_sbatch(char *const *argv,
                     char *const *env,
                     struct pl_child *ret,
                     struct pl_error *err)
{
    static const struct pl_child_limits limits = {.timeout_ms = PL_SUBMIT_SBATCH_MS,
                                                  .patience_ms = PL_SUBMIT_PATIENCE_MS,
                                                  .go_on = controller_reachable,
                                                  .notice_ms = PL_SUBMIT_NOTICE_MS,
                                                  .notice = say_wait};
    struct pl_error why = {0};
    int r = pl_child_run_patiently((const char *const *)argv, env, &limits, ret, &why);

    if (r == -ENOENT)
        return pl_error_set(err, r, "%s: --local runs the trials on this machine without Slurm",
                            why.text);
    return r < 0 ? pl_error_set(err, r, "%s", why.text) : 0;
}

/* sbatch said nothing: a plugin of the site may have crashed it. */
static int describe_silence(int status, struct pl_buf *line)
{
    if (WIFSIGNALED(status))
        return pl_buf_addf(line, "sbatch ended by signal %d (%s), without a message",
                           WTERMSIG(status), strsignal(WTERMSIG(status)));
    return pl_buf_addf(line, "sbatch ended with exit code %d, without a message",
                       WEXITSTATUS(status));
}

int pl_submit_chunk(struct pl_run *run,
                    const struct pl_chunk *chunk,
                    char *const *argv,
                    char *const *env,
                    char **ret,
                    struct pl_buf *messages,
                    struct pl_error *err)
{
    _cleanup_(pl_child_finish) struct pl_child child = {0};
    _cleanup_(pl_buf_finish) struct pl_buf line = {0};
    struct pl_error why = {0};
    int r = pl_submit_sbatch(argv, env, &child, &why);

    if (r < 0 && r != -ETIMEDOUT)
        return pl_error_set(err, r, "%s", why.text);
    if (r == 0 && child.status == 0) {
        _cleanup_free_ char *cluster = pl_clusters_answer(&child.out);

        *ret = pl_submit_job_id(&child.out);
        if (*ret && (cluster || !pl_clusters_chosen(pl_run_sbatch_args(run), env)) &&
            pl_clusters_set(run, cluster) < 0)
            return pl_error_nomem(err);
        if (*ret)
            return pl_buf_add(messages, pl_buf_str(&child.err), child.err.len);
    }
    if (pl_submit_join(pl_buf_str(&child.err), &line) < 0)
        return pl_error_set(err, -ENOMEM, "out of memory");
    if (r < 0 && line.len == 0)
        pl_buf_adds(&line, why.text);
    if (r == 0 && child.status != 0 && line.len == 0 && describe_silence(child.status, &line) < 0)
        return pl_error_set(err, -ENOMEM, "out of memory");
    return resolve_missing_id(
        run, chunk, env, r == 0 && child.status != 0 && !pl_submit_is_no_answer(pl_buf_str(&line)),
        pl_buf_str(&line), ret, err);
}
