/* SPDX-License-Identifier: MIT */
/* --on-end: a command that runs once when all trials of a sweep have ended. Under Slurm it has a
 * job of its own that waits for all arrays; with --local the executor starts it. A retry or an
 * extension gives the sweep another end.
 *
 *   sweep.json "on_end"   {"job":"123","arrays":2}: the job that waits for the first two arrays
 *   RUN/ends/2.json       {"time":...}: the command has begun at the end of two arrays; later also
 *                         "ended", and "exit" or "signal" */
#ifndef PL_COMMON_RUN_RUN_END_H
#define PL_COMMON_RUN_RUN_END_H

#include "common/run/run_folder.h"

#define PL_RUN_END_OUTPUT "on-end.out" /* the command's output */

struct pl_run_end {
    unsigned arrays; /* 0: nobody is to run the command yet */
    char job[32];    /* "": with --local */
    bool begun, ended;
    int status; /* wait status of the command that has ended */
};

/* The command; NULL: none. Borrowed. */
const char *pl_run_on_end(const struct pl_run *run);

/* Records the job that runs the command. One writer at a time. */
int pl_run_end_record(struct pl_run *run, const char *job, struct pl_error *err);

/* Claims the end of so many arrays for the caller. -EEXIST: somebody has it. For a run of ours. */
int pl_run_end_claim(const struct pl_run *run, unsigned arrays, struct pl_error *err);

/* Records how the command ended. */
int pl_run_end_write(const struct pl_run *run,
                     unsigned arrays,
                     int wait_status,
                     struct pl_error *err);

/* Reads what is known of the last end; all zero without --on-end. */
struct pl_run_end pl_run_end_read(const struct pl_run *run);

/* The note for people, "--on-end: exit code 3: ...". -ENOMEM.
 * Appends nothing if there is nothing to tell. over: all trials have ended */
int pl_run_end_text(const struct pl_run *run, bool over, struct pl_buf *out);

#endif
