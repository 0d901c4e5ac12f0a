/* SPDX-License-Identifier: MIT */
/* Ranks on this machine without a node daemon, for laptops and tests: forks them, sets their
 * environment as a launcher would, and serves the exchange of the rank's socket until all have
 * ended. Reports of the ranks are read and dropped. */
#ifndef PL_RUNTIME_PLTRAIN_SPAWN_LOCAL_H
#define PL_RUNTIME_PLTRAIN_SPAWN_LOCAL_H

#include "common/base/error.h"

struct pl_local_options {
    unsigned processes;
    unsigned per_node; /* ranks of one pretended node; 0 = all on one. Others meet over TCP. */
};

/* Returns 1 in each child, with its environment set: the caller goes on as that rank.
 * In the parent returns 0 when all have ended, or -errno. *ret_status: 0 where all ranks ended with
 * 0, else the code of the first that did not (128 + signal where it was killed). The others are
 * ended 10 s after the first failure. SIGINT and SIGTERM end all; the status is 130 then. Call
 * before there are threads. */
int pl_local_run(const struct pl_local_options *options, int *ret_status, struct pl_error *err);

#endif
