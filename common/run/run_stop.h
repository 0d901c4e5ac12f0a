/* SPDX-License-Identifier: MIT */
/* --max-fail: the trials count those that failed, and the one that is too many stops the sweep.
 *
 *   RUN/failed/0007     trial 7 failed; its next attempt removes the file
 *   RUN/stopped.json    {"failed":4,"max":3,"retry":0,"time":...}: no trial of this or an earlier
 *                       submission starts any more */
#ifndef PL_COMMON_RUN_RUN_STOP_H
#define PL_COMMON_RUN_RUN_STOP_H

#include "common/run/run_folder.h"

struct pl_run_stop {
    bool stopped;
    unsigned failed, max; /* trials that failed, and may fail */
    unsigned retry;       /* a later retry's trials start again */
};

/* Parses "3" or "10%" of n trials, rounded down: the number of trials that may fail. -EINVAL. */
int pl_run_parse_max_fail(const char *text, unsigned n, unsigned *ret, struct pl_error *err);

/* Records that a trial of this submission (0, or the number of a retry) failed, and stops the sweep
 * if that is one too many. *ret_stopped: this call has stopped it. For a run of ours. */
int pl_run_count_failure(const struct pl_run *run,
                         unsigned trial,
                         unsigned retry,
                         bool *ret_stopped,
                         struct pl_error *err);

/* Takes the trial's failure back: it runs again. */
void pl_run_forget_failure(const struct pl_run *run, unsigned trial);

/* Reads the stop; not stopped if there is none, or it cannot be read. */
struct pl_run_stop pl_run_read_stop(const struct pl_run *run);

/* "4 trials failed, and --max-fail allows 3": the text of the cause. Returns buf. */
#define PL_RUN_STOP_TEXT 96
const char *pl_run_stop_text(const struct pl_run_stop *stop, char buf[PL_RUN_STOP_TEXT]);

#endif
