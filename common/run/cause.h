/* SPDX-License-Identifier: MIT */
/* Causes: their kinds, Slurm's job states, and the rank that failed first. Pure functions over the
 * evidence that the daemons stamped. */
#ifndef PL_COMMON_RUN_CAUSE_H
#define PL_COMMON_RUN_CAUSE_H

#include "common/base/macros.h"
#include "common/run/run_folder.h"

#include <stdbool.h>
#include <stdint.h>

/* The "kind" of a cause object. */
enum pl_cause_kind {
    PL_CAUSE_NONE, /* nothing failed; has no name */
    PL_CAUSE_EXIT,
    PL_CAUSE_SIGNAL,
    PL_CAUSE_OOM,
    PL_CAUSE_NODE,
    PL_CAUSE_HANG,    /* the ranks made no progress, and --on-hang ended them */
    PL_CAUSE_RUNTIME, /* Plume's own process on a node: plrund, plrun, or slurmstepd over it */
    PL_CAUSE_LAUNCH,
    PL_CAUSE_SETUP,
    PL_CAUSE_TIMEOUT,
    PL_CAUSE_PREEMPTED,
    PL_CAUSE_CANCELLED,
    PL_CAUSE_UNKNOWN, /* also a name of a later version */
};

/* "exit", ..., "unknown"; NULL for none. */
const char *pl_cause_name(enum pl_cause_kind kind);

/* The reverse. NULL: none. */
enum pl_cause_kind pl_cause_parse(const char *name);

/* The "confidence" of a cause object. */
enum pl_confidence {
    PL_CONFIDENCE_SEEN,     /* the runtime saw it happen */
    PL_CONFIDENCE_ASKED,    /* Slurm states it */
    PL_CONFIDENCE_INFERRED, /* it is what the evidence leaves */
};

/* "seen", "asked", "inferred". */
const char *pl_confidence_name(enum pl_confidence confidence);

/* The trial's state after a cause of this kind; done for none. */
enum pl_trial_state pl_cause_state(enum pl_cause_kind kind);

/* One of Slurm's job states ("PENDING", ...) and what it means here. */
struct pl_job_state {
    const char *name;
    enum pl_trial_state trial;
    enum pl_cause_kind cause; /* none: the state does not say why */
};

/* The row of this state. One that Plume does not know, as of a newer release, is no end. */
const struct pl_job_state *pl_job_state_find(const char *name);

/* A rank that failed by itself (not one that the runtime ended). */
struct pl_failure {
    unsigned rank, node_id;
    int status;                    /* wait status */
    int64_t at_ns, uncertainty_ns; /* on the hub's clock */
    uint64_t arrived_ns;           /* at the hub, CLOCK_MONOTONIC */
    bool oom, lost;                /* killed for want of memory; its node's daemon is gone */
    bool runtime;                  /* not the rank's own end: Plume's process over it is gone */
    bool term_default;             /* SIGTERM had its default action: its code is no answer to it */
    bool gpu;                      /* the driver reported an error of its GPU at that time */
    const char *text;              /* last lines of its stderr, borrowed */
};

/* The kind of cause that this failure is. A node's daemon that is gone (lost) from a host that
 * still answers (runtime) is the runtime's failure, not the node's. */
enum pl_cause_kind pl_failure_kind(const struct pl_failure *f);

/* True if the rank's last lines report the loss of a peer: an NCCL error or watchdog abort, a
 * connection reset. Such a rank is the first cause only if all failures are cascades. A rank whose
 * GPU failed prints the same, and is no cascade. (The list: NVRx's registry, and what victims
 * print.) */
bool pl_failure_is_cascade(const struct pl_failure *f);

/* Index of the first cause: the earliest failure that is neither a cascade nor a lost node, else
 * the earliest lost node, else the earliest. n > 0. */
size_t pl_failure_first(const struct pl_failure *f, size_t n);

/* Seen; inferred for a daemon of which the hub knows only that it does not answer. */
enum pl_confidence pl_failure_confidence(const struct pl_failure *f);

/* True for an end by a fault of the program: SIGSEGV, SIGABRT, SIGBUS, SIGFPE, SIGILL, SIGSYS or
 * SIGTRAP. No signal to the step explains it. */
bool pl_failure_is_crash(const struct pl_failure *f);

/* True if two candidates lie closer together than the clocks agree. */
bool pl_failure_tied(const struct pl_failure *a, const struct pl_failure *b);

/* True for an end that was ordered from outside, as Slurm does: SIGTERM, SIGINT, SIGKILL without a
 * lack of memory, or a shell's code for SIGTERM (143) or SIGINT (130); and for the loss of Plume's
 * own processes, which Slurm ends together with the ranks. */
bool pl_failure_from_outside(const struct pl_failure *f);

/* The kind of cause that Slurm's record of the job gives (`scontrol -o show job`); none if it gives
 * none. Only slurmctld knows: squeue shows COMPLETING for all of them.
 * restart       the attempt's own restart count: a higher one means that the job was requeued
 * terminated    the step got SIGTERM from outside
 * ret_inferred  true if the kind is a guess by exclusion, not Slurm's statement */
enum pl_cause_kind
pl_cause_from_slurm(const char *output, unsigned restart, bool terminated, bool *ret_inferred);

#endif
