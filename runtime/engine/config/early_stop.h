/* SPDX-License-Identifier: MIT */
/* Early stopping (as Lightning 1.4's EarlyStopping): training ends when a value has not improved
 * for `patience` validations in a row, or is NaN. */
#ifndef PL_RUNTIME_ENGINE_CONFIG_EARLY_STOP_H
#define PL_RUNTIME_ENGINE_CONFIG_EARLY_STOP_H

#include "common/base/error.h"

#include <stdbool.h>
#include <stdint.h>

struct pl_early_stop_rule {
    const char *monitor; /* name of the value; NULL = off */
    bool maximize;
    uint64_t patience; /* validations without improvement that are allowed; 0 = none */
    double min_delta;  /* smaller changes are no improvement; >= 0 */
};

/* Plain data, saved in checkpoints. */
struct pl_early_stop {
    bool any; /* best is set */
    double best;
    uint64_t waited; /* validations since the best one */
    bool ended;      /* it has ended the training */
};

/* Adds the value of one more validation. Returns true if training must end. */
bool pl_early_stop_look(struct pl_early_stop *stop,
                        const struct pl_early_stop_rule *rule,
                        double value);

/* It ends the training: a run that goes on with this state has nothing to do. */
void pl_early_stop_end(struct pl_early_stop *stop, const struct pl_early_stop_rule *rule);

/* True if it has ended the training, and would with this rule, too. */
bool pl_early_stop_has_ended(const struct pl_early_stop *stop,
                             const struct pl_early_stop_rule *rule);

#endif
