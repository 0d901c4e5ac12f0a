/* SPDX-License-Identifier: MIT */
/* Facts that node daemons report of ranks. A daemon reports each kind once, for the first of its
 * ranks that has it. */
#ifndef PL_LAUNCHER_PLSTAT_RANK_FACTS_H
#define PL_LAUNCHER_PLSTAT_RANK_FACTS_H

#include "launcher/plstat/plstat.h"

/* Prints a line for each kind of such facts in a run-state document (run_state.h; NULL: none):
 * ranks whose variables something has changed, and files that lack output, as on a full disk.
 * -ENOMEM. */
int pl_rank_facts_print(struct pl_plstat *ps, const json_t *doc);

#endif
