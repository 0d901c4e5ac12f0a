/* SPDX-License-Identifier: MIT */
/* Copies of the parameters and buffers, for parts of a batch on devices of their own (parts.h). The
 * first device has the originals, and only these are trained. Parts on that device (on the CPU: all
 * parts) have no copy. A copy is updated before a part reads it, and only if the originals have
 * changed since. */
#ifndef PL_RUNTIME_ENGINE_PARAMS_REPLICAS_H
#define PL_RUNTIME_ENGINE_PARAMS_REPLICAS_H

#include "runtime/engine/params/params.h"

/* The copy of one part. */
struct pl_replica {
    struct pl_device *dev;
    void *values, *buffers; /* its memory; NULL until needed */
    void **copies;          /* for pl_tape's copies; NULL without a copy */
    uint64_t values_version, buffers_version;
};

struct pl_replicas {
    struct pl_params *params;
    struct pl_replica *list; /* by part; the first has the originals */
    unsigned n;
    void *packed; /* on the first device: all buffers, one after the other */
    size_t buffers_bytes;
    uint64_t packed_version;
};

/* For n parts. Part i is on devices[i], the parameters on devices[0]; NULL: all on one. Everything
 * is borrowed, devices[] itself only for this call. -ENOMEM. */
int pl_replicas_init(struct pl_replicas *replicas,
                     struct pl_params *params,
                     struct pl_device *const *devices,
                     unsigned n,
                     struct pl_error *err);
/* Zeroed memory is valid. */
void pl_replicas_finish(struct pl_replicas *replicas);

/* True if a part is on a device of its own. */
static inline bool pl_replicas_elsewhere(const struct pl_replicas *replicas, unsigned part)
{
    return replicas->list[part].dev != replicas->params->dev;
}

/* Updates the copies of the first n parts from the originals. Parameters must be laid out. -ENOMEM.
 */
int pl_replicas_refresh(struct pl_replicas *replicas, unsigned n, struct pl_error *err);

/* Waits for all devices but the first; returns the error of the lowest that has failed: -EIO. */
int pl_replicas_sync(struct pl_replicas *replicas, struct pl_error *err);

#endif
