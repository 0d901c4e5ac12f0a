/* SPDX-License-Identifier: MIT */
/* --update SWEEP --max-parallel K: another number of trials at a time, also while they run. */
#ifndef PL_LAUNCHER_PLSUBMIT_UPDATE_H
#define PL_LAUNCHER_PLSUBMIT_UPDATE_H

#include "common/run/run_folder.h"

/* Records K for later arrays of the sweep, and sets it for those that Slurm has.
 * ret  their numbers; the caller frees with pl_strv_free()
 * Returns 0, -EREMOTEIO (Slurm refused; err has its text), -ENOMEM, ... */
int pl_update_parallel(struct pl_run *run, const char *k, char ***ret, struct pl_error *err);

#endif
