/* SPDX-License-Identifier: MIT */
/* Sets defaults and checks options together. */
#include "common/base/env.h"
#include "common/base/fs.h"
#include "common/base/parse.h"
#include "common/base/utf8.h"
#include "common/run/output_ranks.h"
#include "common/run/run_stop.h"
#include "launcher/plsubmit/axes.h"
#include "launcher/plsubmit/container.h"
#include "launcher/plsubmit/hints.h"
#include "launcher/plsubmit/hparams.h"
#include "launcher/plsubmit/python_env.h"
#include "launcher/plsubmit/sample.h"
#include "launcher/plsubmit/shape.h"
#include "launcher/plsubmit/spec_private.h"
#include "launcher/plsubmit/start.h"
#include "launcher/plsubmit/where.h"

#include <string.h>

#define ID_NAME_MAX 64

bool pl_spec_has_options(const struct pl_spec *spec)
{
    bool but_trials = spec->change == PL_CHANGE_EXTEND;

    for (size_t i = 0; i < PL_SPEC_N_KEYS; i++) {
        bool trials =
            i == PL_SPEC_RANDOM || i == PL_SPEC_SEED || i == PL_SPEC_TRIALS || i == PL_SPEC_REPEAT;
        bool update = spec->change == PL_CHANGE_UPDATE &&
                      (i == PL_SPEC_MAX_PARALLEL || i == PL_SPEC_TIME || i == PL_SPEC_PARTITION ||
                       i == PL_SPEC_MEM || i == PL_SPEC_MEM_PER_CPU);

        if (spec->values[i].origin != PL_ORIGIN_NONE && !(trials && but_trials) && !update)
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
            return pl_error_set(
                err, -EINVAL,
                "options '--repeat' and '--grid' both make an axis 'seed': omit one "
                "of them");
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

bool pl_spec_sets_path(const struct pl_spec *spec)
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
    int r =
        pl_axes_check(&spec->grid, (const char *const *)spec->argv, spec->lists[PL_SPEC_LITERAL],
                      pl_hparams_is_pltrain(program), spec->own_words, &unused, &wrong, err);

    if (r == 0 && unused &&
        pl_spec_warn(spec,
                     "no argument uses axis '%s': write {%s}, unless the "
                     "program reads PLUME_PARAM_%s",
                     unused, unused, unused) < 0)
        r = pl_error_nomem(err);
    if (r == 0 && wrong &&
        pl_spec_warn(spec,
                     strchr(wrong, '{')
                         ? "no axis replaces '%.200s', so the program gets this text: "
                           "--grid NAME=V1,V2 makes an axis, --literal NAME says that none is meant"
                         : "'%.200s' after the program's name is an argument of the program: write "
                           "plsubmit's options before it, or -- before the program",
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

/* Adds to the error of a program that is not in PATH that a module has this name. */
static void hint_module(const char *name, const char *bin_dir, struct pl_error *err)
{
    _cleanup_free_ char *pltrain = pl_path_join(bin_dir, "pltrain");

    if (pltrain && *name && !strchr(name, '/') && pl_hparams_is_module(name, pltrain))
        pl_error_set(err, -ENOENT,
                     "program '%s' is not in PATH: for the module '%s' write pltrain %s", name,
                     name, name);
}

static int
user_program(struct pl_spec *spec, char *const *words, const char *bin_dir, struct pl_error *err)
{
    bool later = pl_spec_sets_path(spec);
    bool elsewhere =
        words[0][0] != '/' && strchr(words[0], '/') && pl_spec_of_sbatch(spec, "chdir");
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
        r = pl_spec_find_program(words[0], later || elsewhere, &program, &warning, err);
    if (r == -ENOENT)
        hint_module(words[0], bin_dir, err);
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

static int defaults(struct pl_spec *spec, char *const *words, struct pl_error *err)
{
    const char *runs = pl_env(PL_ENV_PLUME_RUNS);
    int r = pl_spec_read_env(spec, runs, environ, err);

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

bool pl_spec_requeues_hangs(const struct pl_spec *spec)
{
    const char *on_hang = spec->values[PL_SPEC_ON_HANG].text;

    return on_hang && strcmp(on_hang, "requeue") == 0;
}

static int check_requeue(const struct pl_spec *spec, struct pl_error *err)
{
    if (!spec->values[PL_SPEC_REQUEUE_ON].text && !pl_spec_requeues_hangs(spec) &&
        spec->values[PL_SPEC_MAX_REQUEUES].text)
        return pl_error_set(err, -EINVAL, "option '--max-requeues' needs '--requeue-on CAUSE'");
    for (char **item = spec->lists[PL_SPEC_SBATCH]; item && *item; item++)
        if (spec->values[PL_SPEC_REQUEUE_ON].text && strcmp(*item, "no-requeue") == 0)
            return pl_error_set(err, -EINVAL,
                                "--sbatch no-requeue forbids what --requeue-on asks for: omit one");
        else if (pl_spec_requeues_hangs(spec) && strcmp(*item, "no-requeue") == 0)
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
    return pl_spec_warn(spec, "--max-fail %s never stops this sweep, which has only %u trials",
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
        r = user_program(spec, whole, bin_dir, err);
    if (r < 0)
        return r;
    if (!words[0] && bundled_program(spec, bin_dir, whole) < 0)
        return pl_error_set(err, -ENOMEM, "out of memory");
    r = defaults(spec, words, err);
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
        r = pl_error_set(
            err, -EINVAL,
            "--mail sends mails about each trial, --mail-type about the array: omit one of them");
    if (r == 0)
        r = check_output(spec, err);
    if (r < 0)
        return r;
    if (warn_name(spec) < 0 || warn_objective(spec) < 0 || warn_max_fail(spec) < 0)
        return pl_error_set(err, -ENOMEM, "out of memory");
    r = check_metrics(spec, err);
    return r == 0 ? pl_hints_add(spec, err) : r;
}
