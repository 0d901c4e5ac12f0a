/* SPDX-License-Identifier: MIT */
/* A trial's first and last act, called by the job script: claiming it, and making sure that it has
 * a result. All read PLUME_RUN_DIR, PLUME_TRIAL, PLUME_ATTEMPT and Slurm's variables. */
#ifndef PL_RUNTIME_PLRUN_TRIAL_H
#define PL_RUNTIME_PLRUN_TRIAL_H

#include "common/base/error.h"
#include "common/run/run_folder.h"

/* Makes RUN/trial-NNNN/attempt-K with a file `claim` that names this array and job; K counts the
 * attempts of the same array (requeues). The folder appears with its claim in it, by rename, so
 * that of two arrays of one submission exactly one wins. Returns 0 with *ret_attempt, or -EEXIST
 * where another array has the trial. */
int pl_trial_claim(unsigned *ret_attempt, struct pl_error *err);

/* Why this attempt starts: "first", "retry", or the end of the attempt before: "preempt",
 * "timeout", "node-fail", "error". Static. */
int pl_trial_reason(const char **ret, struct pl_error *err);

/* Sees to result.json at the script's end, whose code so far is `code`: where the hub wrote none,
 * it is made from what there is (set-up failed, the step never came up, the hub was lost).
 * *ret_code is what the script is to exit with. */
int pl_trial_finish(int code, int *ret_code, struct pl_error *err);

/* The file of the trial's program after the job script's set-up: `name` (without '/') by PATH, else
 * the one that plsubmit found, with a warning. The caller frees *ret. */
int pl_trial_find_program(const char *name, char **ret, struct pl_error *err);

/* The trial's program with its values; PLUME_PARAM_NAME and PLUME_PARAMS are set in our
 * environment. *ret is freed with pl_strv_free(). */
int pl_trial_program(char ***ret, struct pl_error *err);

#endif
