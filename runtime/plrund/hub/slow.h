/* SPDX-License-Identifier: MIT */
/* Slow ranks: a rank's factor is its time of a step, divided by the median of all. Pure.
 *
 * The time is the rank's own, without its waiting for others, if all ranks report that; else the
 * time between its steps, which differs only where ranks do not wait for each other. A rank is slow
 * from 1.43 times the median on (a score of 0.7), twice in a row, and no more below 1.25. A
 * millisecond more or less is noise. */
#ifndef PL_RUNTIME_PLRUND_HUB_SLOW_H
#define PL_RUNTIME_PLRUND_HUB_SLOW_H

#include <stdbool.h>
#include <stdint.h>

#define PL_SLOW_FACTOR 1.43
#define PL_SLOW_WELL 1.25
#define PL_SLOW_LEAST_US 1000 /* above the median */
#define PL_SLOW_STEPS_MIN 10  /* of a rank in a window */

struct pl_slow_rank {
    int64_t step, first_step; /* -1 = none in this window */
    uint64_t at_ns, first_ns;
    double own_us; /* sum over own_n reports */
    unsigned own_n, strikes;
    double factor; /* 0 = not slow */
};

struct pl_slow {
    struct pl_slow_rank *ranks;
    double *values; /* scratch */
    unsigned n;
    bool own; /* a rank has reported its own time */
};

/* 0 or -ENOMEM. */
int pl_slow_init(struct pl_slow *s, unsigned n_ranks);
void pl_slow_finish(struct pl_slow *s);

/* own_us -1: not reported. */
void pl_slow_report(
    struct pl_slow *s, unsigned rank, int64_t step, int64_t own_us, uint64_t now_ns);

void pl_slow_ended(struct pl_slow *s, unsigned rank);

/* The job was suspended: forgets the window. */
void pl_slow_hold(struct pl_slow *s);

/* Ranks pause: so does this, unless they report their own time of steps, which has no pause in it.
 */
void pl_slow_pause(struct pl_slow *s);

/* Ends the window if every rank that reports has enough steps in it, and sets the factors. Returns
 * true if it ended. */
bool pl_slow_judge(struct pl_slow *s);

#endif
