/* SPDX-License-Identifier: MIT */
/* plsubmit's main work on a run folder, new or changed: submit, report, wait. */
#ifndef PL_LAUNCHER_PLSUBMIT_SUBMISSION_H
#define PL_LAUNCHER_PLSUBMIT_SUBMISSION_H

#include "launcher/plsubmit/change.h"
#include "launcher/plsubmit/spec.h"

/* A submission, and the words of its report. */
struct pl_submission {
    struct pl_change *change;
    const char *folder; /* as the user writes it */
    const char *shape;  /* of a trial; NULL: not shown */
    char *const *after; /* resolved words of --after; NULL: none */
    bool resumed;       /* the folder may have been submitted before */
    size_t only;        /* number of trials of a retry or an extension; 0: all */
};

/* Submits the trials that are not submitted yet, or a planned retry, reports them, and waits with
 * --wait. Prints what goes wrong. Returns an exit code. */
int pl_submission_send(const struct pl_submission *s,
                       const struct pl_spec *spec,
                       const char *bin_dir);

#endif
