/* SPDX-License-Identifier: MIT */
/* Batches: takes the samples that the sampler names from a stage's arrays or the module's own
 * source, and converts them. With prefetching, a thread of its own makes the next batches (two wait
 * at most) while the current one trains; what comes out is the same.
 *
 *     open -> begin -> next ... next (NULL) -> result -> begin ... -> finish
 *
 * The tensors of a batch are the same ones every time; only where their data lies changes, on the
 * CPU: elsewhere a batch is copied to the same place each time, when it is asked for. */
#ifndef PL_RUNTIME_ENGINE_DATA_LOADER_H
#define PL_RUNTIME_ENGINE_DATA_LOADER_H

#include "runtime/engine/data/array.h"
#include "runtime/engine/data/sampler.h"
#include "runtime/engine/device/tensor.h"

#include <pthread.h>

#define PL_LOADER_SLOTS 3 /* the batch that trains and two that wait */

struct pl_loader_options {
    struct pl_device *device; /* where batches go; NULL = the CPU. Borrowed */
    enum pl_real real;
    size_t batch_size;
    unsigned rank, world_size;
    bool train;
    bool keep_order; /* training: not shuffled */
    uint64_t seed;
    int prefetch; /* 1 yes, 0 no, -1 where this process's share is more than one CPU */
};

struct pl_loader_slot {
    void *field[PLUME_FIELDS_MAX]; /* the host's */
    size_t rows;
};

struct pl_loader {
    struct plume_data data;
    struct pl_loader_options options;
    struct pl_sampler sampler;
    uint64_t epoch;
    size_t next, batches; /* the next batch to make, of those of an epoch */
    plume_tensor fields[PLUME_FIELDS_MAX];
    size_t elements[PLUME_FIELDS_MAX]; /* of a sample */
    struct plume_batch batch;
    struct pl_loader_slot slots[PL_LOADER_SLOTS];
    size_t n_slots;
    struct pl_device *dev;
    void *on_device[PLUME_FIELDS_MAX]; /* the batch that trains; NULL on the CPU, where it stays in
                                          its slot */
    struct pl_error error;             /* why the epoch ended early */

    bool prefetch, running; /* `running`: there is a thread */
    pthread_t thread;
    pthread_mutex_t lock; /* of what follows */
    pthread_cond_t changed;
    size_t made, taken; /* batches of this epoch; slot = number % n_slots */
    bool stop, ended;   /* asked to end; no batch will follow */
};

/* Checks the arrays (borrowed: they outlive the loader). The loader may not be moved afterwards.
 * -EINVAL, -ENOMEM. */
int pl_loader_open(struct pl_loader *loader,
                   const struct plume_data *data,
                   const struct pl_loader_options *options,
                   struct pl_error *err);
void pl_loader_finish(struct pl_loader *loader);

/* Goes to batch number `first` of an epoch (0 = its start). */
void pl_loader_begin(struct pl_loader *loader, uint64_t epoch, size_t first);

/* The next batch, valid until the next call; NULL at the end of the epoch, or where the module's
 * source failed. */
const struct plume_batch *pl_loader_next(struct pl_loader *loader);

/* Whether the epoch ended as it should: 0, or what fill() failed with. */
int pl_loader_result(struct pl_loader *loader, struct pl_error *err);

/* A batch of full size whose contents mean nothing, for a dry tape. */
const struct plume_batch *pl_loader_dry(struct pl_loader *loader);

/* Batches of an epoch. */
size_t pl_loader_batches(const struct pl_loader *loader);

#endif
