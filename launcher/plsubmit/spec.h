/* SPDX-License-Identifier: MIT */
/* What plsubmit was asked to do: every option with its value and where that came from. Precedence:
 * built-in < environment < command line. */
#ifndef PL_LAUNCHER_PLSUBMIT_SPEC_H
#define PL_LAUNCHER_PLSUBMIT_SPEC_H

#include "common/base/options.h"
#include "common/run/run_folder.h"
#include "launcher/plsubmit/grid.h"

enum pl_origin {
    PL_ORIGIN_NONE, /* not set */
    PL_ORIGIN_BUILTIN,
    PL_ORIGIN_ENVIRONMENT,
    PL_ORIGIN_COMMAND_LINE,
};

/* "built-in", "environment", "command line". */
const char *pl_origin_name(enum pl_origin origin);

/* Options with one value; the order is that of sbatch's arguments and of --show-config. */
enum pl_spec_key {
    PL_SPEC_NAME,
    PL_SPEC_NODES,
    PL_SPEC_GPUS_PER_NODE,
    PL_SPEC_NTASKS_PER_NODE,
    PL_SPEC_CPUS_PER_TASK,
    PL_SPEC_MEM,
    PL_SPEC_TIME,
    PL_SPEC_PARTITION,
    PL_SPEC_ACCOUNT,
    PL_SPEC_QOS,
    PL_SPEC_CONSTRAINT,
    PL_SPEC_NODELIST,
    PL_SPEC_EXCLUDE,
    PL_SPEC_OUTPUT,
    PL_SPEC_OPEN_MODE,
    PL_SPEC_MAX_PARALLEL,
    PL_SPEC_NCCL_DEBUG,
    PL_SPEC_NCCL_IFNAME,
    PL_SPEC_MASTER_PORT,
    PL_SPEC_OBJECTIVE,
    PL_SPEC_RUNS,
    PL_SPEC_N_KEYS,
};

/* Options that may be given several times. */
enum pl_spec_list {
    PL_SPEC_LOAD,
    PL_SPEC_SETUP,
    PL_SPEC_ENV,
    PL_SPEC_METRIC,
    PL_SPEC_SBATCH,
    PL_SPEC_N_LISTS,
};

struct pl_spec_value {
    char *text; /* NULL: not set, or removed by --no-KEY where origin is the command line */
    enum pl_origin origin;
};

struct pl_spec {
    struct pl_spec_value values[PL_SPEC_N_KEYS];
    char **lists[PL_SPEC_N_LISTS]; /* each NULL, or strings and NULL behind the last */
    struct pl_grid grid;
    bool dry_run, parsable, wait, show_config;
    char *resume; /* --resume DIR */

    /* Set by pl_spec_resolve(): */
    char **argv;         /* the program; NULL behind the last */
    bool bundled;        /* the program is ours: none was named */
    char *program;       /* its name, where the set-up chooses the file; else NULL */
    char *id_name;       /* the name as it may stand in a path */
    char **metric_names; /* of --metric, with metric_regexes in step */
    char **metric_regexes;
    enum pl_objective objective;
    const char *objective_metric; /* into values */
    char *warning;                /* to be shown; NULL: none */
};

void pl_spec_finish(struct pl_spec *spec);

/* plsubmit's command line, for pl_options_parse() with a struct pl_spec. The parser checks the form
 * of each value. */
extern const struct pl_command pl_spec_command;

/* True where anything was given that says what to submit. */
bool pl_spec_has_options(const struct pl_spec *spec);

/* Sets what was not given, from the environment and built-in values, and checks what depends on
 * more than one option. Nothing is written anywhere.
 * words    the program and its arguments, NULL behind the last; none: the bundled mlp
 * bin_dir  folder of plsubmit, where pltrain lies
 * Returns 0 or -EINVAL, -ENOENT (no such program): all of them are errors of usage; -ENOMEM. */
int pl_spec_resolve(struct pl_spec *spec,
                    char *const *words,
                    const char *bin_dir,
                    struct pl_error *err);

/* The program's file for argv[0], as execvp(3) would find it, made independent of PATH where PATH
 * decides (a login shell resets it); a name with '/' stays as it is. lenient: a program that is not
 * there is a warning, since the set-up may bring it.
 * *ret and *ret_warning (NULL where there is none) are freed by the caller. -ENOENT, -ENOMEM. */
int pl_spec_find_program(
    const char *name, bool lenient, char **ret, char **ret_warning, struct pl_error *err);

/* sbatch's options of a run in run_dir, but for --array; *ret ends in NULL, freed with
 * pl_strv_free(). -ENOMEM. */
int pl_spec_sbatch_args(const struct pl_spec *spec, const char *run_dir, char ***ret);

/* "NAME=VALUE" of all variables that the script exports; as above. */
int pl_spec_env(const struct pl_spec *spec, char ***ret);

/* All options as an object {"nodes":{"value":"12","origin":"command line"},...}: a new reference,
 * NULL when out of memory. */
json_t *pl_spec_json(const struct pl_spec *spec);

/* --show-config: a line for each value with its origin. */
int pl_spec_show(const struct pl_spec *spec, FILE *out);

#endif
