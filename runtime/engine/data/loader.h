/* SPDX-License-Identifier: MIT */
/* Batches: takes the samples that the sampler names from a stage's arrays or the module's own
 * source, and converts them. With prefetching a thread makes the next batches (at most two wait)
 * while the current one trains; the results are the same.
 *
 *     open -> begin -> next ... next (NULL) -> result -> begin ... -> finish
 *
 * The batch tensors are always the same structs. On the CPU their data pointers change; on other
 * devices each batch is copied to the same place when it is asked for. */
#ifndef PL_RUNTIME_ENGINE_DATA_LOADER_H
#define PL_RUNTIME_ENGINE_DATA_LOADER_H

#include "runtime/engine/data/array.h"
#include "runtime/engine/data/sampler.h"
#include "runtime/engine/device/tensor.h"

#include <pthread.h>

#define PL_LOADER_SLOTS 3 /* the batch that trains and two that wait */

struct pl_loader_options {
    struct pl_device *device; /* destination of batches; NULL = the CPU. Borrowed */
    enum pl_real real;
    size_t batch_size;
    unsigned rank, world_size;
    bool train;
    bool keep_order; /* training: not shuffled */
    uint64_t seed;
    int prefetch; /* 1 yes, 0 no, -1 if this process's share is more than one CPU */
};

struct pl_loader_slot {
    void *field[PLUME_FIELDS_MAX]; /* host memory */
    size_t rows;
};

struct pl_loader {
    struct plume_data data;
    struct pl_loader_options options;
    struct pl_sampler sampler;
    uint64_t epoch;
    size_t next, batches; /* the next batch to make; batches per epoch */
    plume_tensor fields[PLUME_FIELDS_MAX];
    size_t elements[PLUME_FIELDS_MAX]; /* per sample */
    struct plume_batch batch;
    struct pl_loader_slot slots[PL_LOADER_SLOTS];
    size_t n_slots;
    struct pl_device *dev;
    void *on_device[PLUME_FIELDS_MAX]; /* the batch that trains; NULL on the CPU, which uses the
                                          slot itself */
    struct pl_error error;             /* why the epoch ended early */

    bool prefetch, running; /* `running`: the thread exists */
    pthread_t thread;
    pthread_mutex_t lock; /* protects the fields below */
    pthread_cond_t changed;
    size_t made, taken; /* batches of this epoch; slot = number % n_slots */
    bool stop, ended;   /* asked to end; no batch will follow */
};

/* Checks the arrays (borrowed: they outlive the loader). The loader must not move afterwards.
 * -EINVAL, -ENOMEM. */
int pl_loader_open(struct pl_loader *loader,
                   const struct plume_data *data,
                   const struct pl_loader_options *options,
                   struct pl_error *err);
void pl_loader_finish(struct pl_loader *loader);

/* Starts an epoch at batch number `first` (0 = its start). */
void pl_loader_begin(struct pl_loader *loader, uint64_t epoch, size_t first);

/* The next batch, valid until the next call; NULL at the end of the epoch, or if the module's
 * source failed. */
const struct plume_batch *pl_loader_next(struct pl_loader *loader);

/* Returns 0 if the epoch ended normally, else the error of fill(). */
int pl_loader_result(struct pl_loader *loader, struct pl_error *err);

/* A batch of full size with undefined contents, for tracing a tape without data. */
const struct plume_batch *pl_loader_dry(struct pl_loader *loader);

/* The number of batches per epoch. */
size_t pl_loader_batches(const struct pl_loader *loader);

#endif
