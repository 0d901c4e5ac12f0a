/* SPDX-License-Identifier: MIT */
#ifndef PL_LAUNCHER_PLSTAT_RELEASES_H
#define PL_LAUNCHER_PLSTAT_RELEASES_H

#include "launcher/plstat/plstat.h"

/* Prints a line for the driver, NCCL or MPI if its release differs between the nodes of a run-state
 * document (run_state.h); a node that does not tell one counts for none. -ENOMEM. */
int pl_releases_print(struct pl_plstat *ps, const json_t *doc);

#endif
