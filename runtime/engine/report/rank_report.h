/* SPDX-License-Identifier: MIT */
/* A rank's reports to its node daemon. They never delay training: a line that cannot be sent is
 * dropped; at the end the daemon gets a short time to read the last lines. Without a daemon all
 * calls do nothing. */
#ifndef PL_RUNTIME_ENGINE_REPORT_RANK_REPORT_H
#define PL_RUNTIME_ENGINE_REPORT_RANK_REPORT_H

#include "common/proto/rank/rank_link.h"

struct pl_rank_report {
    struct pl_rank_link link;
    uint64_t own_ns, own_steps; /* since the last values */
};

/* Connects to $PLUME_SOCKET if it is set and says hello; else link.fd is -EBADF. */
int pl_rank_report_open(struct pl_rank_report *report,
                        unsigned rank,
                        unsigned local_rank,
                        struct pl_error *err);
void pl_rank_report_close(struct pl_rank_report *report);

/* A step has taken this time of the rank itself, without waiting for other ranks. The next values
 * have the mean with them. */
void pl_rank_report_step(struct pl_rank_report *report, uint64_t own_ns);

/* Sends values of a step, or drops them. */
void pl_rank_report_metrics(struct pl_rank_report *report,
                            int64_t step,
                            const char *const *names,
                            const double *values,
                            size_t n);

/* Sends the last values, and facts: waits up to 2 s for room. */
void pl_rank_report_final(struct pl_rank_report *report,
                          int64_t step,
                          const char *const *names,
                          const double *values,
                          size_t n);
/* Names the pause before the next step ("checkpoint", "validation"), so that nobody takes it for a
 * hang; "" ends the pause. Waits as above. */
void pl_rank_report_phase(struct pl_rank_report *report, const char *phase);
void pl_rank_report_fact(struct pl_rank_report *report, const char *key, const char *value);

#endif
