/* SPDX-License-Identifier: MIT */
/* How a failure went on: the ends of ranks and nodes from an attempt's events.jsonl, in the order
 * of their time, ranks that ended alike in one line. */
#ifndef PL_LAUNCHER_PLSTAT_TIMELINE_H
#define PL_LAUNCHER_PLSTAT_TIMELINE_H

#include "launcher/plstat/plstat.h"

/* Appends the timeline; nothing where the log cannot be read or has only one line to show. */
int pl_timeline_print(struct pl_plstat *ps,
                      const struct pl_run *run,
                      const struct pl_trial_status *ts,
                      const json_t *cause);

/* The last lines of a rank's stderr, as valid UTF-8 (other bytes become U+FFFD); the caller frees.
 * NULL where there are none or they cannot be read. */
char *pl_timeline_stderr(const struct pl_run *run, unsigned trial, unsigned attempt, int64_t rank);

#endif
