/* SPDX-License-Identifier: MIT */
/* Ranks that make no progress: pure functions over the times of the steps that ranks report, and
 * over what their nodes see of their processes. No I/O and no clock.
 *
 *   QUIET --all ranks that report are late--> the nodes are asked (probes) --pl_stall_judge()-->
 *     NONE      too early for what was seen, or a rank named its pause
 *     BUSY      these ranks hold the others up, but compute, read or write: no hang yet
 *     STOPPED   a rank is stopped (debugger, SIGSTOP): no stall; all limits begin anew
 *     BEHIND    these ranks hold the others up
 *     ALL       no rank makes progress, and none differs from the others
 *
 * A rank is late after max(least, 5 x p99 of the time between reports). Which rank is behind
 * follows, in this order, from
 *   1. collectives: of ranks that count them (the engine), those that began fewer   (seen)
 *   2. steps: those with the lowest step                                            (seen)
 *   3. how they wait: the few that sleep by themselves, or hold a lock, where others wait for a
 *      peer or compute                                                              (inferred)
 * A candidate of 2 and 3 that computes, reads or writes may validate or save: it gets 30 times as
 * long, as do ranks that named a pause, and candidates of 1 that compute in a hook of their module.
 * Outside of hooks, those of 1 wait for something that does not come, or spin. If nothing tells the
 * ranks apart, 6 times. A pause that ended after an alarm was a false alarm: from then on no limit
 * is shorter than twice that. */
#ifndef PL_RUNTIME_PLRUND_HUB_STALL_H
#define PL_RUNTIME_PLRUND_HUB_STALL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define PL_STALL_MOVES_MIN 5 /* steps of a rank before it can be late: the first ones compile */
#define PL_STALL_P99_FACTOR 5
#define PL_STALL_ALL_FACTOR 6
#define PL_STALL_BUSY_FACTOR 30
#define PL_STALL_BUCKETS 256

/* The state of a rank's processes while the prober looked at them. */
enum pl_stall_class {
    PL_STALL_WAIT,    /* waits for something outside: a socket, a futex, a pipe */
    PL_STALL_SLEEP,   /* waits by itself: a timer, a file lock */
    PL_STALL_BUSY,    /* uses a processor, or reads or writes files */
    PL_STALL_STOPPED, /* by a signal or a debugger */
    PL_STALL_GONE,    /* not seen */
};

struct pl_stall_probe {
    enum pl_stall_class class;
    int64_t collectives; /* that it began, -1 = not known */
    bool hook;           /* it is in a hook of its module */
};

struct pl_stall_rank {
    bool runs, paused; /* paused: the program said so */
    bool held;         /* a time that does not count began since it last moved */
    bool probed;       /* since the last pl_stall_ask() */
    int64_t step;      /* -1 = none reported */
    uint64_t moved_ns; /* when the step last grew */
    uint64_t n_moves;  /* how often it did */
    struct pl_stall_probe probe;
};

struct pl_stall {
    struct pl_stall_rank *ranks;
    unsigned n;
    uint64_t least_ns;
    uint64_t false_ns;               /* the longest pause that an alarm was wrong about */
    uint64_t n_gaps;                 /* in the buckets */
    uint64_t gaps[PL_STALL_BUCKETS]; /* by the logarithm of their length */
};

enum pl_stall_kind {
    PL_STALL_NONE,
    PL_STALL_HELD,    /* STOPPED above */
    PL_STALL_AT_WORK, /* BUSY above */
    PL_STALL_BEHIND,
    PL_STALL_ALL,
};

struct pl_stall_verdict {
    enum pl_stall_kind kind;
    bool seen;       /* else inferred */
    int64_t step;    /* the lowest of ranks that report, -1 = none does */
    uint64_t for_ns; /* since any of the ranks in question moved */
    uint64_t limit_ns;
    bool *behind; /* by rank, valid until the next call; NULL unless AT_WORK or BEHIND */
};

/* least_ms: 0 = never any stall. 0 or -ENOMEM. */
int pl_stall_init(struct pl_stall *s, unsigned n_ranks, unsigned least_ms);
void pl_stall_finish(struct pl_stall *s);

void pl_stall_started(struct pl_stall *s, unsigned rank, uint64_t now_ns);
void pl_stall_ended(struct pl_stall *s, unsigned rank);

/* One report of a rank: its progress since the report before. */
struct pl_stall_report {
    int64_t step;    /* -1 = none */
    uint64_t moves;  /* how often the step grew, 0 = not known */
    uint64_t gap_ns; /* the longest time between two of them, 0 = not known */
    int paused;      /* 1 or 0; -1 = as before */
};

/* Returns true if the rank moved. */
bool pl_stall_report(struct pl_stall *s,
                     unsigned rank,
                     const struct pl_stall_report *report,
                     uint64_t now_ns);

/* All limits begin anew: the job was suspended, or a rank was stopped. */
void pl_stall_hold(struct pl_stall *s, uint64_t now_ns);

/* max(least, 5 x p99), or more after a false alarm. */
uint64_t pl_stall_limit_ns(const struct pl_stall *s);

/* True if it is time to ask the nodes. */
bool pl_stall_due(const struct pl_stall *s, uint64_t now_ns);

/* Forgets the probes. */
void pl_stall_ask(struct pl_stall *s);
void pl_stall_probed(struct pl_stall *s, unsigned rank, struct pl_stall_probe probe);

/* NONE unless all running ranks were probed. `scratch` has room for n ranks. */
struct pl_stall_verdict pl_stall_judge(const struct pl_stall *s, uint64_t now_ns, bool *scratch);

/* An alarm was wrong: the ranks moved again, this long after they had stopped. */
void pl_stall_was_wrong(struct pl_stall *s, uint64_t pause_ns);

#endif
