/* SPDX-License-Identifier: MIT */
/* For tests of several ranks: runs a function in processes that meet as ranks do. */
#ifndef PL_TESTS_ENGINE_RANKS_H
#define PL_TESTS_ENGINE_RANKS_H

#include "runtime/engine/comm/comm.h"

#include <stdbool.h>

#define RANKS_MAX 16

/* Result of a rank, in memory that the processes share. */
struct verdict {
    bool done;
    char text[256]; /* "" = good */
};

/* Runs `f` on `processes` ranks, `per_node` on each simulated node (0: one node), each with a
 * connected communicator. f returns a text if it fails; it may put other results into `shared`
 * (memory of ranks_shared()). Fails the cmocka test if a rank that is not in `victims` (bits by
 * rank) returns a text or exits. Returns the seconds it took. */
double ranks_run(unsigned processes,
                 unsigned per_node,
                 const char *(*f)(struct pl_comm *comm, void *shared),
                 void *shared,
                 uint64_t victims);

/* Zeroed memory that children share; never freed. */
void *ranks_shared(size_t bytes);

#endif
