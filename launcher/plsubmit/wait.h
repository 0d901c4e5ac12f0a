/* SPDX-License-Identifier: MIT */
/* plsubmit --wait: waits until every trial of a run has ended. It watches the run folder, and asks
 * Slurm at most once in PL_WAIT_QUEUE_S seconds for jobs that ended without a result. */
#ifndef PL_LAUNCHER_PLSUBMIT_WAIT_H
#define PL_LAUNCHER_PLSUBMIT_WAIT_H

#include "common/run/run_folder.h"

#define PL_WAIT_QUEUE_S 5

struct pl_wait_result {
    unsigned done;  /* trials in state done */
    unsigned other; /* trials in another final state, or lost */
};

/* Returns 0, -ENOMEM or -errno of the run folder. */
int pl_wait_run(const struct pl_run *run, struct pl_wait_result *ret, struct pl_error *err);

#endif
