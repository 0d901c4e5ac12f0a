/* SPDX-License-Identifier: MIT */
/* Shared by trial.c and trial_finish.c. */
#ifndef PL_RUNTIME_PLRUN_TRIAL_PRIVATE_H
#define PL_RUNTIME_PLRUN_TRIAL_PRIVATE_H

#include "common/base/env.h"
#include "runtime/plrun/trial.h"

#define PL_TRIAL_CLAIM_MAX 4096

/* Reads a number of 0 or more from the environment. Without it: `fallback`, or -ENOENT if that is
 * negative. -EINVAL, -ERANGE for a bad one. */
int pl_trial_env_number(enum pl_env_id id, int64_t fallback, unsigned *ret, struct pl_error *err);

/* Opens PLUME_RUN_DIR, the caller's own, and reads PLUME_TRIAL. The caller closes *ret with
 * pl_run_close(), also after an error. */
int pl_trial_open_run(struct pl_run **ret, unsigned *ret_trial, struct pl_error *err);

#endif
