/* SPDX-License-Identifier: MIT */
/* --update SWEEP: another number of trials at a time, also while they run; other limits for those
 * that wait. */
#ifndef PL_LAUNCHER_PLSUBMIT_UPDATE_H
#define PL_LAUNCHER_PLSUBMIT_UPDATE_H

#include "common/run/run_folder.h"
#include "launcher/plsubmit/spec.h"

/* Records K for later arrays of the sweep, and sets it for those that Slurm has.
 * ret  their numbers; the caller frees with pl_strv_free()
 * Returns 0, -EREMOTEIO (Slurm refused; err has its text), -ENOMEM, ... */
int pl_update_parallel(struct pl_run *run, const char *k, char ***ret, struct pl_error *err);

/* --time, --partition and --mem: sets them for waiting trials, and records them for later arrays.
 * jobs  of the trials that wait, "123_[0-3]" each
 * Returns as above; where Slurm refuses, nothing is recorded. */
int pl_update_limits(struct pl_run *run,
                     const struct pl_spec *spec,
                     char *const *jobs,
                     struct pl_error *err);

/* True if there is one of these options. */
bool pl_update_has_limits(const struct pl_spec *spec);

#endif
