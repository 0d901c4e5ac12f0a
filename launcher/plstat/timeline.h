/* SPDX-License-Identifier: MIT */
/* The course of a failure: the ends of ranks from an attempt's events.jsonl in the order of time,
 * with one line for ranks that ended alike. */
#ifndef PL_LAUNCHER_PLSTAT_TIMELINE_H
#define PL_LAUNCHER_PLSTAT_TIMELINE_H

#include "launcher/plstat/plstat.h"

/* Appends the timeline; nothing if the log cannot be read or has only one end. */
int pl_timeline_print(struct pl_plstat *ps,
                      const struct pl_run *run,
                      const struct pl_trial_status *ts,
                      const json_t *cause);

/* The last lines of a rank's stderr as valid UTF-8 (U+FFFD replaces other bytes); the caller frees
 * them. NULL: none, or unreadable. */
char *pl_timeline_stderr(const struct pl_run *run, unsigned trial, unsigned attempt, int64_t rank);

#endif
