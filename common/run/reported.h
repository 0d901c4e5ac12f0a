/* SPDX-License-Identifier: MIT */
/* The metrics that the trials of a sweep reported, and whether its objective is one of them. */
#ifndef PL_COMMON_RUN_REPORTED_H
#define PL_COMMON_RUN_REPORTED_H

#include "common/base/buf.h"

#include <jansson.h>
#include <stdbool.h>

/* Zeroed memory is an empty one. */
struct pl_reported {
    json_t *names;  /* an object whose keys are the metrics' names; NULL: none */
    bool done, hit; /* a trial is done; a trial has reported the objective */
};

void pl_reported_finish(struct pl_reported *reported);

/* Adds a trial's metrics, an object or NULL. -ENOMEM. */
int pl_reported_add(struct pl_reported *reported,
                    const json_t *metrics,
                    bool done,
                    const char *objective);

/* Appends "no trial reported acc; reported: fin, loss" if a trial is done and none has reported the
 * objective, else nothing. -ENOMEM. */
int pl_reported_missing(const struct pl_reported *reported,
                        const char *objective,
                        struct pl_buf *out);

#endif
