/* SPDX-License-Identifier: MIT */
/* Which samples a rank sees, in which order.
 *
 * Training, as torch.utils.data.distributed.DistributedSampler (doc/semantics.md 4.2): a
 * permutation of n from seed + epoch (our own generator; 0, 1, ... where not shuffled), padded by
 * repeating from its start, cyclically if need be, to world_size * ceil(n / world_size), or with
 * drop_tail cut to a multiple of world_size; of it the rank takes every world_size-th from its own
 * number on. So all ranks have the same number of samples, and some samples may be seen twice.
 *
 * Validation and test: every world_size-th without padding or order, so that no sample counts
 * twice; ranks may differ by one sample.
 *
 * A list of samples given by the user takes the place of 0, 1, ...; it is never shuffled (as
 * Lightning's DistributedSamplerWrapper). */
#ifndef PL_RUNTIME_ENGINE_DATA_SAMPLER_H
#define PL_RUNTIME_ENGINE_DATA_SAMPLER_H

#include "common/base/error.h"

#include <stdbool.h>

struct pl_sampler_options {
    size_t n; /* samples of the data set */
    unsigned rank, world_size;
    bool train;     /* as many samples on every rank */
    bool shuffle;   /* training only */
    bool drop_tail; /* training only: fewer instead of padding */
    uint64_t seed;
    const size_t *list; /* of n_list samples, each below n; NULL = all. Borrowed */
    size_t n_list;
};

struct pl_sampler {
    struct pl_sampler_options options;
    size_t total;  /* samples of all ranks before they are shared: n or n_list */
    size_t count;  /* samples of this rank in an epoch */
    size_t *index; /* they, after pl_sampler_set_epoch() */
    size_t *permutation;
    uint64_t epoch; /* that `index` is of */
};

/* -EINVAL where there are no samples in training, or the list names one that there is not; -ENOMEM.
 * Ends with epoch 0 set. */
int pl_sampler_init(struct pl_sampler *sampler,
                    const struct pl_sampler_options *options,
                    struct pl_error *err);
void pl_sampler_set_epoch(struct pl_sampler *sampler, uint64_t epoch);
void pl_sampler_finish(struct pl_sampler *sampler);

#endif
