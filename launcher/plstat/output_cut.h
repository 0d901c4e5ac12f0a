/* SPDX-License-Identifier: MIT */
#ifndef PL_LAUNCHER_PLSTAT_OUTPUT_CUT_H
#define PL_LAUNCHER_PLSTAT_OUTPUT_CUT_H

#include "launcher/plstat/plstat.h"

/* Prints a line if files of ranks of a run-state document (run_state.h; NULL: none) lack output, as
 * on a full disk. -ENOMEM. */
int pl_output_cut_print(struct pl_plstat *ps, const json_t *doc);

#endif
