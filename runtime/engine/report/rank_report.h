/* SPDX-License-Identifier: MIT */
/* What a rank tells its node daemon. Nothing here holds up training: a line that does not go is
 * dropped, and at the end the daemon gets a short while to read what is worth keeping. Without a
 * daemon nothing happens. */
#ifndef PL_RUNTIME_ENGINE_REPORT_RANK_REPORT_H
#define PL_RUNTIME_ENGINE_REPORT_RANK_REPORT_H

#include "common/proto/rank/rank_link.h"

struct pl_rank_report {
    struct pl_rank_link link;
};

/* Connects where $PLUME_SOCKET is set and says hello; link.fd is -EBADF otherwise. */
int pl_rank_report_open(struct pl_rank_report *report,
                        unsigned rank,
                        unsigned local_rank,
                        struct pl_error *err);
void pl_rank_report_close(struct pl_rank_report *report);

/* Values of a step, as it goes. */
void pl_rank_report_metrics(struct pl_rank_report *report,
                            int64_t step,
                            const char *const *names,
                            const double *values,
                            size_t n);

/* The same for the last values, and facts: waits up to 2 s for room. */
void pl_rank_report_final(struct pl_rank_report *report,
                          int64_t step,
                          const char *const *names,
                          const double *values,
                          size_t n);
void pl_rank_report_fact(struct pl_rank_report *report, const char *key, const char *value);

#endif
