/* SPDX-License-Identifier: MIT */
/* The samples that a rank sees, and their order.
 *
 * Training, as torch.utils.data.distributed.DistributedSampler (doc/semantics.md 4.2): a
 * permutation of n from seed + epoch (our own generator; 0, 1, ... if not shuffled). It is padded
 * to world_size * ceil(n / world_size) by repeating it from its start, or with drop_tail cut to a
 * multiple of world_size. The rank takes every world_size-th element, beginning with its own
 * number. So all ranks have the same number of samples, and some samples may be seen twice.
 *
 * Validation and test: every world_size-th sample in order, without padding, so that no sample
 * counts twice; ranks may differ by one sample.
 *
 * The user's own list of samples replaces 0, 1, ...; it is never shuffled (as by Lightning's
 * DistributedSamplerWrapper). */
#ifndef PL_RUNTIME_ENGINE_DATA_SAMPLER_H
#define PL_RUNTIME_ENGINE_DATA_SAMPLER_H

#include "common/base/error.h"

#include <stdbool.h>

struct pl_sampler_options {
    size_t n; /* samples of the data set */
    unsigned rank, world_size;
    bool train;     /* the same number of samples on every rank */
    bool shuffle;   /* training only */
    bool drop_tail; /* training only: cut instead of padding */
    uint64_t seed;
    const size_t *list; /* of n_list samples, each below n; NULL = all. Borrowed */
    size_t n_list;
};

struct pl_sampler {
    struct pl_sampler_options options;
    size_t total;  /* samples before they are divided among ranks: n or n_list */
    size_t count;  /* samples of this rank per epoch */
    size_t *index; /* its samples, after pl_sampler_set_epoch() */
    size_t *permutation;
    uint64_t epoch; /* the epoch of `index` */
};

/* -EINVAL if training has no samples or the list has an invalid index; -ENOMEM. Sets epoch 0. */
int pl_sampler_init(struct pl_sampler *sampler,
                    const struct pl_sampler_options *options,
                    struct pl_error *err);
void pl_sampler_set_epoch(struct pl_sampler *sampler, uint64_t epoch);
void pl_sampler_finish(struct pl_sampler *sampler);

#endif
