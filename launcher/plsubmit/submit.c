/* SPDX-License-Identifier: MIT */
#include "launcher/plsubmit/submit.h"
#include "common/base/fs.h"
#include "common/base/log.h"
#include "common/base/parse.h"
#include "common/proto/json.h"
#include "launcher/plsubmit/clusters.h"
#include "launcher/plsubmit/spec_private.h"
#include "launcher/plsubmit/trial_env.h"
#include "launcher/slurm/slurm_conf.h"
#include "launcher/slurm/slurm_limits.h"

#include <errno.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* ---- arguments and environment of sbatch ---- */

/* n: of all submissions */
static bool submitted(const struct pl_run *run, size_t n, unsigned trial, unsigned *ret_end)
{
    for (size_t i = 0; i < n; i++) {
        struct pl_run_submission s = pl_run_submission(run, i);

        if (s.retry == 0 && trial >= s.first_trial && trial < s.first_trial + s.n_trials) {
            *ret_end = s.first_trial + s.n_trials;
            return true;
        }
    }
    return false;
}

int pl_submit_plan(const struct pl_run *run, unsigned max, struct pl_chunk **ret, size_t *ret_n)
{
    unsigned n_trials = pl_run_n_trials(run), trial = 0, end;
    _cleanup_free_ struct pl_chunk *chunks = NULL;
    size_t n = 0, n_before = pl_run_n_submissions(run);

    while (trial < n_trials) {
        struct pl_chunk *more;

        if (submitted(run, n_before, trial, &end)) {
            trial = end;
            continue;
        }
        more = realloc(chunks, (n + 1) * sizeof(*more));
        if (!more)
            return -ENOMEM;
        chunks = more;
        for (end = trial + 1; end < n_trials && end - trial < max; end++)
            if (submitted(run, n_before, end, &(unsigned){0}))
                break;
        chunks[n] = (struct pl_chunk){.first = trial, .n = end - trial};
        n++;
        trial = end;
    }
    *ret = PL_TAKE(chunks);
    *ret_n = n;
    return 0;
}

static bool starts_with(const char *s, const char *const *prefixes, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (strncmp(s, prefixes[i], strlen(prefixes[i])) == 0)
            return true;
    return false;
}

int pl_submit_env(char *const *env, char ***ret)
{
    static const char *const ours[] = {
        "PLUME_RUN_DIR=", "PLUME_BIN=", "PLUME_TRIAL=", "PLUME_ATTEMPT=", "PLUME_HUB=",
        "PLUME_PROGRAM=", "PLUME_SOCKET=", "PLUME_PARAMS=", "PLUME_PARAM_",
        "PLUME_RUNTIME=", "PLUME_NODE_ADDR=", "PLUME_RETRY=", "PLUME_LAUNCH=", "PLUME_CONTAINER",
        "PLUME_REQUEUE_ON=", "SBATCH_WAIT=", /* sbatch would wait */
        /* srun would give the ranks a terminal, unrecorded */
        "SLURM_UNBUFFEREDIO="};
    static const char *const of_job[] = {"SLURM_",
                                         "SBATCH_MEM_BIND",
                                         "SBATCH_CPU_BIND",
                                         "MASTER_",
                                         "RANK=",
                                         "WORLD_SIZE=",
                                         "LOCAL_RANK=",
                                         "LOCAL_WORLD_SIZE=",
                                         "NODE_RANK=",
                                         "GROUP_RANK=",
                                         "PET_",
                                         "NCCL_RAS_ADDR=localhost:"};
    _cleanup_(pl_strv_freep) char **list = NULL;
    bool inside = false;
    size_t n = 0;

    while (env[n]) {
        inside |= strncmp(env[n], "SLURM_JOB_ID=", 13) == 0;
        n++;
    }
    list = calloc(n + 1, sizeof(*list));
    if (!list)
        return -ENOMEM;
    n = 0;
    for (; *env; env++) {
        bool keep = strncmp(*env, "SLURM_CONF=", 11) == 0;

        if (starts_with(*env, ours, PL_COUNT(ours)) ||
            (inside && !keep && starts_with(*env, of_job, PL_COUNT(of_job))))
            continue;
        list[n] = strdup(*env);
        if (!list[n++])
            return -ENOMEM;
    }
    *ret = PL_TAKE(list);
    return 0;
}

char *pl_submit_array(const struct pl_chunk *chunk, unsigned max_parallel)
{
    _cleanup_free_ char *all = pl_strf("0-%u", chunk->n - 1);
    const char *tasks = chunk->tasks ? chunk->tasks : all;

    if (!tasks || !max_parallel)
        return tasks ? strdup(tasks) : NULL;
    return pl_strf("%s%%%u", tasks, max_parallel);
}

/* The dependency that the user gave: plsubmit adds its own to it. */
static const char *user_dependency(const char *const *arg)
{
    static const char key[] = "--dependency=";
    const char *found = NULL;

    for (; *arg; arg++)
        if (strncmp(*arg, key, strlen(key)) == 0)
            found = *arg + strlen(key);
    return found;
}

static int add_format(char ***list, char *text)
{
    _cleanup_free_ char *arg = text;

    return arg ? pl_strv_append(list, arg) : -ENOMEM;
}

char *pl_submit_script(const char *run_dir, unsigned first, unsigned retry)
{
    if (retry)
        return pl_strf("%s/job-%u.%u.sh", run_dir, first, retry);
    return first ? pl_strf("%s/job-%u.sh", run_dir, first) : pl_strf("%s/job.sh", run_dir);
}

/* Gives the chunk's script its name in the run folder. */
static int name_script(const struct pl_run *run, const struct pl_chunk *chunk, struct pl_error *err)
{
    _cleanup_free_ char *path = pl_submit_script(pl_run_dir(run), chunk->first, chunk->retry);
    char target[8] = ""; /* a longer one is cut, and another */

    if (!path)
        return pl_error_nomem(err);
    if ((!chunk->first && !chunk->retry) || symlink("job.sh", path) == 0)
        return 0;
    if (errno != EEXIST)
        return pl_error_errno(err, errno, "cannot make %s", path);
    if (readlink(path, target, sizeof(target) - 1) < 0 || strcmp(target, "job.sh") != 0)
        return pl_error_set(err, -EEXIST, "%s is no link to job.sh: remove it", path);
    return 0;
}

int pl_submit_argv(const char *run_dir,
                   const char *const *sbatch_args,
                   const struct pl_chunk *chunk,
                   unsigned max_parallel,
                   const char *depends,
                   char ***ret)
{
    _cleanup_free_ char *array = pl_submit_array(chunk, max_parallel);
    _cleanup_(pl_strv_freep) char **list = NULL;
    const char *own = user_dependency(sbatch_args);
    int r = array ? pl_strv_append(&list, "sbatch") : -ENOMEM;

    if (r == 0)
        r = pl_strv_append(&list, "--parsable");
    for (const char *const *arg = sbatch_args; *arg && r == 0; arg++)
        r = pl_strv_append(&list, *arg);
    if (r == 0)
        r = add_format(&list, pl_strf("--array=%s", array));
    if (r == 0 && depends)
        r = add_format(&list,
                       pl_strf("--dependency=%s%s%s", own ? own : "", own ? "," : "", depends));
    if (r == 0 && depends && strstr(depends, "afterok:")) /* or it would wait for ever */
        r = pl_strv_append(&list, "--kill-on-invalid-dep=yes");
    if (r == 0)
        r = add_format(&list, pl_submit_script(run_dir, chunk->first, chunk->retry));
    if (r == 0)
        r = add_format(&list, pl_strf("%u", chunk->first));
    if (r == 0 && chunk->retry)
        r = add_format(&list, pl_strf("%u", chunk->retry));
    if (r < 0)
        return r;
    *ret = PL_TAKE(list);
    return 0;
}

/* ---- answers of squeue and sbatch ---- */

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

/* As find_in_queue_of(), for each cluster that sbatch may have chosen; sets that of the run. */
static int find_in_queue(struct pl_run *run,
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
    int r = unknown ? 0 : find_in_queue(run, chunk, env, &job, &why);

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

static int submit_chunk(struct pl_run *run,
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

/* ---- all chunks ---- */

void pl_submit_cancel(const struct pl_run *run, size_t from, struct pl_error *err)
{
    _cleanup_(pl_strv_freep) char **env = NULL;
    const char *chosen;

    if (pl_submit_env(environ, &env) < 0)
        return;
    chosen = pl_clusters_chosen(pl_run_sbatch_args(run), env);
    for (size_t i = from; i < pl_run_n_submissions(run); i++) {
        _cleanup_free_ char *of = chosen ? pl_strf("--clusters=%s", chosen) : NULL;
        const char *argv[] = {"scancel", pl_run_submission(run, i).job, of, NULL};
        _cleanup_(pl_child_finish) struct pl_child child = {0};

        if (pl_child_run(argv, env, PL_SUBMIT_SQUEUE_MS, &child, NULL) < 0 || child.status != 0)
            pl_error_wrap(err, err->code, "cannot cancel job %s", pl_run_submission(run, i).job);
    }
    if (pl_run_n_submissions(run) > from)
        pl_error_wrap(err, err->code, "cancelled the arrays submitted before");
}

static unsigned max_parallel(const struct pl_run *run)
{
    const json_t *option = json_object_get(pl_run_options(run), "max-parallel");
    const char *text = pl_json_string(option, "value");
    int64_t n = 0;

    if (text)
        pl_parse_int(text, 1, PL_RUN_TRIAL_LIMIT, &n, NULL);
    return (unsigned)n;
}

/* "a?b" starts after one of its jobs; Slurm cannot add "and after the array before" to that. */
static int check_dependency(const struct pl_run *run,
                            size_t n_chunks,
                            const char *depends,
                            struct pl_error *err)
{
    const char *own = user_dependency(pl_run_sbatch_args(run));

    if (!own || !strchr(own, '?'))
        return 0;
    if (depends)
        return pl_error_set(err, -EREMOTEIO,
                            "the dependency '%.200s' has a '?', so --after cannot be added to it: "
                            "write ','",
                            own);
    if (!max_parallel(run) || n_chunks + pl_run_n_submissions(run) < 2)
        return 0;
    return pl_error_set(err, -EREMOTEIO,
                        "the dependency '%.200s' has a '?', and with --max-parallel the sweep's "
                        "arrays wait for each other: write ',' or leave out --max-parallel",
                        own);
}

/* The dependencies of a chunk, without the user's own; *ret is NULL if there are none. -ENOMEM.
 * depends  of the whole sweep, or NULL */
static int make_depends(const struct pl_run *run,
                        const struct pl_chunk *chunk,
                        const char *depends,
                        char **ret)
{
    size_t n = pl_run_n_submissions(run);
    const char *job = NULL;

    /* A retry waits for nothing: its trials have had their turn. */
    if (max_parallel(run) && n && pl_run_submission(run, n - 1).retry == chunk->retry)
        job = pl_run_submission(run, n - 1).job;
    if (chunk->retry)
        depends = NULL;
    *ret = NULL;
    if (!job && !depends)
        return 0;
    *ret = job ? pl_strf("%s%safterany:%s", depends ? depends : "", depends ? "," : "", job)
               : strdup(depends);
    return *ret ? 0 : -ENOMEM;
}

/* Submits one chunk and records it. Of a retry it is the first planned one. */
static int submit_one(struct pl_run *run,
                      const struct pl_chunk *chunk,
                      const char *depends,
                      bool resumed,
                      char *const *env,
                      struct pl_buf *messages,
                      struct pl_error *err)
{
    _cleanup_(pl_strv_freep) char **argv = NULL;
    _cleanup_free_ char *job = NULL, *all = NULL;
    int r = make_depends(run, chunk, depends, &all);

    if (r < 0)
        return pl_error_nomem(err);
    r = name_script(run, chunk, err);
    if (r == 0 && resumed)
        r = find_in_queue(run, chunk, env, &job, err);
    if (r == 0 && !job)
        r = pl_submit_argv(pl_run_dir(run), pl_run_sbatch_args(run), chunk, max_parallel(run), all,
                           &argv);
    if (r == 0 && !job)
        r = submit_chunk(run, chunk, argv, env, &job, messages, err);
    if (r < 0)
        return r;
    r = chunk->retry ? pl_run_plan_done(run, job, err)
                     : pl_run_add_submission(run, job, chunk->first, chunk->n, err);
    if (r < 0) /* whatever the file system's error is: Slurm has the job, so the folder stays */
        r = pl_error_wrap(err, -EIO,
                          "job %s is submitted, but not recorded (plsubmit --resume %s finds it)",
                          job, pl_run_dir(run));
    return r;
}

static int submit_planned(struct pl_run *run,
                          bool resumed,
                          char *const *env,
                          struct pl_buf *messages,
                          struct pl_error *err)
{
    int r = 0;

    while (r == 0 && pl_run_n_planned(run) > 0) {
        struct pl_run_submission sub = pl_run_planned(run, 0);
        struct pl_chunk chunk = {sub.first_trial, sub.n_trials, sub.tasks, sub.retry};

        r = submit_one(run, &chunk, NULL, resumed, env, messages, err);
    }
    return r;
}

int pl_submit_ask_limit(unsigned *ret, struct pl_error *err)
{
    struct pl_slurm_limits limits;
    int r = pl_slurm_limits_get(&limits, err);

    if (r < 0)
        return r;
    if (limits.max_array_tasks && limits.max_array_tasks < limits.max_array_size)
        limits.max_array_size = limits.max_array_tasks;
    if (limits.max_array_size == 0)
        return pl_error_set(err, -EREMOTEIO,
                            "this Slurm accepts no job arrays (MaxArraySize=0): ask its "
                            "administrator, or write --local");
    *ret = limits.max_array_size;
    return 0;
}

static int submit_rest(struct pl_run *run,
                       unsigned max,
                       const char *depends,
                       bool resumed,
                       struct pl_buf *messages,
                       struct pl_error *err)
{
    _cleanup_free_ struct pl_chunk *chunks = NULL;
    _cleanup_(pl_strv_freep) char **env = NULL;
    size_t n_chunks, before = pl_run_n_submissions(run);
    int r = pl_submit_plan(run, max, &chunks, &n_chunks);

    if (r == 0)
        r = pl_submit_env(environ, &env);
    if (r < 0)
        return pl_error_set(err, r, "out of memory");
    r = pl_trial_env_add(run, &env, err);
    if (r < 0)
        return r;
    r = check_dependency(run, n_chunks, depends, err);
    for (size_t i = 0; i < n_chunks && r == 0; i++)
        r = submit_one(run, &chunks[i], depends, resumed, env, messages, err);
    if (r == 0)
        r = submit_planned(run, resumed, env, messages, err);
    if (r == -EREMOTEIO)
        pl_submit_cancel(run, before, err);
    if (r == -EREMOTEIO && pl_run_n_planned(run) > 0)
        pl_run_plan_done(run, NULL, NULL);
    return r;
}

int pl_submit_run(struct pl_run *run,
                  const char *depends,
                  bool resumed,
                  struct pl_buf *messages,
                  struct pl_error *err)
{
    _cleanup_free_ struct pl_chunk *all = NULL;
    unsigned max = PL_SUBMIT_ARRAY_SIZE;
    size_t n_all;
    struct pl_error why = {0};
    int r = pl_submit_plan(run, UINT32_MAX, &all, &n_all);
    bool asked = false;

    if (r < 0)
        return pl_error_set(err, r, "out of memory");
    if (n_all == 0 && pl_run_n_planned(run) == 0)
        return 0;
    if (access(pl_run_dir(run), W_OK) < 0)
        return pl_error_errno(err, errno, "cannot write to run folder '%s'", pl_run_dir(run));
    for (size_t i = 0; i < n_all; i++)
        asked |= all[i].n > PL_SUBMIT_ARRAY_SIZE;
    /* Few controllers accept less than the default, so ask for the limit only if the grid is
     * larger, or after a refusal. sbatch itself, or squeue before it, shows whether a controller
     * answers. */
    if (asked)
        r = pl_submit_ask_limit(&max, err);
    else if (!pl_slurm_conf_readable())
        r = pl_slurm_limits_ping(err);
    if (r < 0 && !asked)
        pl_error_set(err, r, "%s; --local runs the trials on this machine", (why = *err).text);
    if (r == 0)
        r = submit_rest(run, max, depends, resumed, messages, err);
    if (r == -EREMOTEIO && !asked && n_all > 0 &&
        strstr(err->text, "Invalid job array specification")) {
        r = pl_submit_ask_limit(&max, err);
        if (r == 0)
            r = submit_rest(run, max, depends, resumed, messages, err);
    }
    return r;
}
