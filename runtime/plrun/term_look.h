/* SPDX-License-Identifier: MIT */
/* Looks how a rank takes SIGTERM, or the signal that Slurm sends in its place: only a rank that
 * handles, ignores or blocks it can exit with a code because of it. The rank's end alone does not
 * show that: Python, for one, resets its handlers then. */
#ifndef PL_RUNTIME_PLRUN_TERM_LOOK_H
#define PL_RUNTIME_PLRUN_TERM_LOOK_H

#include <stdbool.h>
#include <sys/types.h>

/* {0}: nobody has looked yet. */
struct pl_term_look {
    bool looked;   /* while the program ran */
    bool survives; /* it did not have its default action once */
};

/* Looks at a child of ours, now and then. Before it executes the program nothing is learnt. */
void pl_term_look(struct pl_term_look *look, pid_t child);
/* Its last state: it has ended, and is not reaped. */
void pl_term_look_last(struct pl_term_look *look, pid_t child);

/* 1 if they had their default action at each look, and there was one before its end; 0 if one of
 * them had not, once; -1: not known. */
int pl_term_default(const struct pl_term_look *look);

#endif
