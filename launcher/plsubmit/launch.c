/* SPDX-License-Identifier: MIT */
#include "launcher/plsubmit/launch.h"
#include "common/base/fs.h"
#include "common/base/log.h"
#include "common/base/parse.h"
#include "common/base/slow_fs.h"
#include "common/base/term.h"
#include "common/base/utf8.h"
#include "launcher/plsubmit/clusters.h"
#include "launcher/plsubmit/local_run.h"
#include "launcher/plsubmit/python_env.h"
#include "launcher/plsubmit/script.h"
#include "launcher/plsubmit/shape.h"
#include "launcher/plsubmit/start.h"
#include "launcher/plsubmit/submit.h"
#include "launcher/slurm/slurm_conf.h"

#include <sodium.h>
#include <string.h>
#include <sys/stat.h>

#define ID_LEN 6

void pl_launch_finish(struct pl_launch *launch)
{
    free(launch->sweep);
    free(launch->folder);
    free(launch->dir);
    free(launch->array);
    free(launch->shape);
    free(launch->work_dir);
    pl_strv_free(launch->sbatch_args);
    pl_strv_free(launch->env);
    *launch = (struct pl_launch){0};
}

unsigned pl_launch_max_parallel(const struct pl_spec *spec)
{
    const char *text = spec->values[PL_SPEC_MAX_PARALLEL].text;
    int64_t n = 0;

    if (text)
        pl_parse_int(text, 1, PL_RUN_TRIAL_LIMIT, &n, NULL);
    return (unsigned)n;
}

static char *make_sweep(const char *name)
{
    static const char alphabet[] = "abcdefghijklmnopqrstuvwxyz234567";
    char id[ID_LEN + 1] = {0};

    if (sodium_init() < 0)
        return NULL;
    for (int i = 0; i < ID_LEN; i++)
        id[i] = alphabet[randombytes_uniform(32)];
    return pl_strf("%s-%s", name, id);
}

/* Rejects a folder that breaks a line of the script or a file name pattern of sbatch. */
static int check_dir(const char *dir, struct pl_error *err)
{
    if (!pl_utf8_valid(dir, strlen(dir)))
        return pl_error_set(err, -EINVAL,
                            "run folder '%s' is not valid UTF-8: choose another with --runs", dir);
    if (strpbrk(dir, "\n\\"))
        return pl_error_set(err, -EINVAL,
                            "run folder '%s' has a line break or backslash: choose another with "
                            "--runs",
                            dir);
    return 0;
}

static int add_snapshot_text(const struct pl_snapshot *snapshot, struct pl_buf *out)
{
    _cleanup_free_ char *text = snapshot->wanted ? pl_snapshot_text(snapshot) : NULL;

    if (!snapshot->wanted)
        return 0;
    return text ? pl_buf_addf(out, ", in a snapshot of %s", text) : -ENOMEM;
}

int pl_launch_init(struct pl_launch *launch,
                   const struct pl_spec *spec,
                   const struct pl_snapshot *snapshot,
                   const char *bin_dir,
                   struct pl_error *err)
{
    const char *runs = spec->values[PL_SPEC_RUNS].text;
    const struct pl_shape shape = pl_shape_of(spec);
    _cleanup_(pl_buf_finish) struct pl_buf shape_text = {0};
    _cleanup_free_ char *cwd = getcwd(NULL, 0);
    int r;

    if (!cwd)
        return pl_error_errno(err, errno, "cannot find the current folder");
    *launch = (struct pl_launch){.spec = spec, .snapshot = snapshot, .bin_dir = bin_dir};
    launch->sweep = make_sweep(spec->id_name);
    launch->folder = launch->sweep ? pl_path_join(runs, launch->sweep) : NULL;
    launch->dir = launch->folder ? pl_path_join(cwd, launch->folder) : NULL;
    launch->array = pl_submit_array(&(struct pl_chunk){.n = pl_grid_n_trials(&spec->grid)},
                                    pl_launch_max_parallel(spec));
    if (pl_shape_format(&shape, &shape_text) == 0 && add_snapshot_text(snapshot, &shape_text) == 0)
        launch->shape = pl_buf_take(&shape_text);
    if (!launch->dir || !launch->array || !launch->shape)
        return pl_error_set(err, -ENOMEM, "out of memory");
    if (snapshot->wanted && !(launch->work_dir = pl_snapshot_folder(snapshot, launch->dir)))
        return pl_error_nomem(err);
    r = check_dir(launch->dir, err);
    if (r < 0)
        return r;
    r = pl_spec_sbatch_args(spec, launch->dir, &launch->sbatch_args);
    if (r == 0)
        r = pl_spec_env(spec, &launch->env);
    return r < 0 ? pl_error_set(err, r, "out of memory") : 0;
}

static unsigned local_ranks(const struct pl_spec *spec)
{
    const struct pl_shape shape = pl_shape_of(spec);

    if (!spec->values[PL_SPEC_LOCAL].text)
        return 0;
    return pl_local_ranks_of(&shape);
}

/* Writes what the local executor needs, except the number of trials. */
static int add_local(const struct pl_spec *spec, json_t *options)
{
    const struct pl_shape shape = pl_shape_of(spec);
    json_t *local = json_object_get(options, "local");

    if (!local)
        return 0;
    return json_object_set_new(local, "gpus", json_integer(pl_local_gpus_of(&shape))) < 0 ||
                   json_object_set_new(local, "cpus", json_integer(shape.cpus_per_rank)) < 0
               ? -ENOMEM
               : 0;
}

static int render(const struct pl_launch *launch, struct pl_buf *out, struct pl_error *err)
{
    char **const *lists = launch->spec->lists;
    _cleanup_free_ char *python_env = NULL;
    int r = pl_python_env_command(launch->spec, &python_env);
    struct pl_script script = {
        .sweep = launch->sweep,
        .run_dir = launch->dir,
        .bin_dir = launch->bin_dir,
        .array = launch->array,
        .sbatch_args = (const char *const *)launch->sbatch_args,
        .comments = (const char *const *)lists[PL_SPEC_SBATCH_COMMENT],
        .modules = (const char *const *)lists[PL_SPEC_LOAD],
        .python_env = python_env,
        .env = (const char *const *)launch->env,
        .kept = (const char *const *)lists[PL_SPEC_ENV],
        .env_files = (const char *const *)lists[PL_SPEC_ENV_FILE],
        .setup = (const char *const *)lists[PL_SPEC_SETUP],
        .teardown = (const char *const *)lists[PL_SPEC_TEARDOWN],
        .requeue_on = launch->spec->values[PL_SPEC_REQUEUE_ON].text,
        .save_command = launch->spec->values[PL_SPEC_SAVE_COMMAND].text,
        .save_grace = launch->spec->values[PL_SPEC_SAVE_GRACE].text,
        .srun = (const char *const *)lists[PL_SPEC_SRUN],
        .container = launch->spec->values[PL_SPEC_CONTAINER].text,
        .container_runtime = launch->spec->container_runtime,
        .container_options = (const char *const *)lists[PL_SPEC_CONTAINER_OPTION],
        .pmix = pl_start_needs_pmix(launch->spec),
        .torchrun = pl_start_workers(launch->spec),
        .local = local_ranks(launch->spec),
        .local_nodes = PL_MAX(pl_shape_of(launch->spec).nodes, 1u),
        .submit_dir = launch->snapshot->cwd,
        .work_dir = launch->work_dir,
        .program = launch->spec->program,
    };

    if (r < 0)
        return r == -EINVAL ? pl_error_set(err, r, "a path of --venv or --conda has a line break")
                            : pl_error_nomem(err);
    return pl_script_render(&script, out, err);
}

static int trial_values(void *ctx, unsigned trial, const char **ret)
{
    const struct pl_grid *grid = ctx;

    for (size_t i = 0; i < grid->n_axes; i++)
        ret[i] = pl_grid_value(grid, trial, i);
    return 0;
}

static int add_snapshot(void *ctx, int dir_fd, struct pl_error *err)
{
    const struct pl_launch *launch = ctx;

    return pl_snapshot_copy(launch->snapshot, dir_fd, launch->dir, err);
}

/* Names the option or the variable of a folder in which no run folder can be made. */
static int name_runs(const struct pl_spec *spec, int r, struct pl_error *err)
{
    const struct pl_spec_value *runs = &spec->values[PL_SPEC_RUNS];
    struct stat st;

    if (stat(runs->text, &st) == 0 && S_ISDIR(st.st_mode) && access(runs->text, W_OK | X_OK) == 0)
        return r;
    return pl_error_wrap(err, r, "%s",
                         runs->origin == PL_ORIGIN_ENVIRONMENT ? "PLUME_RUNS" : "--runs");
}

/* The cluster that gets the trials. NULL: it is not known, or sbatch is to choose it. */
static char *find_cluster(const struct pl_launch *launch, const json_t *options)
{
    if (json_object_get(options, "local") ||
        pl_clusters_chosen((const char *const *)launch->sbatch_args, environ))
        return NULL;
    return pl_slurm_conf_cluster();
}

static int create(struct pl_launch *launch, const char *script, struct pl_error *err)
{
    const struct pl_spec *spec = launch->spec;
    _cleanup_(json_decrefp) json_t *options = pl_spec_json(spec);
    _cleanup_(json_decrefp) json_t *snapshot = NULL;
    _cleanup_free_ char *cluster = find_cluster(launch, options);
    _cleanup_free_ const char **axes = calloc(spec->grid.n_axes + 1, sizeof(*axes));
    const char *name = spec->values[PL_SPEC_NAME].text;
    int r;
    struct pl_run_desc desc = {
        .sweep = launch->sweep,
        .name = name ? name : spec->id_name,
        .n_trials = pl_grid_n_trials(&spec->grid),
        .argv = (const char *const *)spec->argv,
        .axes = axes,
        .metric_names = (const char *const *)spec->metric_names,
        .metric_regexes = (const char *const *)spec->metric_regexes,
        .objective = spec->objective,
        .objective_metric = spec->objective_metric,
        .sbatch_args = (const char *const *)launch->sbatch_args,
        .options = options,
        .cluster = cluster,
        .script = script,
        .secret = spec->lists[PL_SPEC_ENV] && *spec->lists[PL_SPEC_ENV],
        .values = trial_values,
        .ctx = (void *)(uintptr_t)&spec->grid,
    };

    if (!options || !axes || add_local(spec, options) < 0)
        return pl_error_set(err, -ENOMEM, "out of memory");
    for (size_t i = 0; i < spec->grid.n_axes; i++)
        axes[i] = spec->grid.axes[i].name;
    while (spec->metric_names && spec->metric_names[desc.n_metrics])
        desc.n_metrics++;
    if (launch->snapshot->wanted) {
        desc.snapshot = snapshot = pl_snapshot_json(launch->snapshot);
        desc.add_files = add_snapshot;
        desc.files = launch;
        if (!snapshot)
            return pl_error_nomem(err);
    }
    if (pl_slow_fs_try(launch->dir, PL_SUBMIT_WRITE_MS) < 0)
        pl_log_warn("submit", PL_SUBMIT_WAITS, launch->dir);
    r = pl_run_create(launch->dir, &desc, err);
    return r < 0 ? name_runs(spec, r, err) : 0;
}

int pl_launch_create(struct pl_launch *launch, struct pl_run **ret, struct pl_error *err)
{
    _cleanup_(pl_buf_finish) struct pl_buf script = {0};
    int r = render(launch, &script, err);

    if (r == 0)
        r = create(launch, pl_buf_str(&script), err);
    return r < 0 ? r : pl_run_open_own(launch->dir, ret, err);
}

/* ---- dry run ---- */

int pl_launch_expand(const struct pl_spec *spec, FILE *out, struct pl_error *err)
{
    _cleanup_free_ const char **axes = calloc(spec->grid.n_axes + 1, sizeof(*axes));
    _cleanup_free_ const char **values = calloc(spec->grid.n_axes + 1, sizeof(*values));
    _cleanup_(pl_buf_finish) struct pl_buf text = {0};
    int r = axes && values ? 0 : -ENOMEM;

    for (size_t i = 0; i < spec->grid.n_axes && r == 0; i++)
        axes[i] = spec->grid.axes[i].name;
    for (unsigned trial = 0; trial < pl_grid_n_trials(&spec->grid) && r == 0; trial++) {
        trial_values((void *)(uintptr_t)&spec->grid, trial, values);
        r = pl_run_add_trial_line(&text, axes, trial, values);
    }
    if (r < 0)
        return pl_error_set(err, r, "out of memory");
    if (fwrite(pl_buf_str(&text), 1, text.len, out) != text.len || fflush(out) != 0)
        return pl_error_errno(err, EIO, "cannot write to stdout");
    return 0;
}

/* Appends a word with the quotes that a shell needs, if any. A word with a line break becomes
 * "...". */
static int add_word(struct pl_buf *out, const char *word)
{
    if (pl_script_directive_ok(word) && !strpbrk(word, "*["))
        return pl_buf_adds(out, word);
    if (pl_script_quote(out, word) == 0)
        return 0;
    return pl_buf_adds(out, "...");
}

static int add_command(const struct pl_launch *launch, struct pl_buf *out)
{
    struct pl_chunk all = {.n = pl_grid_n_trials(&launch->spec->grid)};
    _cleanup_(pl_strv_freep) char **argv = NULL;
    int r;

    if (launch->spec->values[PL_SPEC_LOCAL].text)
        return pl_buf_adds(out, "--local, on this machine");
    r = pl_submit_argv(launch->dir, (const char *const *)launch->sbatch_args, &all,
                       pl_launch_max_parallel(launch->spec), NULL, &argv);

    for (size_t i = 0; r == 0 && argv[i]; i++) {
        r = i ? pl_buf_addc(out, ' ') : 0;
        if (r == 0)
            r = add_word(out, argv[i]);
    }
    return r;
}

static size_t column_width(const struct pl_axis *axis)
{
    size_t width = pl_term_width(axis->name);

    for (size_t i = 0; i < axis->n_values; i++)
        width = PL_MAX(width, pl_term_width(axis->values[i]));
    return PL_MIN(width, (size_t)40);
}

/* Appends row `trial` of the table; -1 is the heading. */
static int
add_row(const struct pl_grid *grid, int64_t trial, const size_t *widths, struct pl_buf *out)
{
    int r = trial < 0 ? pl_buf_adds(out, "trial") : pl_buf_addf(out, "%5u", (unsigned)trial);

    for (size_t i = 0; i < grid->n_axes && r == 0; i++) {
        const char *text = trial < 0 ? grid->axes[i].name : pl_grid_value(grid, (unsigned)trial, i);
        bool last = i + 1 == grid->n_axes;

        r = pl_buf_adds(out, "  ");
        if (r == 0)
            r = pl_term_cell(out, text, last ? 0 : widths[i], false, !last);
    }
    return r == 0 ? pl_buf_addc(out, '\n') : r;
}

static int add_trials(const struct pl_grid *grid, struct pl_buf *out)
{
    _cleanup_free_ size_t *widths = calloc(grid->n_axes + 1, sizeof(*widths));
    int r = widths ? 0 : -ENOMEM;

    for (size_t i = 0; i < grid->n_axes && r == 0; i++)
        widths[i] = column_width(&grid->axes[i]);
    for (int64_t trial = -1; trial < pl_grid_n_trials(grid) && r == 0; trial++)
        r = add_row(grid, trial, widths, out);
    return r;
}

int pl_launch_show(const struct pl_launch *launch, FILE *out, struct pl_error *err)
{
    _cleanup_(pl_buf_finish) struct pl_buf text = {0}, script = {0}, command = {0};
    int r = render(launch, &script, err);

    if (r < 0)
        return r;
    r = pl_buf_addf(&text, "# %s/job.sh\n", launch->folder);
    for (const char *line = pl_buf_str(&script); *line && r == 0;) {
        size_t len = strcspn(line, "\n");

        r = pl_term_escape(&text, line, len);
        if (r == 0)
            r = pl_buf_addc(&text, '\n');
        line += len + (line[len] == '\n');
    }
    if (r == 0)
        r = add_command(launch, &command);
    if (r == 0)
        r = pl_buf_adds(&text, "\n# submitted by\n");
    if (r == 0)
        r = pl_term_escape(&text, pl_buf_str(&command), command.len);
    if (r == 0)
        r = pl_buf_addf(&text, "\n\n# each trial: %s\n", launch->shape);
    if (r == 0)
        r = pl_buf_adds(&text, "\n# trials\n");
    if (r == 0)
        r = add_trials(&launch->spec->grid, &text);
    if (r < 0)
        return pl_error_set(err, r, "out of memory");
    if (fwrite(pl_buf_str(&text), 1, text.len, out) != text.len || fflush(out) != 0)
        return pl_error_errno(err, EIO, "cannot write to stdout");
    return 0;
}
