/* SPDX-License-Identifier: MIT */
/* Batches: takes the samples that the sampler names from a stage's arrays and converts them. */
#ifndef PL_RUNTIME_ENGINE_LOADER_H
#define PL_RUNTIME_ENGINE_LOADER_H

#include "runtime/engine/npy.h"
#include "runtime/engine/sampler.h"
#include "runtime/engine/tensor.h"

struct pl_loader {
    struct plume_data data;
    struct pl_sampler sampler;
    size_t batch_size;
    size_t next; /* sample of the sampler's order */
    plume_tensor fields[PLUME_FIELDS_MAX];
    struct plume_batch batch;
};

/* Checks the arrays (borrowed: they outlive the loader). -EINVAL. */
int pl_loader_init(struct pl_loader *loader,
                   const struct plume_data *data,
                   enum pl_real real,
                   size_t batch_size,
                   unsigned rank,
                   unsigned world_size,
                   bool train,
                   uint64_t seed,
                   struct pl_error *err);
void pl_loader_finish(struct pl_loader *loader);

/* Goes to the start of an epoch. */
void pl_loader_begin(struct pl_loader *loader, uint64_t epoch);

/* The next batch, valid until the next call; NULL at the end of the epoch. */
const struct plume_batch *pl_loader_next(struct pl_loader *loader);

/* A batch of full size whose contents mean nothing, for a dry tape. */
const struct plume_batch *pl_loader_dry(struct pl_loader *loader);

/* Batches of an epoch. */
size_t pl_loader_batches(const struct pl_loader *loader);

#endif
