/* SPDX-License-Identifier: MIT */
#include "runtime/engine/train_options.h"

#include <math.h>

struct pl_train_options pl_train_options_default(void)
{
    const struct pl_limit all = {.value = INFINITY};

    return (struct pl_train_options){
        .max_steps = UINT64_MAX,
        .log_every = 10,
        .devices = 1,
        .max_seconds = INFINITY,
        .limit = {all, all, all},
        .val_check = {.is_share = true, .value = 1},
        .val_every = 1,
        .accumulate = 1,
        .amp_level = 1,
        .save_top_k = 1,
        .prefetch = -1,
    };
}

uint64_t pl_limit_of(const struct pl_limit *limit, uint64_t n)
{
    double value = limit->is_share ? floor(limit->value * (double)n) : limit->value;

    return value < (double)n ? (uint64_t)value : n;
}
