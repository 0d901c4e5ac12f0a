/* SPDX-License-Identifier: MIT */
/* A task becomes a rank before its program is executed. No Slurm in here. */
#ifndef PL_SPANK_PLUGIN_TASK_H
#define PL_SPANK_PLUGIN_TASK_H

#include "common/base/error.h"

#include <stdbool.h>

/* Greets the daemon at `socket`, waits at most timeout_ms for the world, hands it to set() (see
 * pl_rank_link_world()) and puts pipes, whose other ends the daemon has, on the fds 1 and 2 that
 * are no terminals. On failure fds 1 and 2 are as they were. Meanwhile the process has a name of
 * its own, without which Slurm could not cancel it. */
int pl_task_join(const char *socket,
                 unsigned rank,
                 unsigned local_rank,
                 unsigned timeout_ms,
                 int (*set)(void *ctx, const char *name, const char *value, bool overwrite),
                 void *ctx,
                 struct pl_error *err);

#endif
