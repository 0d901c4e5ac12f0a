/* SPDX-License-Identifier: MIT */
#include "runtime/engine/train/metrics.h"
#include "runtime/engine/checkpoint/checkpoint.h"

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
    metrics->fresh[i] = true;
}

double pl_metrics_get(const struct pl_metrics *metrics, const char *name)
{
    size_t i = find(metrics, name);

    return i < metrics->n ? metrics->value[i] : NAN;
}

bool pl_metrics_has(const struct pl_metrics *metrics, const char *name)
{
    return find(metrics, name) < metrics->n;
}

bool pl_metrics_take(struct pl_metrics *metrics, const char *name, double *ret)
{
    size_t i = find(metrics, name);
    bool fresh = i < metrics->n && metrics->fresh[i];

    *ret = i < metrics->n ? metrics->value[i] : NAN;
    if (fresh)
        metrics->fresh[i] = false;
    return fresh;
}

int pl_metrics_save(const struct pl_metrics *metrics, struct pl_buf *buf)
{
    int r = pl_buf_addc(buf, '[');

    for (size_t i = 0; i < metrics->n && r == 0; i++) {
        r = pl_buf_adds(buf, i ? ",{\"name\":" : "{\"name\":");
        r = r < 0 ? r : pl_mini_quote(buf, metrics->name[i]);
        r = r < 0 ? r : pl_buf_adds(buf, ",\"value\":");
        r = r < 0 ? r : pl_json_add_double(buf, metrics->value[i]);
        r = r < 0 ? r : pl_buf_addc(buf, '}');
    }
    return r < 0 ? r : pl_buf_addc(buf, ']');
}

int pl_metrics_load(struct pl_metrics *metrics, const struct pl_mini_value *list)
{
    struct pl_mini_value entry;
    size_t pos = 0;
    int r;

    while ((r = pl_mini_next(list, &pos, &entry)) == 1) {
        _cleanup_free_ char *text = strndup(entry.start, entry.len), *name = NULL;
        double value;

        if (!text)
            return -ENOMEM;
        if (pl_mini_get_string(text, "name", &name) < 0 ||
            pl_json_get_double(text, "value", &value) < 0)
            return -EINVAL;
        pl_metrics_set(metrics, name, value);
    }
    memset(metrics->fresh, 0, sizeof(metrics->fresh));
    return r;
}
