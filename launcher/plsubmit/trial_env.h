/* SPDX-License-Identifier: MIT */
/* Variables and set-up commands of a trial, checked before anything is submitted. --env NAME goes
 * to Slurm with the submission and stands in no file of ours. */
#ifndef PL_LAUNCHER_PLSUBMIT_TRIAL_ENV_H
#define PL_LAUNCHER_PLSUBMIT_TRIAL_ENV_H

#include "launcher/plsubmit/spec.h"

/* The variable that takes the value of --env NAME to the job. */
#define PL_TRIAL_ENV_PREFIX "_PLUME_"

/* Checks --env, --env-file and --setup together with --sbatch export; makes the paths of --env-file
 * absolute; warns of a value that looks like a secret. -EINVAL, -EPERM, -ENOMEM. */
int pl_trial_env_check(struct pl_spec *spec, struct pl_error *err);

/* Adds the present value of each --env NAME of a run to the environment of sbatch. -EINVAL: such a
 * variable is not set; -ENOMEM. */
int pl_trial_env_add(const struct pl_run *run, char ***env, struct pl_error *err);

#endif
