/* SPDX-License-Identifier: MIT */
/* What the node daemons say of their ranks, as facts of the first rank of a node that it is true
 * of. */
#ifndef PL_LAUNCHER_PLSTAT_RANK_FACTS_H
#define PL_LAUNCHER_PLSTAT_RANK_FACTS_H

#include "launcher/plstat/plstat.h"

/* Prints a line for each kind of such facts in a run-state document (run_state.h; NULL: none):
 * ranks whose variables something has changed, and files that lack output, as on a full disk.
 * -ENOMEM. */
int pl_rank_facts_print(struct pl_plstat *ps, const json_t *doc);

#endif
