/* SPDX-License-Identifier: MIT */
/* plsubmit --wait: waits until every trial of a run has ended. It watches the run folder, and asks
 * Slurm at most once in PL_WAIT_QUEUE_S seconds for jobs that ended without a result. */
#ifndef PL_LAUNCHER_PLSUBMIT_WAIT_H
#define PL_LAUNCHER_PLSUBMIT_WAIT_H

#include "common/base/buf.h"
#include "common/run/run_folder.h"

#define PL_WAIT_QUEUE_S 5

struct pl_wait_result {
    unsigned done;  /* trials in state done */
    unsigned other; /* trials in another final state, or lost */
};

/* Appends "no trial reported acc; reported: fin" if trials are done and none of the results has the
 * objective, else nothing. -ENOMEM. */
int pl_wait_missing(const struct pl_run *run, struct pl_buf *out);

/* Called about once a second while trials are left; `running` of them have begun. */
typedef void (*pl_wait_f)(void *ctx, const struct pl_wait_result *so_far, unsigned running);

/* progress  may be NULL
 * Returns 0, -ENOMEM or -errno of the run folder. */
int pl_wait_run(const struct pl_run *run,
                pl_wait_f progress,
                void *ctx,
                struct pl_wait_result *ret,
                struct pl_error *err);

#endif
