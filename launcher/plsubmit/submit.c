/* SPDX-License-Identifier: MIT */
/* All arrays of a run: which are missing, in which order they start, and their record. */
#include "common/base/fs.h"
#include "common/base/parse.h"
#include "common/proto/json.h"
#include "launcher/plsubmit/clusters.h"
#include "launcher/plsubmit/submit_private.h"
#include "launcher/plsubmit/trial_env.h"
#include "launcher/slurm/slurm_conf.h"
#include "launcher/slurm/slurm_limits.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

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
    const char *own = pl_submit_user_dependency(pl_run_sbatch_args(run));

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
        r = pl_submit_find_in_queue(run, chunk, env, &job, err);
    if (r == 0 && !job)
        r = pl_submit_argv(pl_run_dir(run), pl_run_sbatch_args(run), chunk, max_parallel(run), all,
                           &argv);
    if (r == 0 && !job)
        r = pl_submit_chunk(run, chunk, argv, env, &job, messages, err);
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
