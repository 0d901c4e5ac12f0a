/* SPDX-License-Identifier: MIT */
#include "common/run/run_folder.h"
#include "common/base/env.h"
#include "common/base/fs.h"
#include "common/base/own.h"
#include "common/base/parse.h"
#include "common/base/shared_fs.h"
#include "common/proto/json.h"
#include "common/run/run_folder_private.h"
#include "common/run/run_tasks.h"

#include <fcntl.h>
#include <string.h>

void pl_run_close(struct pl_run *run)
{
    if (!run)
        return;
    json_decref(run->sweep);
    free(run->argv);
    free(run->sbatch_args);
    free(run->trials);
    free(run->lines);
    free(run->dir);
    pl_closep(&run->dir_fd);
    free(run);
}

static int damaged(struct pl_error *err, const char *key)
{
    return pl_error_set(err, -EINVAL, "key '%s' is missing or has another type", key);
}

/* True if each element is an object with strings for the keys a and b (b may be NULL), or, with a
 * NULL, a string. */
static bool is_list_of(const json_t *list, const char *a, const char *b)
{
    size_t i;
    json_t *item;

    if (!json_is_array(list))
        return false;
    json_array_foreach (list, i, item) {
        if (!a && !json_is_string(item))
            return false;
        if (a && (!pl_json_string(item, a) || (b && !pl_json_string(item, b))))
            return false;
    }
    return true;
}

/* key  "submissions", or "planned", whose objects have no job and which may be missing */
static int check_submissions(const json_t *sweep, const char *key, struct pl_error *err)
{
    const json_t *list = json_object_get(sweep, key);
    bool planned = strcmp(key, "planned") == 0;
    int64_t first, count, retry = 0;
    size_t i;
    json_t *item;

    if (!list && planned)
        return 0;
    if (!is_list_of(list, planned ? "tasks" : "job", NULL))
        return damaged(err, key);
    json_array_foreach (list, i, item) {
        if (pl_json_int(item, "first", &first) < 0 || pl_json_int(item, "count", &count) < 0 ||
            first < 0 || count < 1 || first + count > PL_RUN_TRIAL_LIMIT ||
            (json_object_get(item, "tasks") && !pl_json_string(item, "tasks")) ||
            (json_object_get(item, "retry") && pl_json_int(item, "retry", &retry) < 0) ||
            retry < 0 || retry > INT32_MAX)
            return damaged(err, key);
    }
    return 0;
}

static int check_sweep(struct pl_run *run, struct pl_error *err)
{
    const json_t *o = run->sweep;
    const char *schema = pl_json_string(o, "schema"), *objective = pl_json_string(o, "objective");
    int64_t n_trials;

    if (!schema || strcmp(schema, PL_RUN_SCHEMA) != 0)
        return pl_error_set(err, -EINVAL, "the schema is '%s', not '%s'", schema ? schema : "",
                            PL_RUN_SCHEMA);
    if (!pl_json_string(o, "sweep"))
        return damaged(err, "sweep");
    if (!pl_json_string(o, "name"))
        return damaged(err, "name");
    if (pl_json_int(o, "trials", &n_trials) < 0 || n_trials < 1 || n_trials > PL_RUN_TRIAL_LIMIT)
        return damaged(err, "trials");
    run->n_trials = (unsigned)n_trials;
    if (!is_list_of(json_object_get(o, "argv"), NULL, NULL) ||
        json_array_size(json_object_get(o, "argv")) == 0)
        return damaged(err, "argv");
    if (!is_list_of(json_object_get(o, "axes"), NULL, NULL))
        return damaged(err, "axes");
    if (!is_list_of(json_object_get(o, "sbatch"), NULL, NULL))
        return damaged(err, "sbatch");
    if (!is_list_of(json_object_get(o, "metrics"), "name", "regex"))
        return damaged(err, "metrics");
    if (objective && strncmp(objective, "max:", 4) != 0 && strncmp(objective, "min:", 4) != 0)
        return damaged(err, "objective");
    if (!json_is_object(json_object_get(o, "options")))
        return damaged(err, "options");
    if (json_object_get(o, "cancelled") && !is_list_of(json_object_get(o, "cancelled"), NULL, NULL))
        return damaged(err, "cancelled");
    return check_submissions(o, "submissions", err) < 0 || check_submissions(o, "planned", err) < 0
               ? -EINVAL
               : 0;
}

const char **pl_run_string_pointers(const json_t *array)
{
    size_t n = json_array_size(array);
    const char **list = calloc(n + 1, sizeof(*list));

    for (size_t i = 0; list && i < n; i++)
        list[i] = json_string_value(json_array_get(array, i));
    return list;
}

static int load_sweep(struct pl_run *run, struct pl_error *err)
{
    _cleanup_free_ char *path = pl_path_join(run->dir, PL_RUN_SWEEP_FILE), *text = NULL;
    size_t len;
    int r = path ? pl_run_read_file(run, PL_RUN_SWEEP_FILE, PL_RUN_SWEEP_MAX, &text, &len, err)
                 : pl_error_set(err, -ENOMEM, "out of memory");

    if (r < 0)
        return r;
    r = pl_json_parse(text, len, PL_RUN_SWEEP_MAX, &run->sweep, err);
    if (r < 0)
        return pl_error_wrap(err, r, "'%s'", path);
    r = check_sweep(run, err);
    if (r < 0)
        return pl_error_wrap(err, r, "'%s'", path);
    run->argv = pl_run_string_pointers(json_object_get(run->sweep, "argv"));
    run->sbatch_args = pl_run_string_pointers(json_object_get(run->sweep, "sbatch"));
    if (!run->argv || !run->sbatch_args)
        return pl_error_set(err, -ENOMEM, "out of memory");
    return 0;
}

int pl_run_read_file(const struct pl_run *run,
                     const char *name,
                     size_t max_bytes,
                     char **ret,
                     size_t *ret_len,
                     struct pl_error *err)
{
    _cleanup_free_ char *path = NULL;

    if (run->dir_fd >= 0)
        return pl_own_file_read(run->dir_fd, name, max_bytes, ret, ret_len, err);
    path = pl_path_join(run->dir, name);
    if (!path)
        return pl_error_set(err, -ENOMEM, "out of memory");
    return pl_file_read(path, max_bytes, ret, ret_len, err);
}

static int open_run(const char *dir, bool own, struct pl_run **ret, struct pl_error *err)
{
    _cleanup_(pl_run_closep) struct pl_run *run = calloc(1, sizeof(*run));
    int r;

    if (!run)
        return pl_error_set(err, -ENOMEM, "out of memory");
    run->dir_fd = -EBADF;
    run->dir = realpath(dir, NULL);
    if (!run->dir)
        return pl_error_errno(err, errno, "cannot open run folder '%s'", dir);
    pl_dir_renew(run->dir); /* trials that have begun on other hosts */
    r = own ? pl_own_folder_open(AT_FDCWD, run->dir, &run->dir_fd, err) : 0;
    if (r == 0)
        r = load_sweep(run, err);
    if (r == -ENOENT)
        return pl_error_set(err, -ENOENT, "'%s' is not a run folder: it has no %s", dir,
                            PL_RUN_SWEEP_FILE);
    if (r < 0)
        return r;
    *ret = PL_TAKE(run);
    return 0;
}

int pl_run_open(const char *dir, struct pl_run **ret, struct pl_error *err)
{
    return open_run(dir, false, ret, err);
}

int pl_run_open_own(const char *dir, struct pl_run **ret, struct pl_error *err)
{
    return open_run(dir, true, ret, err);
}

const char *pl_run_sweep(const struct pl_run *run)
{
    return pl_json_string(run->sweep, "sweep");
}

const char *pl_run_name(const struct pl_run *run)
{
    return pl_json_string(run->sweep, "name");
}

const char *pl_run_dir(const struct pl_run *run)
{
    return run->dir;
}

unsigned pl_run_n_trials(const struct pl_run *run)
{
    return run->n_trials;
}

double pl_run_created_s(const struct pl_run *run)
{
    return json_number_value(json_object_get(run->sweep, "created"));
}

const char *const *pl_run_argv(const struct pl_run *run, size_t *ret_n)
{
    if (ret_n)
        *ret_n = json_array_size(json_object_get(run->sweep, "argv"));
    return run->argv;
}

const char *pl_run_program_file(const struct pl_run *run)
{
    const char *path = pl_env(PL_ENV_PLUME_PROGRAM);

    return path && *path ? path : run->argv[0];
}

size_t pl_run_n_axes(const struct pl_run *run)
{
    return json_array_size(json_object_get(run->sweep, "axes"));
}

const char *pl_run_axis(const struct pl_run *run, size_t i)
{
    return json_string_value(json_array_get(json_object_get(run->sweep, "axes"), i));
}

size_t pl_run_n_metrics(const struct pl_run *run)
{
    return json_array_size(json_object_get(run->sweep, "metrics"));
}

void pl_run_metric(const struct pl_run *run,
                   size_t i,
                   const char **ret_name,
                   const char **ret_regex)
{
    const json_t *metric = json_array_get(json_object_get(run->sweep, "metrics"), i);

    *ret_name = pl_json_string(metric, "name");
    *ret_regex = pl_json_string(metric, "regex");
}

enum pl_objective pl_run_objective(const struct pl_run *run, const char **ret_metric)
{
    const char *s = pl_json_string(run->sweep, "objective");

    *ret_metric = s ? s + 4 : NULL;
    if (!s)
        return PL_OBJECTIVE_NONE;
    return strncmp(s, "max:", 4) == 0 ? PL_OBJECTIVE_MAX : PL_OBJECTIVE_MIN;
}

const char *pl_run_cluster(const struct pl_run *run)
{
    static const char chosen[] = "--clusters=";
    const char *cluster = pl_json_string(run->sweep, "cluster");

    if (cluster || pl_run_n_submissions(run) == 0 || json_object_get(pl_run_options(run), "local"))
        return cluster;
    for (const char *const *arg = run->sbatch_args; *arg; arg++)
        if (strncmp(*arg, chosen, strlen(chosen)) == 0)
            cluster = *arg + strlen(chosen);
    return cluster;
}

size_t pl_run_n_submissions(const struct pl_run *run)
{
    return json_array_size(json_object_get(run->sweep, "submissions"));
}

static struct pl_run_submission submission_at(const struct pl_run *run, const char *key, size_t i)
{
    const json_t *o = json_array_get(json_object_get(run->sweep, key), i);

    return (struct pl_run_submission){
        .job = pl_json_string(o, "job"),
        .first_trial = (unsigned)json_integer_value(json_object_get(o, "first")),
        .n_trials = (unsigned)json_integer_value(json_object_get(o, "count")),
        .tasks = pl_json_string(o, "tasks"),
        .retry = (unsigned)json_integer_value(json_object_get(o, "retry")),
    };
}

struct pl_run_submission pl_run_submission(const struct pl_run *run, size_t i)
{
    return submission_at(run, "submissions", i);
}

size_t pl_run_n_planned(const struct pl_run *run)
{
    return json_array_size(json_object_get(run->sweep, "planned"));
}

struct pl_run_submission pl_run_planned(const struct pl_run *run, size_t i)
{
    return submission_at(run, "planned", i);
}

bool pl_run_submission_has(const struct pl_run_submission *sub, unsigned trial)
{
    return trial >= sub->first_trial && trial - sub->first_trial < sub->n_trials &&
           (!sub->tasks || pl_tasks_contain_sorted(sub->tasks, trial - sub->first_trial));
}

bool pl_run_job_is_older(const struct pl_run *run, unsigned trial, int64_t job)
{
    int64_t newest = -1, number;

    for (size_t i = pl_run_n_submissions(run); i-- > 0;) {
        struct pl_run_submission sub = pl_run_submission(run, i);

        if (!pl_run_submission_has(&sub, trial) ||
            pl_parse_int(sub.job, 1, UINT32_MAX, &number, NULL) < 0)
            continue;
        if (number == job) /* by the order of arrays: Slurm's numbers may begin anew */
            return newest >= 0;
        if (newest < 0)
            newest = number;
    }
    return job < newest; /* not one of the sweep's arrays, or not recorded yet */
}

bool pl_run_is_cancelled(const struct pl_run *run, int64_t array, int64_t task)
{
    _cleanup_free_ char *prefix = pl_strf("%lld_[", (long long)array);
    const json_t *item;
    size_t i;

    json_array_foreach (json_object_get(run->sweep, "cancelled"), i, item) {
        if (prefix && task >= 0 && strncmp(json_string_value(item), prefix, strlen(prefix)) == 0 &&
            pl_tasks_contain_sorted(json_string_value(item) + strlen(prefix), task))
            return true;
    }
    return false;
}

int pl_run_find_trial(const struct pl_run *run,
                      const char *job,
                      unsigned array_index,
                      unsigned *ret_trial)
{
    for (size_t i = 0; i < pl_run_n_submissions(run); i++) {
        struct pl_run_submission sub = pl_run_submission(run, i);

        if (strcmp(sub.job, job) == 0 && array_index < sub.n_trials &&
            pl_run_submission_has(&sub, sub.first_trial + array_index)) {
            *ret_trial = sub.first_trial + array_index;
            return 0;
        }
    }
    return -ENOENT;
}

const char *const *pl_run_sbatch_args(const struct pl_run *run)
{
    return run->sbatch_args;
}

const json_t *pl_run_options(const struct pl_run *run)
{
    return json_object_get(run->sweep, "options");
}
