/* SPDX-License-Identifier: MIT */
/* --on-hang: what happens once a rank is found that holds the others up. */
#ifndef PL_COMMON_RUN_ON_HANG_H
#define PL_COMMON_RUN_ON_HANG_H

#include "common/base/error.h"
#include "common/run/run_folder.h"

#define PL_ON_HANG_REQUEUES 3 /* of a trial, unless --requeue-on has the cause hang */

enum pl_on_hang {
    PL_ON_HANG_WARN,
    PL_ON_HANG_KILL,    /* end the ranks; the cause is a hang */
    PL_ON_HANG_REQUEUE, /* the same, and the trial starts again */
};

/* "warn", "kill" or "requeue". -EINVAL. */
int pl_on_hang_parse(const char *text, enum pl_on_hang *ret, struct pl_error *err);

/* The same for a step, which is no trial: nothing can start it again. */
int pl_on_hang_parse_step(const char *text, enum pl_on_hang *ret, struct pl_error *err);

/* That of a run: PLUME_ON_HANG, else the run's option, else warn. -EINVAL: the variable's value. */
int pl_on_hang_of_run(const struct pl_run *run, enum pl_on_hang *ret, struct pl_error *err);

#endif
