/* SPDX-License-Identifier: MIT */
/* Turns a resolved spec into a run folder: chooses names, writes the script, shows a dry run. */
#ifndef PL_LAUNCHER_PLSUBMIT_LAUNCH_H
#define PL_LAUNCHER_PLSUBMIT_LAUNCH_H

#include "launcher/plsubmit/snapshot.h"
#include "launcher/plsubmit/spec.h"

struct pl_launch {
    const struct pl_spec *spec;         /* borrowed */
    const struct pl_snapshot *snapshot; /* borrowed */
    const char *bin_dir;                /* borrowed; absolute */
    char *sweep;                        /* NAME-xxxxxx */
    char *folder;                       /* RUNS/SWEEP, relative if --runs is */
    char *dir;                          /* the same, absolute */
    char *array;                        /* indices of one array with all trials */
    char *shape;                        /* "2 nodes x 4 ranks x 1 GPU" */
    char *work_dir;                     /* of the trials; NULL without --snapshot */
    char **sbatch_args, **env;
};

void pl_launch_finish(struct pl_launch *launch);

/* Chooses the sweep's id and derives the other fields. Writes nothing.
 * -EINVAL (the script or --output cannot contain the path), -ENOMEM, errors of getcwd(3). */
int pl_launch_init(struct pl_launch *launch,
                   const struct pl_spec *spec,
                   const struct pl_snapshot *snapshot,
                   const char *bin_dir,
                   struct pl_error *err);

/* Creates the run folder with all its files. Errors as pl_run_create(). */
int pl_launch_create(struct pl_launch *launch, struct pl_run **ret, struct pl_error *err);

/* --expand: prints the lines that trials.jsonl would have. -ENOMEM, -EIO. */
int pl_launch_expand(const struct pl_spec *spec, FILE *out, struct pl_error *err);

/* --dry-run: shows the script, the sbatch command and the table of trials. */
int pl_launch_show(const struct pl_launch *launch, FILE *out, struct pl_error *err);

/* The limit of parallel trials; 0: no limit. */
unsigned pl_launch_max_parallel(const struct pl_spec *spec);

#endif
