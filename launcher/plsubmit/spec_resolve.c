/* SPDX-License-Identifier: MIT */
/* Sets defaults, checks options together, and converts a spec to sbatch's options, the script's
 * variables, JSON and --show-config. */
#include "common/base/env.h"
#include "common/base/fs.h"
#include "common/base/parse.h"
#include "common/base/term.h"
#include "common/base/utf8.h"
#include "common/proto/json.h"
#include "common/run/output_ranks.h"
#include "common/run/run_stop.h"
#include "launcher/plsubmit/axes.h"
#include "launcher/plsubmit/container.h"
#include "launcher/plsubmit/hparams.h"
#include "launcher/plsubmit/python_env.h"
#include "launcher/plsubmit/sample.h"
#include "launcher/plsubmit/shape.h"
#include "launcher/plsubmit/spec_private.h"
#include "launcher/plsubmit/start.h"
#include "launcher/plsubmit/where.h"

#include <string.h>

#define ID_NAME_MAX 64

bool pl_spec_has_options(const struct pl_spec *spec, bool but_trials)
{
    for (size_t i = 0; i < PL_SPEC_N_KEYS; i++) {
        bool trials =
            i == PL_SPEC_RANDOM || i == PL_SPEC_SEED || i == PL_SPEC_TRIALS || i == PL_SPEC_REPEAT;

        if (spec->values[i].origin != PL_ORIGIN_NONE && !(trials && but_trials))
            return true;
    }
    for (size_t i = 0; i < PL_SPEC_N_LISTS; i++) {
        bool trials = i == PL_SPEC_ZIP || i == PL_SPEC_WHERE || i == PL_SPEC_SAMPLE;

        if (spec->lists[i] && !(trials && but_trials))
            return true;
    }
    if (!but_trials && (spec->grid.n_axes > 0 || spec->expand))
        return true;
    return spec->dry_run || spec->check || spec->show_config || spec->job_file || spec->write_job;
}

/* ---- the trials ---- */

/* --repeat K: seed=0,...,K-1. */
static int add_seeds(struct pl_spec *spec, int64_t n, struct pl_error *err)
{
    _cleanup_(pl_buf_finish) struct pl_buf axis = {0};
    int r = pl_buf_adds(&axis, "seed=");

    for (size_t i = 0; i < spec->grid.n_axes; i++)
        if (strcmp(spec->grid.axes[i].name, "seed") == 0)
            return pl_error_set(err, -EINVAL,
                                "option '--repeat' makes an axis 'seed', which '--grid' has, too: "
                                "omit one of them");
    for (int64_t i = 0; i < n && r == 0; i++)
        r = pl_buf_addf(&axis, "%s%lld", i ? "," : "", (long long)i);
    return r < 0 ? pl_error_nomem(err) : pl_grid_add(&spec->grid, pl_buf_str(&axis), err);
}

/* --random N --seed S --sample NAME=...: the last axes but that of --repeat. */
static int add_samples(struct pl_spec *spec, struct pl_error *err)
{
    const char *random = spec->values[PL_SPEC_RANDOM].text;
    const char *text = spec->values[PL_SPEC_SEED].text;
    char **list = spec->lists[PL_SPEC_SAMPLE];
    int64_t n = 0, seed = 0;
    int r;

    if (!random && !list && !text)
        return 0;
    if (!random || !list)
        return pl_error_set(err, -EINVAL, "option '%s' needs '%s'",
                            random ? "--random"
                            : list ? "--sample"
                                   : "--seed",
                            random ? "--sample NAME=DIST" : "--random N");
    r = pl_parse_int(random, 1, PL_RUN_TRIAL_LIMIT, &n, err);
    if (r == 0 && text)
        r = pl_parse_int(text, 0, INT64_MAX, &seed, err);
    if (r == 0)
        r = pl_sample_add(&spec->grid, list, (unsigned)n, (uint64_t)seed, err);
    return r < 0 ? pl_error_wrap(err, r, "--sample") : 0;
}

int pl_spec_make_trials(struct pl_spec *spec, struct pl_error *err)
{
    const char *repeat = spec->values[PL_SPEC_REPEAT].text;
    const char *most = spec->values[PL_SPEC_TRIALS].text;
    int64_t n;
    int r = 0;

    for (char **item = spec->lists[PL_SPEC_ZIP]; item && *item && r == 0; item++)
        r = pl_grid_zip(&spec->grid, *item, err);
    if (r < 0)
        return pl_error_wrap(err, r, "--zip");
    r = add_samples(spec, err);
    if (r < 0)
        return r;
    if (repeat && pl_parse_int(repeat, 1, PL_RUN_TRIAL_LIMIT, &n, err) == 0)
        r = add_seeds(spec, n, err);
    if (r == 0 && spec->lists[PL_SPEC_WHERE]) {
        r = pl_where_apply(&spec->grid, spec->lists[PL_SPEC_WHERE], err);
        if (r < 0)
            return pl_error_wrap(err, r, "--where");
    }
    if (r == 0 && most && pl_parse_int(most, 1, PL_RUN_TRIAL_LIMIT, &n, err) == 0) {
        unsigned all = pl_grid_n_trials(&spec->grid);

        if ((uint64_t)n > all &&
            pl_spec_warn(spec, "--trials %s: the grid has only %u", most, all) < 0)
            return pl_error_nomem(err);
        spec->grid.most = (unsigned)n;
    }
    return r == 0 ? pl_grid_check(&spec->grid, err) : r;
}

/* ---- the program ---- */

/* Without a program pltrain trains the bundled module; each axis is one of its hyper-parameters. */
static int bundled_program(struct pl_spec *spec, const char *bin_dir, char *const *options)
{
    _cleanup_free_ char *pltrain = pl_path_join(bin_dir, "pltrain");
    int r = pltrain ? pl_strv_append(&spec->argv, pltrain) : -ENOMEM;

    if (r == 0)
        r = pl_strv_append(&spec->argv, "mlp");
    for (size_t i = 0; i < spec->grid.n_axes && r == 0; i++) {
        const char *name = spec->grid.axes[i].name;
        bool option = strcmp(name, "seed") == 0; /* pltrain's own */
        _cleanup_free_ char *param = pl_strf("%s%s={%s}", option ? "--" : "", name, name);

        r = param && !option ? pl_strv_append(&spec->argv, "--hparam") : param ? 0 : -ENOMEM;
        if (r == 0)
            r = pl_strv_append(&spec->argv, param);
    }
    for (; *options && r == 0; options++)
        r = pl_strv_append(&spec->argv, *options);
    spec->bundled = true;
    return r;
}

/* True if the set-up may change the file that a program's name stands for. */
static bool sets_path(const struct pl_spec *spec)
{
    for (char **item = spec->lists[PL_SPEC_ENV]; item && *item; item++)
        if (strncmp(*item, "PATH=", 5) == 0 || strcmp(*item, "PATH") == 0)
            return true;
    return spec->lists[PL_SPEC_ENV_FILE] || spec->lists[PL_SPEC_LOAD] ||
           spec->lists[PL_SPEC_SETUP] || spec->values[PL_SPEC_VENV].text ||
           spec->values[PL_SPEC_CONDA].text;
}

static int check_axes(struct pl_spec *spec, const char *program, struct pl_error *err)
{
    const char *unused, *wrong;
    int r = pl_axes_check(&spec->grid, (const char *const *)spec->argv,
                          pl_hparams_is_pltrain(program), &unused, &wrong, err);

    if (r == 0 && unused &&
        pl_spec_warn(spec,
                     "no argument uses axis '%s': write {%s}, unless the "
                     "program reads PLUME_PARAM_%s",
                     unused, unused, unused) < 0)
        r = pl_error_nomem(err);
    if (r == 0 && wrong &&
        pl_spec_warn(spec,
                     strchr(wrong, '{')
                         ? "there is no axis for '%.200s', and the program gets it as it is: "
                           "--grid NAME=V1,V2 makes one"
                         : "'%.200s' after the program's name is an argument of the program: write "
                           "plsubmit's options before it",
                     wrong) < 0)
        r = pl_error_nomem(err);
    return r;
}

/* --local 2 and --snapshot untracked, whose values need a '='. */
static int check_first_word(const struct pl_spec *spec, const char *word, struct pl_error *err)
{
    const char *local = spec->values[PL_SPEC_LOCAL].text;

    if (local && strcmp(local, "0") == 0 && *word && !word[strspn(word, "0123456789")])
        return pl_error_set(err, -EINVAL, "program '%s': write --local=%s", word, word);
    if (spec->values[PL_SPEC_SNAPSHOT].text && strcmp(word, "untracked") == 0)
        return pl_error_set(err, -EINVAL, "program '%s': write --snapshot=%s", word, word);
    return 0;
}

static int user_program(struct pl_spec *spec, char *const *words, struct pl_error *err)
{
    bool later = sets_path(spec);
    _cleanup_free_ char *program = NULL, *warning = NULL;
    int r;

    for (char *const *word = words; *word; word++)
        if (!pl_utf8_valid(*word, strlen(*word)))
            return pl_error_set(err, -EINVAL, "argument '%.200s' of the program is not valid UTF-8",
                                *word);
    r = check_first_word(spec, words[0], err);
    if (r < 0)
        return r;
    if (spec->values[PL_SPEC_CONTAINER].text) /* the image has it */
        r = *words[0] ? (program = strdup(words[0])) ? 0 : -ENOMEM
                      : pl_error_set(err, -ENOENT, "the program's name is empty");
    else
        r = pl_python_env_program(spec, words[0], &program);
    if (r == 0 && !program)
        r = pl_spec_find_program(words[0], later, &program, &warning, err);
    if (r < 0)
        return r;
    if (warning)
        r = pl_spec_warn(spec, "%s", warning);
    if (r == 0 && later && !strchr(words[0], '/') && !spec->values[PL_SPEC_CONTAINER].text) {
        spec->program = strdup(words[0]);
        r = spec->program ? 0 : -ENOMEM;
    }
    if (r == 0)
        r = pl_strv_append(&spec->argv, program);
    for (char *const *word = words + 1; *word && r == 0; word++)
        r = pl_strv_append(&spec->argv, *word);
    return r < 0 ? pl_error_set(err, r, "out of memory") : check_axes(spec, words[0], err);
}

/* ---- defaults ---- */

static int set_default(struct pl_spec *spec, enum pl_spec_key key, const char *text)
{
    if (spec->values[key].origin != PL_ORIGIN_NONE || !text)
        return 0;
    return pl_spec_put(spec, key, text, PL_ORIGIN_BUILTIN);
}

/* True if Lightning takes a job of this name for an interactive shell: each rank would train alone.
 */
static bool is_shells_name(const char *name)
{
    return strcmp(name, "bash") == 0 || strcmp(name, "interactive") == 0;
}

static int warn_name(struct pl_spec *spec)
{
    const char *name = spec->values[PL_SPEC_NAME].text;

    return name && is_shells_name(name)
               ? pl_spec_warn(spec,
                              "PyTorch Lightning takes a job named '%s' for an interactive shell, "
                              "and each rank would train alone: choose another --name",
                              name)
               : 0;
}

/* "train" for train.py, python train.py, bash train.sh and torchrun train.py. */
static int default_name(struct pl_spec *spec, char *const *words)
{
    const char *word, *base, *dot;
    _cleanup_free_ char *name = NULL;

    if (spec->bundled)
        return set_default(spec, PL_SPEC_NAME, "mlp");
    word = words[0];
    base = strrchr(word, '/') ? strrchr(word, '/') + 1 : word;
    if ((strncmp(base, "python", 6) == 0 || strcmp(base, "torchrun") == 0 ||
         strcmp(base, "bash") == 0 || strcmp(base, "sh") == 0) &&
        words[1] && words[1][0] != '-' && words[1][0]) {
        word = words[1];
        base = strrchr(word, '/') ? strrchr(word, '/') + 1 : word;
    }
    dot = strrchr(base, '.');
    name = dot && dot != base ? strndup(base, (size_t)(dot - base)) : strdup(base);
    if (!name)
        return -ENOMEM;
    for (char *p = name; *p; p++)
        if ((unsigned char)*p < 0x20 || *p == 0x7f)
            *p = '_';
    return set_default(spec, PL_SPEC_NAME, *name && !is_shells_name(name) ? name : "run");
}

static int defaults(struct pl_spec *spec, char *const *words)
{
    const char *runs = pl_env(PL_ENV_PLUME_RUNS);
    int r = pl_spec_read_env(spec, runs, environ);

    if (r == 0)
        r = default_name(spec, words);
    if (r == 0)
        r = set_default(spec, PL_SPEC_OPEN_MODE, "append");
    if (r == 0)
        r = set_default(spec, PL_SPEC_RUNS, "runs");
    return r;
}

/* Replaces characters other than [A-Za-z0-9._-], and a first '.' or '-', by '_'. */
static int make_id_name(struct pl_spec *spec)
{
    const char *name = spec->values[PL_SPEC_NAME].text;
    size_t n = 0;

    spec->id_name = calloc(1, ID_NAME_MAX + 1);
    if (!spec->id_name)
        return -ENOMEM;
    for (name = name ? name : "run"; *name && n < ID_NAME_MAX; name++) {
        char c = *name;
        bool ok = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                  c == '_' || (n > 0 && (c == '.' || c == '-'));

        if (((unsigned char)c & 0xc0) == 0x80)
            continue; /* one '_' per UTF-8 character */
        spec->id_name[n++] = ok ? c : '_';
    }
    return 0;
}

static int split_metrics(struct pl_spec *spec)
{
    int r = 0;

    for (char **m = spec->lists[PL_SPEC_METRIC]; m && *m && r == 0; m++) {
        size_t len = strcspn(*m, "=");
        _cleanup_free_ char *name = strndup(*m, len);

        r = name ? pl_strv_append(&spec->metric_names, name) : -ENOMEM;
        if (r == 0)
            r = pl_strv_append(&spec->metric_regexes, *m + len + 1);
    }
    return r;
}

/* A program other than pltrain reports its objective by itself only if it knows Plume. */
static int warn_objective(struct pl_spec *spec)
{
    const char *objective = spec->values[PL_SPEC_OBJECTIVE].text;
    _cleanup_free_ char *name =
        objective ? strndup(objective + 4, strcspn(objective + 4, "@")) : NULL;

    if (!name || spec->bundled || pl_hparams_is_pltrain(spec->argv[0]))
        return 0;
    for (char **metric = spec->metric_names; metric && *metric; metric++)
        if (strcmp(*metric, name) == 0)
            return 0;
    return pl_spec_warn(spec,
                        "no --metric reads the objective '%s': add --metric '%s=REGEX', unless the "
                        "program reports it by itself",
                        name, name);
}

static bool requeues_hangs(const struct pl_spec *spec)
{
    const char *on_hang = spec->values[PL_SPEC_ON_HANG].text;

    return on_hang && strcmp(on_hang, "requeue") == 0;
}

static int check_requeue(const struct pl_spec *spec, struct pl_error *err)
{
    if (!spec->values[PL_SPEC_REQUEUE_ON].text && !requeues_hangs(spec) &&
        spec->values[PL_SPEC_MAX_REQUEUES].text)
        return pl_error_set(err, -EINVAL, "option '--max-requeues' needs '--requeue-on CAUSE'");
    for (char **item = spec->lists[PL_SPEC_SBATCH]; item && *item; item++)
        if (spec->values[PL_SPEC_REQUEUE_ON].text && strcmp(*item, "no-requeue") == 0)
            return pl_error_set(err, -EINVAL,
                                "--sbatch no-requeue forbids what --requeue-on asks for: omit one");
        else if (requeues_hangs(spec) && strcmp(*item, "no-requeue") == 0)
            return pl_error_set(err, -EINVAL,
                                "--sbatch no-requeue forbids what --on-hang requeue asks for: omit "
                                "one");
    return 0;
}

static int check_output(const struct pl_spec *spec, struct pl_error *err)
{
    const char *ranks = spec->values[PL_SPEC_OUTPUT_RANKS].text;
    int r = ranks ? pl_output_ranks_check(ranks, pl_shape_of(spec).ranks, err) : 0;

    return r < 0 ? pl_error_wrap(err, r, "--output-ranks") : 0;
}

static int check_metrics(const struct pl_spec *spec, struct pl_error *err)
{
    for (char **a = spec->metric_names; a && *a; a++)
        for (char **b = a + 1; *b; b++)
            if (strcmp(*a, *b) == 0)
                return pl_error_set(err, -EINVAL, "--metric: '%s' is given twice", *a);
    return 0;
}

/* A default of the user's or the site's is for sweeps of any size. */
static int warn_max_fail(struct pl_spec *spec)
{
    const struct pl_spec_value *value = &spec->values[PL_SPEC_MAX_FAIL];
    unsigned n = pl_grid_n_trials(&spec->grid), most;

    if (n < 2 || value->origin < PL_ORIGIN_JOB_FILE ||
        pl_run_parse_max_fail(value->text, n, &most, NULL) < 0 || most < n)
        return 0;
    return pl_spec_warn(spec, "--max-fail %s: the sweep has %u trials, so that nothing stops it",
                        value->text, n);
}

int pl_spec_resolve(struct pl_spec *spec,
                    char *const *words,
                    const char *bin_dir,
                    struct pl_error *err)
{
    _cleanup_(pl_strv_freep) char **whole = NULL; /* the words with what options add */
    const char *objective;
    int r = pl_spec_make_trials(spec, err);

    if (r == 0)
        r = pl_container_check(spec, words[0], err);
    if (r == 0)
        r = pl_python_env_check(spec, err);
    if (r == 0)
        r = pl_start_words(spec, words, &whole, err);
    if (r == 0 && words[0])
        r = user_program(spec, whole, err);
    if (r < 0)
        return r;
    if (!words[0] && bundled_program(spec, bin_dir, whole) < 0)
        return pl_error_set(err, -ENOMEM, "out of memory");
    r = defaults(spec, words);
    if (r == 0)
        r = pl_start_shape(spec, spec->argv, err);
    if (r == 0)
        r = make_id_name(spec);
    if (r == 0)
        r = split_metrics(spec);
    if (r < 0)
        return r == -ENOMEM ? pl_error_nomem(err) : r;
    objective = spec->values[PL_SPEC_OBJECTIVE].text;
    if (objective) {
        spec->objective = strncmp(objective, "max:", 4) == 0 ? PL_OBJECTIVE_MAX : PL_OBJECTIVE_MIN;
        spec->objective_metric =
            strchr(objective, '@')
                ? pl_strf("%.*s" PL_RUN_BEST, (int)strcspn(objective + 4, "@"), objective + 4)
                : strdup(objective + 4);
        if (!spec->objective_metric)
            return pl_error_nomem(err);
    }
    r = check_requeue(spec, err);
    if (r == 0 && spec->values[PL_SPEC_MAIL].text && spec->values[PL_SPEC_MAIL_TYPE].text)
        r = pl_error_set(err, -EINVAL,
                         "--mail is of each trial, --mail-type of the array: omit one of them");
    if (r == 0)
        r = check_output(spec, err);
    if (r < 0)
        return r;
    if (warn_name(spec) < 0 || warn_objective(spec) < 0 || warn_max_fail(spec) < 0)
        return pl_error_set(err, -ENOMEM, "out of memory");
    return check_metrics(spec, err);
}

/* ---- sbatch's options ---- */

static int add_arg(char ***list, const char *name, const char *value)
{
    _cleanup_free_ char *arg = pl_strf("--%s=%s", name, value);

    return arg ? pl_strv_append(list, arg) : -ENOMEM;
}

/* Adds --output=RUN/slurm-%A_%a.out. A '%' in the folder's name is doubled. */
static int add_output(char ***list, const char *run_dir)
{
    _cleanup_(pl_buf_finish) struct pl_buf path = {0};
    int r = 0;

    for (const char *p = run_dir; *p && r == 0; p++)
        r = *p == '%' ? pl_buf_adds(&path, "%%") : pl_buf_addc(&path, *p);
    if (r == 0)
        r = pl_buf_adds(&path, "/slurm-%A_%a.out");
    return r == 0 ? add_arg(list, "output", pl_buf_str(&path)) : r;
}

int pl_spec_sbatch_args(const struct pl_spec *spec, const char *run_dir, char ***ret)
{
    _cleanup_(pl_strv_freep) char **list = calloc(1, sizeof(*list));
    int r = list ? 0 : -ENOMEM;

    for (int key = PL_SPEC_NAME; key <= PL_SPEC_SBATCH_LAST && r == 0; key++) {
        const struct pl_spec_value *value = &spec->values[key];

        if (key == PL_SPEC_OUTPUT && value->origin == PL_ORIGIN_NONE)
            r = add_output(&list, run_dir);
        else if (value->text)
            r = add_arg(&list, key == PL_SPEC_NAME ? "job-name" : pl_spec_option(key)->name,
                        value->text);
    }
    if (r == 0 && spec->values[PL_SPEC_MAIL].text) { /* else Slurm sends one mail per array */
        _cleanup_free_ char *types = pl_strf("%s,ARRAY_TASKS", spec->values[PL_SPEC_MAIL].text);

        r = types ? add_arg(&list, "mail-type", types) : -ENOMEM;
    }
    if (r == 0 && (spec->values[PL_SPEC_REQUEUE_ON].text || requeues_hangs(spec)))
        r = pl_strv_append(&list, "--requeue");
    for (char **item = spec->lists[PL_SPEC_SBATCH]; item && *item && r == 0; item++) {
        _cleanup_free_ char *arg = pl_strf("--%s", *item);

        r = arg ? pl_strv_append(&list, arg) : -ENOMEM;
    }
    if (r < 0)
        return r;
    *ret = PL_TAKE(list);
    return 0;
}

int pl_spec_env(const struct pl_spec *spec, char ***ret)
{
    static const struct {
        enum pl_spec_key key;
        const char *variable;
    } of_options[] = {
        {PL_SPEC_NCCL_DEBUG, "NCCL_DEBUG"},
        {PL_SPEC_NCCL_IFNAME, "NCCL_SOCKET_IFNAME"},
        {PL_SPEC_MASTER_PORT, "PLUME_MASTER_PORT_RANGE"},
        {PL_SPEC_OUTPUT_RANKS, "PLUME_OUTPUT_RANKS"},
    };
    _cleanup_(pl_strv_freep) char **list = calloc(1, sizeof(*list));
    int r = list ? 0 : -ENOMEM;

    for (size_t i = 0; i < PL_COUNT(of_options) && r == 0; i++) {
        const char *value = spec->values[of_options[i].key].text;
        _cleanup_free_ char *entry = NULL;

        if (!value)
            continue;
        entry = pl_strf("%s=%s", of_options[i].variable, value);
        r = entry ? pl_strv_append(&list, entry) : -ENOMEM;
    }
    for (char **item = spec->lists[PL_SPEC_ENV]; item && *item && r == 0; item++)
        r = strchr(*item, '=') ? pl_strv_append(&list, *item) : 0;
    if (r < 0)
        return r;
    *ret = PL_TAKE(list);
    return 0;
}

/* ---- JSON and text ---- */

static json_t *with_origin(json_t *value, enum pl_origin origin)
{
    return json_pack("{soss}", "value", value, "origin", pl_origin_name(origin));
}

/* The values with their origin: one for all, or where they differ one for each. */
static json_t *with_origins(json_t *values, json_t *origins)
{
    json_t *first = json_array_get(origins, 0);

    for (size_t i = 1; i < json_array_size(origins); i++)
        if (!json_equal(first, json_array_get(origins, i)))
            return json_pack("{soso}", "value", values, "origin", origins);
    first = json_pack("{sosO}", "value", values, "origin", first);
    json_decref(origins);
    return first;
}

static int add_item(json_t *values, json_t *origins, const char *value, enum pl_origin origin)
{
    if (json_array_append_new(values, json_string(value)) < 0)
        return -1;
    return json_array_append_new(origins, json_string(pl_origin_name(origin)));
}

static json_t *list_json(const struct pl_spec *spec, enum pl_spec_list list)
{
    _cleanup_(json_decrefp) json_t *values = json_array(), *origins = json_array();

    for (size_t i = 0; spec->lists[list][i]; i++)
        if (add_item(values, origins, spec->lists[list][i], pl_spec_item_origin(spec, list, i)) < 0)
            return NULL;
    return with_origins(PL_TAKE(values), PL_TAKE(origins));
}

static json_t *grid_json(const struct pl_grid *grid)
{
    _cleanup_(json_decrefp) json_t *values = json_array(), *origins = json_array();

    for (size_t i = 0; i < grid->n_axes; i++) {
        _cleanup_(pl_buf_finish) struct pl_buf text = {0};
        enum pl_origin origin = (enum pl_origin)grid->axes[i].tag;

        if (pl_grid_format(&grid->axes[i], &text) < 0 ||
            add_item(values, origins, pl_buf_str(&text),
                     origin == PL_ORIGIN_NONE ? PL_ORIGIN_COMMAND_LINE : origin) < 0)
            return NULL;
    }
    return with_origins(PL_TAKE(values), PL_TAKE(origins));
}

json_t *pl_spec_json(const struct pl_spec *spec)
{
    _cleanup_(json_decrefp) json_t *o = json_object();
    int r = o ? 0 : -1;

    for (int key = 0; key < PL_SPEC_N_KEYS && r == 0; key++) {
        const struct pl_spec_value *value = &spec->values[key];

        if (value->origin != PL_ORIGIN_NONE)
            r = json_object_set_new(
                o, pl_spec_option(key)->name,
                with_origin(value->text ? json_string(value->text) : json_null(), value->origin));
    }
    for (int list = 0; list < PL_SPEC_N_LISTS && r == 0; list++)
        if (spec->lists[list])
            r = json_object_set_new(o, pl_spec_list_name(list), list_json(spec, list));
    if (spec->grid.n_axes && r == 0)
        r = json_object_set_new(o, "grid", grid_json(&spec->grid));
    if (spec->job_file && r == 0)
        r = json_object_set_new(o, "job-file",
                                with_origin(json_string(spec->job_file), PL_ORIGIN_COMMAND_LINE));
    return r == 0 ? PL_TAKE(o) : NULL;
}

static int show_line(struct pl_buf *out, const char *name, const char *value, const char *origin)
{
    int r = pl_term_cell(out, name, 16, false, false);

    if (r == 0)
        r = pl_buf_addf(out, "  %-12s  ", origin);
    if (r == 0)
        r = pl_term_escape(out, value, strlen(value));
    return r == 0 ? pl_buf_addc(out, '\n') : r;
}

/* "ORIGIN\tNAME\tVALUE" */
static int show_note(struct pl_buf *out, const char *line)
{
    _cleanup_free_ char *copy = strdup(line);
    char *name, *value;

    if (!copy)
        return -ENOMEM;
    name = strchr(copy, '\t');
    *name++ = '\0';
    value = strchr(name, '\t');
    *value++ = '\0';
    return show_line(out, name, value, copy);
}

int pl_spec_show(const struct pl_spec *spec, FILE *out)
{
    _cleanup_(pl_buf_finish) struct pl_buf text = {0};
    _cleanup_(json_decrefp) json_t *o = pl_spec_json(spec);
    const char *name;
    json_t *entry;
    int r = o ? 0 : -ENOMEM;

    json_object_foreach (o, name, entry) {
        const json_t *value = json_object_get(entry, "value");
        const json_t *origins = json_object_get(entry, "origin");
        const char *origin = json_string_value(origins);

        for (size_t i = 0; i < json_array_size(value) && r == 0; i++)
            r = show_line(&text, name, json_string_value(json_array_get(value, i)),
                          origin ? origin : json_string_value(json_array_get(origins, i)));
        if (!json_is_array(value) && r == 0)
            r = show_line(&text, name, json_is_null(value) ? "(removed)" : json_string_value(value),
                          origin);
    }
    for (char **line = spec->file_notes; line && *line && r == 0; line++)
        r = show_note(&text, *line);
    for (char **line = spec->sbatch_env; line && *line && r == 0; line++) {
        size_t len = strcspn(*line, "=");
        _cleanup_free_ char *key = strndup(*line, len);

        r = key ? show_line(&text, key, *line + len + 1, pl_origin_name(PL_ORIGIN_ENVIRONMENT))
                : -ENOMEM;
    }
    if (r < 0)
        return r;
    return fwrite(pl_buf_str(&text), 1, text.len, out) == text.len ? 0 : -EIO;
}
