/* SPDX-License-Identifier: MIT */
/* Makes a run folder and adds submissions to it: everything that plsubmit writes there. */
#include "common/base/fs.h"
#include "common/base/own.h"
#include "common/base/remove_tree.h"
#include "common/base/site.h"
#include "common/proto/json.h"
#include "common/proto/rank/minijson.h"
#include "common/run/run_end.h"
#include "common/run/run_folder_private.h"

#include <dirent.h>
#include <fcntl.h>
#include <sodium.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#define STALE_S 3600

/* The files of a new run folder. */
static const char *const new_files[] = {PL_RUN_SCRIPT_FILE, "key", PL_RUN_TRIALS_FILE,
                                        PL_RUN_SWEEP_FILE};

int pl_run_add_trial_line(struct pl_buf *out,
                          const char *const *axes,
                          unsigned trial,
                          const char **values)
{
    int r = pl_buf_addf(out, "{\"trial\":%u,\"params\":{", trial);

    for (size_t i = 0; r == 0 && axes[i]; i++) {
        r = i ? pl_buf_addc(out, ',') : 0;
        if (r == 0)
            r = pl_mini_quote(out, axes[i]);
        if (r == 0)
            r = pl_buf_addc(out, ':');
        if (r == 0)
            r = pl_mini_quote(out, values[i]);
    }
    return r == 0 ? pl_buf_adds(out, "}}\n") : r;
}

static int write_trials(int dir_fd, const struct pl_run_desc *desc, struct pl_error *err)
{
    _cleanup_(pl_buf_finish) struct pl_buf out = {0};
    _cleanup_free_ const char **values = NULL;
    size_t n_axes = 0;
    int r = 0;

    while (desc->axes[n_axes])
        n_axes++;
    values = calloc(n_axes + 1, sizeof(*values));
    if (!values)
        return pl_error_set(err, -ENOMEM, "out of memory");
    for (unsigned trial = 0; trial < desc->n_trials && r == 0; trial++) {
        r = desc->values(desc->ctx, trial, values);
        if (r == 0)
            r = pl_run_add_trial_line(&out, desc->axes, trial, values);
    }
    if (r == 0 && out.len > PL_RUN_TRIALS_MAX)
        return pl_error_set(err, -EFBIG, "the trials' values need more than %u MiB",
                            PL_RUN_TRIALS_MAX >> 20);
    if (r < 0)
        return pl_error_errno(err, r, "cannot write '%s'", PL_RUN_TRIALS_FILE);
    return pl_file_write_at(dir_fd, PL_RUN_TRIALS_FILE, pl_buf_str(&out), out.len,
                            pl_own_mode(dir_fd, 0666), false, err);
}

static json_t *strings_json(const char *const *list)
{
    json_t *array = json_array();

    for (; array && list && *list; list++)
        if (json_array_append_new(array, json_string(*list)) < 0) {
            json_decref(array);
            return NULL;
        }
    return array;
}

static json_t *metrics_json(const struct pl_run_desc *desc)
{
    json_t *array = json_array();

    for (size_t i = 0; array && i < desc->n_metrics; i++)
        if (json_array_append_new(array, json_pack("{ssss}", "name", desc->metric_names[i], "regex",
                                                   desc->metric_regexes[i])) < 0) {
            json_decref(array);
            return NULL;
        }
    return array;
}

static int write_sweep(int dir_fd, const json_t *sweep, struct pl_error *err)
{
    _cleanup_free_ char *text = pl_json_dumps(sweep, JSON_INDENT(1));
    size_t len;

    if (!text)
        return pl_error_set(err, -ENOMEM, "out of memory");
    len = strlen(text);
    if (len >= PL_RUN_SWEEP_MAX) /* nobody could read it */
        return pl_error_set(err, -EFBIG, "'%s' would be larger than %u MiB", PL_RUN_SWEEP_FILE,
                            PL_RUN_SWEEP_MAX >> 20);
    text[len] = '\n'; /* replaces the NUL */
    return pl_file_write_at(dir_fd, PL_RUN_SWEEP_FILE, text, len + 1, pl_own_mode(dir_fd, 0666),
                            false, err);
}

static int write_new_sweep(int dir_fd, const struct pl_run_desc *desc, struct pl_error *err)
{
    _cleanup_(json_decrefp) json_t *o = NULL;

    o = json_pack("{ss ss ss sf si so so so so sO so}", "schema", PL_RUN_SCHEMA, "sweep",
                  desc->sweep, "name", desc->name, "created", pl_wall_s(), "trials",
                  (int)desc->n_trials, "argv", strings_json(desc->argv), "axes",
                  strings_json(desc->axes), "metrics", metrics_json(desc), "sbatch",
                  strings_json(desc->sbatch_args), "options", desc->options, "submissions",
                  json_array());
    if (!o)
        return pl_error_set(
            err, -ENOMEM, "cannot write sweep.json: out of memory, or a value is not valid UTF-8");
    if (desc->cluster && json_object_set_new(o, "cluster", json_string(desc->cluster)) < 0)
        return pl_error_nomem(err);
    if (desc->snapshot && json_object_set(o, "snapshot", desc->snapshot) < 0)
        return pl_error_nomem(err);
    if (desc->objective != PL_OBJECTIVE_NONE &&
        json_object_set_new(o, "objective",
                            json_sprintf("%s:%s",
                                         desc->objective == PL_OBJECTIVE_MAX ? "max" : "min",
                                         desc->objective_metric)) < 0)
        return pl_error_set(err, -ENOMEM, "out of memory");
    return write_sweep(dir_fd, o, err);
}

static int write_key(int dir_fd, struct pl_error *err)
{
    unsigned char key[PL_RUN_KEY_BYTES];
    int r;

    if (sodium_init() < 0)
        return pl_error_set(err, -EIO, "cannot get random numbers: libsodium does not start");
    randombytes_buf(key, sizeof(key));
    r = pl_file_write_at(dir_fd, "key", key, sizeof(key), 0600, false, err);
    sodium_memzero(key, sizeof(key));
    return r;
}

static void remove_files(int dir_fd)
{
    for (size_t i = 0; i < PL_COUNT(new_files); i++)
        unlinkat(dir_fd, new_files[i], 0);
    pl_remove_tree(dir_fd, PL_RUN_SNAPSHOT);
}

int pl_run_check_script(const struct pl_run *run, struct pl_error *err)
{
    _cleanup_close_ int fd = -EBADF;

    return pl_own_file_open(run->dir_fd, PL_RUN_SCRIPT_FILE, O_RDONLY, 0, &fd, err);
}

/* "RUNS/.NAME.0123456789abcdef": a run folder that is not complete, or not any more. NULL: out of
 * memory. */
static char *temp_folder(const char *dir)
{
    const char *slash = strrchr(dir, '/');
    int parent = slash ? (int)(slash - dir) + 1 : 0;
    _cleanup_free_ char *hidden = pl_strf("%.*s.%s", parent, dir, dir + parent);

    return hidden ? pl_temp_name(hidden) : NULL;
}

void pl_run_discard(struct pl_run *run)
{
    _cleanup_free_ char *temp = temp_folder(run->dir);

    /* A client that is killed from here on leaves no run folder that lacks a file. */
    if (temp && rename(run->dir, temp) == 0) {
        remove_files(run->dir_fd);
        rmdir(temp);
    }
    pl_run_close(run);
}

/* True for a name that temp_folder() makes. */
static bool is_temp_name(const char *name)
{
    const char *dot = strrchr(name, '.');

    return name[0] == '.' && dot != name && strlen(dot + 1) == 16 &&
           strspn(dot + 1, "0123456789abcdef") == 16;
}

/* Removes what killed clients left in the folder of runs. A client needs a folder without its final
 * name for milliseconds, or as long as it copies a snapshot; those older than `now` by STALE_S have
 * none any more. */
static void remove_stale(const char *runs, time_t now)
{
    DIR *list = opendir(runs);
    struct dirent *entry;

    while (list && (entry = readdir(list))) {
        _cleanup_close_ int fd = -EBADF;
        struct stat st;

        if (!is_temp_name(entry->d_name) ||
            pl_own_folder_open(dirfd(list), entry->d_name, &fd, NULL) < 0 || fstat(fd, &st) < 0 ||
            st.st_mtime + STALE_S > now)
            continue;
        remove_files(fd);
        unlinkat(dirfd(list), entry->d_name, AT_REMOVEDIR);
    }
    if (list)
        closedir(list);
}

/* Writes all files of a new run folder. */
static int fill(int dir_fd, const char *dir, const struct pl_run_desc *desc, struct pl_error *err)
{
    int r = write_key(dir_fd, err);

    if (r == 0)
        r = write_trials(dir_fd, desc, err);
    if (r == 0)
        r = write_new_sweep(dir_fd, desc, err);
    if (r == 0 && desc->add_files)
        r = desc->add_files(desc->files, dir_fd, err);
    if (r == 0 && desc->script)
        r = pl_file_write_at(dir_fd, PL_RUN_SCRIPT_FILE, desc->script, strlen(desc->script),
                             pl_own_mode(dir_fd, 0777), false, err);
    if (r == 0 && desc->script) /* Slurm is about to know of the run */
        r = pl_dir_sync(dir, new_files, PL_COUNT(new_files), err);
    return r;
}

/* Gives the complete folder its name. rename(2) replaces an empty folder only. */
static int give_name(const char *temp, const char *dir, struct pl_error *err)
{
    int r = pl_file_place(AT_FDCWD, temp, dir);

    if (r == 0)
        return 0;
    return pl_error_errno(err, r == -ENOTEMPTY ? -EEXIST : r, "cannot create run folder '%s'", dir);
}

int pl_run_create(const char *dir, const struct pl_run_desc *desc, struct pl_error *err)
{
    _cleanup_free_ char *parent = strdup(dir), *temp = temp_folder(dir);
    char *slash = parent ? strrchr(parent, '/') : NULL;
    mode_t mode = 0777 & ~(PL_OWN_MASK | pl_site_folder_mask());
    _cleanup_close_ int dir_fd = -EBADF;
    struct stat st;
    int r = 0;

    if (!parent || !temp)
        return pl_error_set(err, -ENOMEM, "out of memory");
    if (slash && slash != parent) {
        *slash = '\0';
        r = pl_mkdir_p(parent, mode, err);
        if (r < 0)
            return r;
    }
    if (mkdir(temp, desc->secret ? 0700 : mode) < 0)
        return pl_error_errno(err, errno, "cannot create run folder '%s'", dir);
    r = pl_own_folder_open(AT_FDCWD, temp, &dir_fd, err); /* the file system may give other modes */
    if (r == 0 && (r = fill(dir_fd, temp, desc, err)) < 0)
        pl_error_wrap(err, r, "cannot create run folder '%s'", dir);
    if (r == 0)
        r = give_name(temp, dir, err);
    if (r < 0) {
        if (dir_fd >= 0)
            remove_files(dir_fd);
        rmdir(temp);
        return r;
    }
    if (desc->script && slash && fstat(dir_fd, &st) == 0)
        remove_stale(parent, st.st_mtime);
    return 0;
}

/* Writes the present sweep.json of an open run. */
static int save_sweep(const struct pl_run *run, struct pl_error *err)
{
    int r;

    if (run->dir_fd < 0)
        return pl_error_set(err, -EACCES, "run folder '%s' was opened for reading", run->dir);
    r = write_sweep(run->dir_fd, run->sweep, err);
    return r < 0 ? pl_error_wrap(err, r, "run folder '%s'", run->dir) : 0;
}

/* ---- more trials ---- */

int pl_run_extend(struct pl_run *run, const char *lines, unsigned n, struct pl_error *err)
{
    _cleanup_(pl_buf_finish) struct pl_buf text = {0};
    unsigned before = run->n_trials;
    int r = run->trials ? 0 : pl_run_load_trials(run, err);

    if (r < 0)
        return r;
    if (n > PL_RUN_TRIAL_LIMIT - before)
        return pl_error_set(err, -E2BIG, "the sweep would have %u trials, more than %u", before + n,
                            PL_RUN_TRIAL_LIMIT);
    /* Lines past the last trial are of a client that was killed here. */
    if (pl_buf_add(&text, run->trials, run->lines[before]) < 0 || pl_buf_adds(&text, lines) < 0)
        return pl_error_nomem(err);
    r = pl_run_write_file(run, PL_RUN_TRIALS_FILE, pl_buf_str(&text), text.len, 0666, true, err);
    if (r < 0)
        return r;
    if (json_object_set_new(run->sweep, "trials", json_integer(before + n)) < 0)
        return pl_error_nomem(err);
    r = save_sweep(run, err);
    if (r < 0) {
        json_object_set_new(run->sweep, "trials", json_integer(before));
        return r;
    }
    run->n_trials = before + n;
    free(PL_TAKE(run->trials));
    free(PL_TAKE(run->lines));
    return 0;
}

/* ---- retries ---- */

/* One more than the highest number of a recorded retry. */
static int next_retry(const struct pl_run *run)
{
    unsigned last = 0;

    for (size_t i = 0; i < pl_run_n_submissions(run); i++)
        last = PL_MAX(last, pl_run_submission(run, i).retry);
    return (int)last + 1;
}

int pl_run_plan_add(struct pl_run *run, unsigned first_trial, unsigned n_trials, const char *tasks)
{
    json_t *list = json_object_get(run->sweep, "planned");

    if (!list) {
        list = json_array();
        if (json_object_set_new(run->sweep, "planned", list) < 0)
            return -ENOMEM;
    }
    return json_array_append_new(list, json_pack("{si si ss si}", "first", (int)first_trial,
                                                 "count", (int)n_trials, "tasks", tasks, "retry",
                                                 next_retry(run))) < 0
               ? -ENOMEM
               : 0;
}

int pl_run_plan_write(struct pl_run *run, struct pl_error *err)
{
    int r = save_sweep(run, err);

    if (r < 0)
        json_object_del(run->sweep, "planned");
    return r;
}

int pl_run_plan_done(struct pl_run *run, const char *job, struct pl_error *err)
{
    json_t *planned = json_object_get(run->sweep, "planned"), *entry = json_array_get(planned, 0);

    if (!job) {
        json_object_del(run->sweep, "planned");
        return save_sweep(run, err);
    }
    if (json_object_set_new(entry, "job", json_string(job)) < 0 ||
        json_array_append(json_object_get(run->sweep, "submissions"), entry) < 0)
        return pl_error_set(err, -ENOMEM, "out of memory");
    json_array_remove(planned, 0);
    if (json_array_size(planned) == 0)
        json_object_del(run->sweep, "planned");
    return save_sweep(run, err);
}

int pl_run_add_cancelled(struct pl_run *run, char *const *jobs, struct pl_error *err)
{
    json_t *list = json_object_get(run->sweep, "cancelled");

    if (!list) {
        list = json_array();
        if (json_object_set_new(run->sweep, "cancelled", list) < 0)
            return pl_error_set(err, -ENOMEM, "out of memory");
    }
    for (; *jobs; jobs++)
        if (json_array_append_new(list, json_string(*jobs)) < 0)
            return pl_error_set(err, -ENOMEM, "out of memory");
    return save_sweep(run, err);
}

int pl_run_set_cluster(struct pl_run *run, const char *cluster)
{
    return json_object_set_new(run->sweep, "cluster", json_string(cluster)) < 0 ? -ENOMEM : 0;
}

static bool is_value_of(const char *arg, const char *option)
{
    size_t len = strlen(option);

    return strncmp(arg, "--", 2) == 0 && strncmp(arg + 2, option, len) == 0 && arg[2 + len] == '=';
}

int pl_run_set_sbatch(struct pl_run *run, const char *option, const char *value)
{
    json_t *list = json_object_get(run->sweep, "sbatch");
    _cleanup_free_ char *arg = pl_strf("--%s=%s", option, value);
    const char **pointers;
    size_t i = 0;
    int r;

    while (i < json_array_size(list) &&
           !is_value_of(json_string_value(json_array_get(list, i)), option))
        i++;
    if (!arg)
        return -ENOMEM;
    r = i < json_array_size(list) ? json_array_set_new(list, i, json_string(arg))
                                  : json_array_append_new(list, json_string(arg));
    if (r < 0 || !(pointers = pl_run_string_pointers(list)))
        return -ENOMEM;
    free(run->sbatch_args);
    run->sbatch_args = pointers;
    return 0;
}

int pl_run_set_option(struct pl_run *run, const char *option, const char *value, const char *origin)
{
    json_t *o = json_pack("{ss ss}", "value", value, "origin", origin);

    return !o || json_object_set_new(json_object_get(run->sweep, "options"), option, o) < 0
               ? -ENOMEM
               : 0;
}

int pl_run_save_options(struct pl_run *run, struct pl_error *err)
{
    return save_sweep(run, err);
}

int pl_run_add_submission(struct pl_run *run,
                          const char *job,
                          unsigned first_trial,
                          unsigned n_trials,
                          struct pl_error *err)
{
    json_t *list = json_object_get(run->sweep, "submissions");
    int r;

    if (json_array_append_new(list, json_pack("{sssisi}", "job", job, "first", (int)first_trial,
                                              "count", (int)n_trials)) < 0)
        return pl_error_set(err, -ENOMEM, "out of memory");
    r = save_sweep(run, err);
    if (r < 0)
        json_array_remove(list, json_array_size(list) - 1);
    return r;
}

int pl_run_end_record(struct pl_run *run, const char *job, struct pl_error *err)
{
    json_t *o = json_pack("{ss si}", "job", job, "arrays", (int)pl_run_n_submissions(run));

    if (!o || json_object_set_new(run->sweep, "on_end", o) < 0)
        return pl_error_nomem(err);
    return save_sweep(run, err);
}
