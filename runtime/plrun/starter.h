/* SPDX-License-Identifier: MIT */
/* plrun's main work: start one rank, guard it, and leave no process of it.
 *
 *   local rank 0 starts the node daemon; every plrun says hello to it and waits for the world;
 *   the program is started with its output in pipes that the daemon reads; signals are forwarded;
 *   the end is reported, orphans are ended, and the daemon gives the code to exit with. */
#ifndef PL_RUNTIME_PLRUN_STARTER_H
#define PL_RUNTIME_PLRUN_STARTER_H

#include "common/base/error.h"

/* argv (NULL-terminated, borrowed) is the program with its arguments; plrund is the daemon's path.
 * Returns the exit code for plrun, or a negative errno with err set if nothing was started. */
int pl_starter_run(char *const *argv, const char *plrund, struct pl_error *err);

#endif
