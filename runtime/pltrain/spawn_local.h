/* SPDX-License-Identifier: MIT */
/* Starts ranks on this machine without a node daemon, for laptops and tests: forks them, sets their
 * environment as a launcher does, and serves the exchange on the ranks' socket until all have
 * ended. Reads the ranks' reports and drops them. */
#ifndef PL_RUNTIME_PLTRAIN_SPAWN_LOCAL_H
#define PL_RUNTIME_PLTRAIN_SPAWN_LOCAL_H

#include "common/base/error.h"

#include <stdbool.h>

struct pl_local_options {
    unsigned processes;
    unsigned per_node; /* ranks per simulated node; 0 = one node. Nodes are joined by TCP. */
    unsigned grace_ms; /* 0 = PL_LOCAL_KILL_GRACE_MS: from SIGTERM to SIGKILL */
};

/* Returns 1 in each child, with its environment set: the caller continues as that rank. Returns 0
 * in the parent when all ranks have ended, or -errno. *ret_status: 0 if all ranks returned 0, else
 * the code of the first that did not (128 + signal if a signal killed it). The others are killed
 * after the grace from the first failure. SIGINT and SIGTERM send SIGTERM to all ranks, which are
 * killed after the grace; the status is 130 then. More signals do not lengthen the grace, and a
 * later Ctrl-C ends it. SIGUSR1 is passed on to the ranks. All three stay blocked in the parent,
 * which has nothing left to do but end with the status. Call before any thread exists; in a child
 * there is one then, which ends it if its parent is killed: the ranks get SIGTERM, and the grace.
 */
int pl_local_run(const struct pl_local_options *options, int *ret_status, struct pl_error *err);

/* In a child: true unless another one has asked with the same text, so that what all ranks say is
 * said once. Elsewhere true. */
bool pl_local_first(const char *text);

#endif
