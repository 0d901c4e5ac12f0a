/* SPDX-License-Identifier: MIT */
/* Early stopping (as Lightning 1.4's EarlyStopping): training ends when a value has not got better
 * for `patience` validations in a row, or is no number. */
#ifndef PL_RUNTIME_ENGINE_CONFIG_EARLY_STOP_H
#define PL_RUNTIME_ENGINE_CONFIG_EARLY_STOP_H

#include "common/base/error.h"

#include <stdbool.h>
#include <stdint.h>

struct pl_early_stop_rule {
    const char *monitor; /* name of a value; NULL = off */
    bool maximize;
    uint64_t patience; /* validations without progress before the one that ends it; 0 = the first */
    double min_delta;  /* less is no progress; >= 0 */
};

/* Plain data, kept by checkpoints. */
struct pl_early_stop {
    bool any; /* best is set */
    double best;
    uint64_t waited; /* validations since */
};

/* Looks at the value of one more validation. True where training shall end. */
bool pl_early_stop_look(struct pl_early_stop *stop,
                        const struct pl_early_stop_rule *rule,
                        double value);

#endif
