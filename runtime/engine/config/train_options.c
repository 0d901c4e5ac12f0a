/* SPDX-License-Identifier: MIT */
#include "runtime/engine/config/train_options.h"

#include <math.h>

struct pl_train_options pl_train_options_default(void)
{
    const struct pl_limit all = {.value = INFINITY};

    return (struct pl_train_options){
        .max_steps = UINT64_MAX,
        .log_every = 10,
        .devices = 1,
        .balance_every = PL_PIPE_BALANCE_EVERY,
        .graphs = true,
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

uint64_t pl_accumulate_at(const struct pl_train_options *options, uint64_t epoch)
{
    uint64_t n = options->accumulate;

    for (size_t i = 0; i < options->n_accumulate_from; i++)
        if (epoch >= options->accumulate_from[i].epoch)
            n = options->accumulate_from[i].n;
    return n;
}

uint64_t pl_accumulate_most(const struct pl_train_options *options)
{
    uint64_t n = options->accumulate;

    for (size_t i = 0; i < options->n_accumulate_from; i++)
        n = PL_MAX(n, options->accumulate_from[i].n);
    return n;
}
