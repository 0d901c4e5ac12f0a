/* SPDX-License-Identifier: MIT */
#include "runtime/engine/sampler.h"
#include "runtime/engine/rng.h"

#define STREAM_SAMPLER 0x73616d706c65u

int pl_sampler_init(struct pl_sampler *sampler,
                    size_t n,
                    unsigned rank,
                    unsigned world_size,
                    bool train,
                    uint64_t seed,
                    struct pl_error *err)
{
    struct pl_sampler s = {
        .n = n, .rank = rank, .world_size = world_size, .train = train, .seed = seed};

    if (train && n == 0)
        return pl_error_set(err, -EINVAL, "the training data has no samples");
    if (train)
        s.count = (n + world_size - 1) / world_size;
    else
        s.count = rank < n ? (n - rank + world_size - 1) / world_size : 0;
    s.index = calloc(PL_MAX(s.count, (size_t)1), sizeof(*s.index));
    if (train)
        s.permutation = calloc(n, sizeof(*s.permutation));
    if (!s.index || (train && !s.permutation)) {
        pl_sampler_finish(&s);
        return pl_error_set(err, -ENOMEM, "out of memory for %zu samples", n);
    }
    *sampler = s;
    pl_sampler_set_epoch(sampler, 0);
    return 0;
}

void pl_sampler_set_epoch(struct pl_sampler *sampler, uint64_t epoch)
{
    struct pl_rng rng;

    if (!sampler->train) {
        for (size_t i = 0; i < sampler->count; i++)
            sampler->index[i] = sampler->rank + i * sampler->world_size;
        return;
    }
    pl_rng_init(&rng, sampler->seed + epoch, STREAM_SAMPLER);
    for (size_t i = 0; i < sampler->n; i++) { /* Fisher and Yates, inside out */
        size_t j = (size_t)pl_rng_below(&rng, i + 1);

        sampler->permutation[i] = sampler->permutation[j];
        sampler->permutation[j] = i;
    }
    for (size_t i = 0; i < sampler->count; i++)
        sampler->index[i] =
            sampler->permutation[(sampler->rank + i * sampler->world_size) % sampler->n];
}

void pl_sampler_finish(struct pl_sampler *sampler)
{
    free(sampler->index);
    free(sampler->permutation);
    *sampler = (struct pl_sampler){0};
}
