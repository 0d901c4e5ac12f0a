/* SPDX-License-Identifier: MIT */
/* Requeues of a trial by --requeue-on. The end of the job script decides, and asks Slurm; where
 * Slurm itself has requeued the job, the next attempt's claim decides. RUN/trial-NNNN/requeues.json
 * counts:
 *
 *   {"retry":0,"total":2,"counts":{"timeout":2},
 *    "last":{"attempt":1,"cause":"timeout","step":400,"checkpoint":1700000000.5,"seconds":3600}}
 */
#ifndef PL_RUNTIME_PLRUN_REQUEUE_H
#define PL_RUNTIME_PLRUN_REQUEUE_H

#include "common/run/run_folder.h"

/* The end of an attempt. */
struct pl_attempt_end {
    unsigned trial, attempt;
    unsigned retry; /* number of the retry that submitted the job */
    enum pl_trial_state state;
    const json_t *result; /* of the attempt; NULL: it wrote none */
    bool by_slurm;        /* the job has been requeued already: any cause is allowed, and counts */
};

/* Decides whether the trial starts again, and counts it.
 * Returns 1 (it does; counted once however often this is called), 0 (no such cause, or no
 * --requeue-on), -ECANCELED (it would, but for the reason in err), other errors. */
int pl_requeue_decide(const struct pl_run *run,
                      const struct pl_attempt_end *end,
                      struct pl_error *err);

/* Asks Slurm to requeue this job. -EIO with Slurm's words. */
int pl_requeue_ask(struct pl_error *err);

#endif
