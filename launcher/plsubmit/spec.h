/* SPDX-License-Identifier: MIT */
/* plsubmit's options: the value of each and its origin. Precedence: built-in < site file < user
 * file < job file < environment < command line. */
#ifndef PL_LAUNCHER_PLSUBMIT_SPEC_H
#define PL_LAUNCHER_PLSUBMIT_SPEC_H

#include "common/base/options.h"
#include "common/run/run_folder.h"
#include "launcher/plsubmit/grid.h"

enum pl_origin {
    PL_ORIGIN_NONE, /* not set */
    PL_ORIGIN_BUILTIN,
    PL_ORIGIN_SITE_FILE,
    PL_ORIGIN_USER_FILE,
    PL_ORIGIN_JOB_FILE,
    PL_ORIGIN_ENVIRONMENT,
    PL_ORIGIN_COMMAND_LINE,
    PL_ORIGIN_COUNT,
};

/* "built-in", "job file", "command line", ... */
const char *pl_origin_name(enum pl_origin origin);

/* Options with one value, in the order of --show-config. Those up to PL_SPEC_SBATCH_LAST become
 * arguments of sbatch, with the option's own name; a new one of that kind goes before it. */
enum pl_spec_key {
    PL_SPEC_NAME,
    PL_SPEC_NODES,
    PL_SPEC_NTASKS,
    PL_SPEC_NTASKS_PER_NODE,
    PL_SPEC_GPUS,
    PL_SPEC_GPUS_PER_NODE,
    PL_SPEC_GPUS_PER_TASK,
    PL_SPEC_GRES,
    PL_SPEC_CPUS_PER_TASK,
    PL_SPEC_CPUS_PER_GPU,
    PL_SPEC_MEM,
    PL_SPEC_MEM_PER_CPU,
    PL_SPEC_MEM_PER_GPU,
    PL_SPEC_TIME,
    PL_SPEC_PARTITION,
    PL_SPEC_ACCOUNT,
    PL_SPEC_QOS,
    PL_SPEC_CONSTRAINT,
    PL_SPEC_NODELIST,
    PL_SPEC_EXCLUDE,
    PL_SPEC_DEPENDENCY,
    PL_SPEC_MAIL_TYPE,
    PL_SPEC_MAIL_USER,
    PL_SPEC_COMMENT,
    PL_SPEC_SIGNAL,
    PL_SPEC_OUTPUT,
    PL_SPEC_OPEN_MODE,
    PL_SPEC_SBATCH_LAST = PL_SPEC_OPEN_MODE,
    /* For Plume alone. */
    PL_SPEC_RANDOM,
    PL_SPEC_SEED,
    PL_SPEC_TRIALS,
    PL_SPEC_REPEAT,
    PL_SPEC_MAX_PARALLEL,
    PL_SPEC_MAX_FAIL,
    PL_SPEC_REQUEUE_ON,
    PL_SPEC_MAX_REQUEUES,
    PL_SPEC_OUTPUT_RANKS,
    PL_SPEC_SAVE_COMMAND,
    PL_SPEC_SAVE_GRACE,
    PL_SPEC_ON_HANG,
    PL_SPEC_ON_END,
    PL_SPEC_NCCL_DEBUG,
    PL_SPEC_NCCL_IFNAME,
    PL_SPEC_MASTER_PORT,
    PL_SPEC_OBJECTIVE,
    PL_SPEC_LAUNCH,
    PL_SPEC_NUM_PROCESSES,
    PL_SPEC_STRATEGY,
    PL_SPEC_PRECISION,
    PL_SPEC_VENV,
    PL_SPEC_CONDA,
    PL_SPEC_CONTAINER,
    PL_SPEC_MAIL,
    PL_SPEC_SNAPSHOT,
    PL_SPEC_SNAPSHOT_MAX,
    PL_SPEC_LOCAL,
    PL_SPEC_RUNS,
    PL_SPEC_N_KEYS,
};

/* Repeatable options. */
enum pl_spec_list {
    PL_SPEC_ZIP,
    PL_SPEC_WHERE,
    PL_SPEC_SAMPLE,
    PL_SPEC_LITERAL,
    PL_SPEC_AFTER,
    PL_SPEC_LOAD,
    PL_SPEC_SETUP,
    PL_SPEC_TEARDOWN,
    PL_SPEC_ENV,
    PL_SPEC_ENV_FILE,
    PL_SPEC_METRIC,
    PL_SPEC_HPARAM,
    PL_SPEC_SBATCH,
    PL_SPEC_SBATCH_COMMENT, /* "KEY=TEXT" */
    PL_SPEC_SRUN,
    PL_SPEC_CONTAINER_OPTION,
    PL_SPEC_N_LISTS,
};

enum pl_start_kind {
    PL_START_RANKS,    /* a rank per GPU, with torchrun's variables */
    PL_START_TORCHRUN, /* a rank per node, which starts the node's processes */
    PL_START_MPI,      /* ranks by srun --mpi */
};

/* The words of --launch, by enum pl_start_kind; NULL ends them. */
extern const char *const pl_start_names[];

/* Changes of a submitted sweep. */
enum pl_change_kind {
    PL_CHANGE_NONE,
    PL_CHANGE_RESUME,
    PL_CHANGE_RETRY,
    PL_CHANGE_EXTEND,
    PL_CHANGE_CANCEL,
    PL_CHANGE_HOLD,
    PL_CHANGE_RELEASE,
    PL_CHANGE_UPDATE,
};

struct pl_spec_value {
    char *text; /* NULL: not set, or (of a file or the command line) removed by --no-KEY */
    enum pl_origin origin;
};

struct pl_spec {
    enum pl_origin source; /* of what the option table sets; NONE: the command line */
    struct pl_spec_value values[PL_SPEC_N_KEYS];
    char **lists[PL_SPEC_N_LISTS]; /* each NULL or NULL-terminated */
    /* The number of items that each file adds to a list. Items of files come first, in the order of
     * precedence. */
    size_t n_of_file[PL_SPEC_N_LISTS][PL_ORIGIN_COUNT];
    struct pl_grid grid;
    /* Of files: options without a value that are false there, so that no lower source sets them;
     * and those that a file of the site or user sets. */
    char **declined[PL_ORIGIN_COUNT];
    char **flags_of_defaults;
    char *last_sbatch; /* KEY of the last --sbatch; NULL: none yet */
    char *job_file;    /* of --job-file */
    char *write_job;   /* of --write-job */
    char **command;    /* the program of the job file; NULL: none */
    char **file_notes; /* for --show-config: values of files that a higher source replaces */
    bool own_words;    /* the program's words stand after "--", or in a job file */
    bool dry_run, check, expand, parsable, wait, no_submit, show_config, strict;
    enum pl_change_kind change;
    char *changed; /* its SWEEP[/TRIALS] */

    /* Set by pl_spec_resolve(): */
    char **argv;             /* the program and its arguments; NULL-terminated */
    bool bundled;            /* no program given: the bundled module trains */
    char *container_runtime; /* apptainer or singularity as found here; NULL: none */
    char *program;           /* its name if the set-up chooses the file; else NULL */
    char *id_name;           /* the name, with the characters of a path only */
    char **metric_names;     /* of --metric; metric_regexes has the same order */
    char **metric_regexes;
    enum pl_objective objective;
    char *objective_metric; /* NAME, or NAME.best */
    char **sbatch_env;      /* "NAME=VALUE": SBATCH_* without an option, or overridden */
    char **warnings;        /* for the user, in lines; NULL or NULL-terminated */
};

void pl_spec_finish(struct pl_spec *spec);

/* plsubmit's command line, for pl_options_parse() with a struct pl_spec. The parser checks the form
 * of each value. */
extern const struct pl_command pl_spec_command;

/* True if an option of the submission is set that the change of a sweep does not take: --extend
 * takes those that make trials, --update those that it can change. */
bool pl_spec_has_options(const struct pl_spec *spec);

/* Makes the grid of all options that make trials. -EINVAL, -E2BIG, -ENOMEM. */
int pl_spec_make_trials(struct pl_spec *spec, struct pl_error *err);

/* Sets options that are not given from the environment and from built-in values, and checks options
 * together. Writes no file.
 * words    the program and its arguments, NULL-terminated; none: the bundled mlp
 * bin_dir  folder of plsubmit, which also has pltrain
 * Returns 0, -EINVAL, -ENOENT (no such program): both are wrong usage; -ENOMEM. */
int pl_spec_resolve(struct pl_spec *spec,
                    char *const *words,
                    const char *bin_dir,
                    struct pl_error *err);

/* Finds the program's file for argv[0] as execvp(3) does. A name without '/' becomes an absolute
 * path, because a login shell resets PATH; a name with '/' stays as it is. lenient: a missing
 * program is a warning, because the set-up may provide it. The caller frees *ret and *ret_warning
 * (NULL: none). -ENOENT, -ENOMEM. */
int pl_spec_find_program(
    const char *name, bool lenient, char **ret, char **ret_warning, struct pl_error *err);

/* True if the set-up may change the file that a program's name stands for, or make it. */
bool pl_spec_sets_path(const struct pl_spec *spec);

/* Adds a warning for the user. -ENOMEM. */
int pl_spec_warn(struct pl_spec *spec, const char *fmt, ...) PL_PRINTF(2, 3);

/* The value of an option of sbatch in the list of --sbatch; NULL: it is not there. */
const char *pl_spec_of_sbatch(const struct pl_spec *spec, const char *key);

/* sbatch's options of a run in run_dir, without --array; free *ret with pl_strv_free(). -ENOMEM. */
int pl_spec_sbatch_args(const struct pl_spec *spec, const char *run_dir, char ***ret);

/* "NAME=VALUE" of all variables that the script exports; free *ret with pl_strv_free(). -ENOMEM. */
int pl_spec_env(const struct pl_spec *spec, char ***ret);

/* All options as an object {"nodes":{"value":"12","origin":"command line"},...}: a new reference,
 * NULL when out of memory. */
json_t *pl_spec_json(const struct pl_spec *spec);

/* --show-config: writes one line per value with its origin. */
int pl_spec_show(const struct pl_spec *spec, FILE *out);

#endif
