/* SPDX-License-Identifier: MIT */
/* The batch script of a run, from templates/job.sh.in. Values are quoted, so that the shell never
 * interprets them; only the commands of --setup, --teardown and --save-command are
 * shell text. */
#ifndef PL_LAUNCHER_PLSUBMIT_SCRIPT_H
#define PL_LAUNCHER_PLSUBMIT_SCRIPT_H

#include "common/base/buf.h"
#include "common/base/error.h"

#include <stdbool.h>

struct pl_script {
    const char *sweep;
    const char *run_dir, *bin_dir;  /* absolute */
    const char *array;              /* "0-8%2": indices of the first array */
    const char *const *sbatch_args; /* "--nodes=2", ...; NULL-terminated */
    const char *const *comments;    /* --sbatch-comment: "KEY=TEXT" */
    const char *const *modules;     /* --load; each list is NULL-terminated or NULL */
    const char *python_env;         /* the command of --venv or --conda; NULL: none */
    const char *const *env;         /* "NAME=VALUE" */
    const char *const *kept;        /* --env: "NAME" has its value from the submission; others are
                                       skipped */
    const char *const *env_files;   /* --env-file: absolute paths */
    const char *const *setup;       /* --setup: lines of shell text from the user */
    const char *const *teardown;    /* --teardown */
    const char *requeue_on;         /* --requeue-on; NULL: none */
    const char *save_command;       /* --save-command; NULL: none */
    const char *save_grace;         /* --save-grace, seconds; NULL: the default */
    const char *const *srun;        /* --srun: "mpi=pmix", ... */
    const char *container;          /* --container; NULL: none */
    const char *container_runtime;  /* its file here; NULL: none */
    const char *const *container_options; /* --container-option: "bind=/data", ... */
    bool pmix;                            /* srun --mpi=pmix */
    unsigned torchrun;      /* processes that torchrun starts on a node; 0: no torchrun */
    unsigned local;         /* --local: the number of ranks; 0: Slurm starts them */
    unsigned local_nodes;   /* and of nodes */
    const char *submit_dir; /* with --snapshot: where plsubmit ran; else NULL */
    const char *work_dir;   /* the folder in the snapshot where the set-up begins */
    const char *program;    /* name to look up after the set-up; NULL: none */
};

/* Appends s in single quotes, so that bash reads it back byte for byte. -EINVAL (s has a newline,
 * which a value in the script must not have), -ENOMEM. */
int pl_script_quote(struct pl_buf *out, const char *s);

/* True if a #SBATCH line and a shell read this option without quotes. */
bool pl_script_directive_ok(const char *arg);

/* Appends the whole script. -EINVAL (a newline in a value), -ENOMEM. */
int pl_script_render(const struct pl_script *script, struct pl_buf *out, struct pl_error *err);

#endif
