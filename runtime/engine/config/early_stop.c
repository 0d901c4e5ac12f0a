/* SPDX-License-Identifier: MIT */
#include "runtime/engine/config/early_stop.h"
#include "common/base/macros.h"

#include <math.h>

bool pl_early_stop_look(struct pl_early_stop *stop,
                        const struct pl_early_stop_rule *rule,
                        double value)
{
    double gain = rule->maximize ? value - stop->best : stop->best - value;

    if (!isfinite(value))
        return true;
    if (!stop->any || gain > rule->min_delta) {
        *stop = (struct pl_early_stop){.any = true, .best = value};
        return false;
    }
    return ++stop->waited >= rule->patience;
}

void pl_early_stop_end(struct pl_early_stop *stop, const struct pl_early_stop_rule *rule)
{
    stop->ended = true;
    stop->waited = PL_MAX(stop->waited, rule->patience); /* a value that is not finite waits not */
}

bool pl_early_stop_has_ended(const struct pl_early_stop *stop,
                             const struct pl_early_stop_rule *rule)
{
    return rule->monitor && stop->ended && stop->waited >= rule->patience;
}
