/* SPDX-License-Identifier: MIT */
/* Copies of the parameters and buffers, for the parts of a batch that are on devices of their own
 * (parts.h). The first device has the originals, which alone are trained; parts that share it, as
 * all do on the CPU, have no copy. Copies are made when a part is about to read them, and only
 * where the originals have changed since. */
#ifndef PL_RUNTIME_ENGINE_PARAMS_REPLICAS_H
#define PL_RUNTIME_ENGINE_PARAMS_REPLICAS_H

#include "runtime/engine/params/params.h"

/* Of one part. */
struct pl_replica {
    struct pl_device *dev;
    void *values, *buffers; /* there; NULL before they are needed */
    void **copies;          /* as pl_tape's; NULL where there are none */
    uint64_t values_version, buffers_version;
};

struct pl_replicas {
    struct pl_params *params;
    struct pl_replica *list; /* by part; the first is where the originals are */
    unsigned n;
    void *packed; /* on the first device: all buffers, one behind the other */
    size_t buffers_bytes;
    uint64_t packed_version;
};

/* For n parts. devices[i] has part i, devices[0] is that of the parameters; NULL: it has all. All
 * is borrowed, devices[] itself but for this call. -ENOMEM. */
int pl_replicas_init(struct pl_replicas *replicas,
                     struct pl_params *params,
                     struct pl_device *const *devices,
                     unsigned n,
                     struct pl_error *err);
/* Zeroed memory is fine. */
void pl_replicas_finish(struct pl_replicas *replicas);

/* Whether a part is on a device of its own. */
static inline bool pl_replicas_elsewhere(const struct pl_replicas *replicas, unsigned part)
{
    return replicas->list[part].dev != replicas->params->dev;
}

/* Makes the copies of the first n parts what the originals are. Once parameters are laid out.
 * -ENOMEM. */
int pl_replicas_refresh(struct pl_replicas *replicas, unsigned n, struct pl_error *err);

/* Waits for the devices behind the first; the lowest that has failed tells: -EIO. */
int pl_replicas_sync(struct pl_replicas *replicas, struct pl_error *err);

#endif
