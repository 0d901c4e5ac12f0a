/* SPDX-License-Identifier: MIT */
/* Which samples a rank sees, in which order.
 *
 * Training, as torch.utils.data.distributed.DistributedSampler (checklist 4.2): a permutation of n
 * from seed + epoch (our own generator), padded by repeating from its start, cyclically if need be,
 * to world_size * ceil(n / world_size), of which the rank takes every world_size-th from its own
 * number on. So all ranks have the same number of samples, and some samples may be seen twice.
 *
 * Validation and test: every world_size-th without padding or order, so that no sample counts
 * twice; ranks may differ by one sample. */
#ifndef PL_RUNTIME_ENGINE_SAMPLER_H
#define PL_RUNTIME_ENGINE_SAMPLER_H

#include "common/base/error.h"

#include <stdbool.h>

struct pl_sampler {
    size_t n; /* samples of the data set */
    unsigned rank, world_size;
    bool train; /* shuffled and padded */
    uint64_t seed;
    size_t count;  /* samples of this rank in an epoch */
    size_t *index; /* they, after pl_sampler_set_epoch() */
    size_t *permutation;
};

/* -EINVAL where n is 0 in training, -ENOMEM. Ends with epoch 0 set. */
int pl_sampler_init(struct pl_sampler *sampler,
                    size_t n,
                    unsigned rank,
                    unsigned world_size,
                    bool train,
                    uint64_t seed,
                    struct pl_error *err);
void pl_sampler_set_epoch(struct pl_sampler *sampler, uint64_t epoch);
void pl_sampler_finish(struct pl_sampler *sampler);

#endif
