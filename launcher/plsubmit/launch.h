/* SPDX-License-Identifier: MIT */
/* From a resolved spec to a run folder: names, script, and the dry run that shows them. */
#ifndef PL_LAUNCHER_PLSUBMIT_LAUNCH_H
#define PL_LAUNCHER_PLSUBMIT_LAUNCH_H

#include "launcher/plsubmit/spec.h"

struct pl_launch {
    const struct pl_spec *spec; /* borrowed */
    const char *bin_dir;        /* borrowed; absolute */
    char *sweep;                /* NAME-xxxxxx */
    char *folder;               /* RUNS/SWEEP as a person would write it */
    char *dir;                  /* the same, absolute */
    char *array;                /* of the first array, were there no limit */
    char **sbatch_args, **env;
};

void pl_launch_finish(struct pl_launch *launch);

/* Chooses the sweep's id and derives the rest. Writes nothing.
 * -EINVAL (a path that cannot stand in a script or in --output), -ENOMEM, errors of getcwd(3). */
int pl_launch_init(struct pl_launch *launch,
                   const struct pl_spec *spec,
                   const char *bin_dir,
                   struct pl_error *err);

/* Makes the run folder with everything in it. Errors as pl_run_create(). */
int pl_launch_create(struct pl_launch *launch, struct pl_run **ret, struct pl_error *err);

/* --dry-run: the script, sbatch's command and the table of trials. */
int pl_launch_show(const struct pl_launch *launch, FILE *out, struct pl_error *err);

/* The limit of parallel trials; 0 none. */
unsigned pl_launch_max_parallel(const struct pl_spec *spec);

#endif
