/* SPDX-License-Identifier: MIT */
/* The newest value of everything that was measured, by name ("val_loss"): what schedules, early
 * stopping and checkpoints watch. Values are those of all ranks, so that all decide alike. */
#ifndef PL_RUNTIME_ENGINE_TRAIN_METRICS_H
#define PL_RUNTIME_ENGINE_TRAIN_METRICS_H

#include "common/base/error.h"

#include <stdbool.h>

#define PL_METRICS_MAX 128
#define PL_METRIC_NAME 80

struct pl_metrics {
    size_t n;
    char name[PL_METRICS_MAX][PL_METRIC_NAME];
    double value[PL_METRICS_MAX];
};

/* What finds no room is dropped. */
void pl_metrics_set(struct pl_metrics *metrics, const char *name, double value);

/* NaN where there is none. */
double pl_metrics_get(const struct pl_metrics *metrics, const char *name);

/* The same for callbacks; ctx is a struct pl_metrics. */
double pl_metrics_find(void *ctx, const char *name);

/* Whether there is a value of this name, be it NaN. */
bool pl_metrics_has(const struct pl_metrics *metrics, const char *name);

#endif
