/* SPDX-License-Identifier: MIT */
#include "launcher/plsubmit/on_end.h"
#include "common/base/child.h"
#include "common/base/fs.h"
#include "common/run/run_end.h"
#include "launcher/plsubmit/script.h"
#include "launcher/plsubmit/submit.h"

#include <string.h>

static int add(char ***list, char *text)
{
    _cleanup_free_ char *arg = text;

    return arg ? pl_strv_append(list, arg) : -ENOMEM;
}

/* Options of the trials that say where and for whom a job may run, not what it needs. */
static bool is_kept(const char *arg)
{
    static const char *const keys[] = {"partition", "account", "qos",     "reservation", "clusters",
                                       "wckey",     "nice",    "comment", "mcs-label"};
    const char *key = arg + strspn(arg, "-");
    size_t len = strcspn(key, "=");

    for (size_t i = 0; i < PL_COUNT(keys); i++)
        if (strlen(keys[i]) == len && strncmp(keys[i], key, len) == 0)
            return true;
    return false;
}

/* --output=RUN/on-end.out. A '%' in the folder's name is doubled. */
static int add_output(char ***list, const char *dir)
{
    _cleanup_(pl_buf_finish) struct pl_buf arg = {0};
    int r = pl_buf_adds(&arg, "--output=");

    for (; *dir && r == 0; dir++)
        r = *dir == '%' ? pl_buf_adds(&arg, "%%") : pl_buf_addc(&arg, *dir);
    if (r == 0)
        r = pl_buf_adds(&arg, "/" PL_RUN_END_OUTPUT);
    return r == 0 ? pl_strv_append(list, pl_buf_str(&arg)) : r;
}

/* afterany: also of an array whose tasks were cancelled, or that Slurm has forgotten. */
static int add_dependency(const struct pl_run *run, char ***list)
{
    _cleanup_(pl_buf_finish) struct pl_buf arg = {0};
    int r = pl_buf_adds(&arg, "--dependency=");

    for (size_t i = 0; i < pl_run_n_submissions(run) && r == 0; i++)
        r = pl_buf_addf(&arg, "%safterany:%s", i ? "," : "", pl_run_submission(run, i).job);
    return r == 0 ? pl_strv_append(list, pl_buf_str(&arg)) : r;
}

static int add_wrap(const char *dir, const char *bin_dir, size_t arrays, char ***list)
{
    _cleanup_free_ char *plrun = pl_path_join(bin_dir, "plrun");
    _cleanup_(pl_buf_finish) struct pl_buf arg = {0};
    int r = plrun ? pl_buf_adds(&arg, "--wrap=PLUME_RUN_DIR=") : -ENOMEM;

    if (r == 0)
        r = pl_script_quote(&arg, dir);
    if (r == 0)
        r = pl_buf_adds(&arg, " exec ");
    if (r == 0)
        r = pl_script_quote(&arg, plrun);
    if (r == 0)
        r = pl_buf_addf(&arg, " --end-sweep %zu", arrays);
    return r == 0 ? pl_strv_append(list, pl_buf_str(&arg)) : r;
}

/* Makes sbatch's arguments but the dependency. */
static int make_argv(const char *const *sbatch_args,
                     const char *sweep,
                     const char *dir,
                     const char *bin_dir,
                     size_t arrays,
                     char ***ret)
{
    /* minutes: the command itself has 10 */
    static const char *const fixed[] = {"--open-mode=append", "--ntasks=1", "--time=15",
                                        "--no-requeue"};
    _cleanup_(pl_strv_freep) char **list = NULL;
    int r = pl_strv_append(&list, "sbatch");

    if (r == 0)
        r = pl_strv_append(&list, arrays ? "--parsable" : "--test-only");
    for (; *sbatch_args && r == 0; sbatch_args++)
        r = is_kept(*sbatch_args) ? pl_strv_append(&list, *sbatch_args) : 0;
    if (r == 0)
        r = add(&list, pl_strf("--job-name=%s.end", sweep));
    for (size_t i = 0; i < PL_COUNT(fixed) && r == 0; i++)
        r = pl_strv_append(&list, fixed[i]);
    if (r == 0)
        r = add_output(&list, dir);
    if (r == 0)
        r = add_wrap(dir, bin_dir, arrays, &list);
    if (r < 0)
        return r;
    *ret = PL_TAKE(list);
    return 0;
}

/* The environment of sbatch without its options for the trials, such as SBATCH_GRES. */
static int make_env(char ***ret)
{
    static const char *const kept[] = {"SBATCH_CLUSTERS=", "SBATCH_RESERVATION=", "SBATCH_WCKEY="};
    _cleanup_(pl_strv_freep) char **env = NULL, **list = NULL;
    int r = pl_submit_env(environ, &env);

    for (char **entry = env; r == 0 && *entry; entry++) {
        bool keep = strncmp(*entry, "SBATCH_", 7) != 0;

        for (size_t i = 0; i < PL_COUNT(kept); i++)
            keep |= strncmp(*entry, kept[i], strlen(kept[i])) == 0;
        r = keep ? pl_strv_append(&list, *entry) : 0;
    }
    if (r < 0)
        return r;
    *ret = PL_TAKE(list);
    return 0;
}

static int
run_sbatch(char *const *argv, struct pl_child *child, struct pl_buf *line, struct pl_error *err)
{
    _cleanup_(pl_strv_freep) char **env = NULL;
    int r = make_env(&env);

    if (r < 0)
        return pl_error_nomem(err);
    r = pl_submit_sbatch(argv, env, child, err);
    return r == 0 && pl_submit_join(pl_buf_str(&child->err), line) < 0 ? pl_error_nomem(err) : r;
}

int pl_on_end_test(const char *const *sbatch_args,
                   const char *sweep,
                   const char *dir,
                   const char *bin_dir,
                   struct pl_error *err)
{
    _cleanup_(pl_child_finish) struct pl_child child = {0};
    _cleanup_(pl_strv_freep) char **argv = NULL;
    _cleanup_(pl_buf_finish) struct pl_buf line = {0};

    if (make_argv(sbatch_args, sweep, dir, bin_dir, 0, &argv) < 0)
        return pl_error_nomem(err);
    if (run_sbatch(argv, &child, &line, NULL) < 0 || child.status == 0 ||
        pl_submit_is_no_answer(pl_buf_str(&line)))
        return 0;
    return pl_error_set(err, -EREMOTEIO,
                        "sbatch refuses the job that runs the command of --on-end: %s",
                        pl_buf_str(&line));
}

int pl_on_end_submit(struct pl_run *run,
                     const char *bin_dir,
                     struct pl_buf *messages,
                     struct pl_error *err)
{
    _cleanup_(pl_child_finish) struct pl_child child = {0};
    _cleanup_(pl_strv_freep) char **argv = NULL;
    _cleanup_(pl_buf_finish) struct pl_buf line = {0};
    _cleanup_free_ char *job = NULL;
    size_t n = pl_run_n_submissions(run);
    int r;

    if (!pl_run_on_end(run) || n == 0 || pl_run_end_read(run).arrays >= n)
        return 0;
    if (make_argv(pl_run_sbatch_args(run), pl_run_sweep(run), pl_run_dir(run), bin_dir, n, &argv) <
            0 ||
        add_dependency(run, &argv) < 0)
        return pl_error_nomem(err);
    r = run_sbatch(argv, &child, &line, err);
    if (r < 0)
        return r;
    job = child.status == 0 ? pl_submit_job_id(&child.out) : NULL;
    if (!job)
        return pl_error_set(err,
                            pl_submit_is_no_answer(pl_buf_str(&line)) ? -EHOSTUNREACH : -EREMOTEIO,
                            "sbatch did not submit the job of --on-end: %s", pl_buf_str(&line));
    if (pl_buf_add(messages, pl_buf_str(&child.err), child.err.len) < 0)
        return pl_error_nomem(err);
    if (pl_run_end_record(run, job, err) < 0)
        return pl_error_wrap(err, -EIO,
                             "the trials are submitted, and job %s, which runs the command of "
                             "--on-end; that job is not recorded",
                             job);
    return 0;
}
