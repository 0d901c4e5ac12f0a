/* SPDX-License-Identifier: MIT */
/* Prints what plsubmit has done: sentences, or with --parsable "SWEEP;RUN-FOLDER;JOBID[,JOBID...]".
 * These return -EIO if stdout cannot be written. */
#ifndef PL_LAUNCHER_PLSUBMIT_REPORT_H
#define PL_LAUNCHER_PLSUBMIT_REPORT_H

#include "common/base/buf.h"
#include "common/run/run_folder.h"

/* Prints an error. Returns `code`, the exit code. */
int pl_report_error(const struct pl_error *err, int code);

/* Copies messages of sbatch, in lines, to stderr. */
void pl_report_messages(const struct pl_buf *messages);

/* done    "submitted", ...
 * shape   of a trial; NULL: not shown
 * trials  number of trials of the jobs
 * jobs    NULL-terminated */
int pl_report_jobs(const struct pl_run *run,
                   const char *done,
                   size_t trials,
                   const char *const *jobs,
                   const char *folder,
                   const char *shape,
                   bool parsable);

/* The submissions from number `from` on. indexed: plstat finds the sweep by its name, and not by
 * its folder only. -ENOMEM. */
int pl_report_submitted(const struct pl_run *run,
                        size_t from,
                        size_t trials,
                        const char *folder,
                        const char *shape,
                        bool indexed,
                        bool parsable);

/* verb  "submit", ...
 * why   after the colon */
int pl_report_nothing(const struct pl_run *run, const char *verb, const char *why, bool parsable);

#endif
