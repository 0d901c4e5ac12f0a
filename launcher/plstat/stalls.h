/* SPDX-License-Identifier: MIT */
/* Ranks that make no progress, or little: what the hub suspects while a trial runs, and where the
 * stacks are. */
#ifndef PL_LAUNCHER_PLSTAT_STALLS_H
#define PL_LAUNCHER_PLSTAT_STALLS_H

#include "launcher/plstat/plstat.h"

/* Prints lines about hangs and slow ranks of this trial; none if nothing is suspected. */
int pl_stalls_print(struct pl_plstat *ps,
                    const struct pl_run_status *s,
                    const struct pl_trial_status *ts);

#endif
