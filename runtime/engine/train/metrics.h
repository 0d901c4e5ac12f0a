/* SPDX-License-Identifier: MIT */
/* The newest value of each metric by name ("val_loss"), for schedules, early stopping and
 * checkpoints. Values are over all ranks, so that all ranks decide alike. */
#ifndef PL_RUNTIME_ENGINE_TRAIN_METRICS_H
#define PL_RUNTIME_ENGINE_TRAIN_METRICS_H

#include "common/base/error.h"
#include "common/proto/rank/minijson.h"

#include <stdbool.h>

#define PL_METRICS_MAX 128
#define PL_METRIC_NAME 80

struct pl_metrics {
    size_t n;
    char name[PL_METRICS_MAX][PL_METRIC_NAME];
    double value[PL_METRICS_MAX];
    bool fresh[PL_METRICS_MAX]; /* set since the last pl_metrics_take() */
};

/* Drops the value if the table is full or the name too long. */
void pl_metrics_set(struct pl_metrics *metrics, const char *name, double value);

/* NaN if no value has this name. */
double pl_metrics_get(const struct pl_metrics *metrics, const char *name);

/* True if a value has this name; the value may be NaN. */
bool pl_metrics_has(const struct pl_metrics *metrics, const char *name);

/* True once per value that was set; *ret = the value, or NaN. */
bool pl_metrics_take(struct pl_metrics *metrics, const char *name, double *ret);

/* For the checkpoint's "callbacks": appends a JSON list; reads one back, where values are not
 * fresh. -ENOMEM, -EINVAL. */
int pl_metrics_save(const struct pl_metrics *metrics, struct pl_buf *buf);
int pl_metrics_load(struct pl_metrics *metrics, const struct pl_mini_value *list);

#endif
