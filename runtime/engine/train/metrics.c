/* SPDX-License-Identifier: MIT */
#include "runtime/engine/train/metrics.h"

#include <math.h>
#include <string.h>

static size_t find(const struct pl_metrics *m, const char *name)
{
    size_t i = 0;

    while (i < m->n && strcmp(m->name[i], name) != 0)
        i++;
    return i;
}

void pl_metrics_set(struct pl_metrics *metrics, const char *name, double value)
{
    size_t i = find(metrics, name);

    if (i == metrics->n) {
        if (i == PL_METRICS_MAX || strlen(name) >= PL_METRIC_NAME)
            return;
        memcpy(metrics->name[metrics->n++], name, strlen(name) + 1);
    }
    metrics->value[i] = value;
}

double pl_metrics_get(const struct pl_metrics *metrics, const char *name)
{
    size_t i = find(metrics, name);

    return i < metrics->n ? metrics->value[i] : NAN;
}

double pl_metrics_find(void *ctx, const char *name)
{
    return pl_metrics_get(ctx, name);
}

bool pl_metrics_has(const struct pl_metrics *metrics, const char *name)
{
    return find(metrics, name) < metrics->n;
}
