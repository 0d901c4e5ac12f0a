/* SPDX-License-Identifier: MIT */
/* Which rank broke first. Pure functions over the evidence that the daemons stamped. */
#ifndef PL_COMMON_RUN_CAUSE_H
#define PL_COMMON_RUN_CAUSE_H

#include "common/base/macros.h"
#include "common/run/run_folder.h"

#include <stdbool.h>
#include <stdint.h>

/* A rank that ended badly by itself (not one that the runtime ended). */
struct pl_failure {
    unsigned rank, node_id;
    int status;                    /* wait status */
    int64_t at_ns, uncertainty_ns; /* on the hub's clock */
    uint64_t arrived_ns;           /* at the hub, CLOCK_MONOTONIC */
    bool oom, lost;                /* ended for want of memory; its node's daemon is gone */
    bool gpu;                      /* the driver reported an error of its GPU about then */
    const char *text;              /* last lines of its stderr, borrowed */
};

/* True where a rank's last words say that it lost somebody else: an NCCL error or watchdog abort, a
 * connection reset. Such a rank is never the first cause while there is another; one whose GPU
 * broke down says such things too, and is no echo. (NVRx's registry
 * and what victims print, reference/status.md 1a.) */
bool pl_failure_is_cascade(const struct pl_failure *f);

/* Index of the first cause: the earliest that is no cascade and whose node is not merely lost,
 * else the earliest of all. n > 0. */
size_t pl_failure_first(const struct pl_failure *f, size_t n);

/* True where two candidates lie closer together than the clocks agree. */
bool pl_failure_tied(const struct pl_failure *a, const struct pl_failure *b);

/* True for an end that somebody outside ordered, as Slurm does: SIGTERM, SIGKILL that was no lack
 * of memory, SIGINT, or a shell's code for the first (143). */
bool pl_failure_from_outside(const struct pl_failure *f);

/* The kind of cause that Slurm's record of the job gives (`scontrol -o show job`): "preempted",
 * "timeout", "node", "oom", "cancelled"; NULL where it knows of nothing. Nothing inside the job
 * says it, squeue shows COMPLETING for all of them.
 * restart       the attempt's own restart count: a higher one means that the job was requeued
 * terminated    the step got SIGTERM from outside
 * ret_inferred  true where it is what is left over, not what Slurm says */
const char *
pl_cause_from_slurm(const char *output, unsigned restart, bool terminated, bool *ret_inferred);

/* The trial's state after a cause of this kind; done for NULL. */
enum pl_trial_state pl_cause_state(const char *kind);

#endif
