/* SPDX-License-Identifier: MIT */
/* The replicas of an XLA device's program in this process: each has the batches and the random
 * numbers of a rank of ddp. Replica 0 is the trainer's own lane and loader; the others have theirs
 * here, which follow. The module is one: it sees its process as a rank, and its step is called for
 * each replica. */
#ifndef PL_RUNTIME_ENGINE_TRAIN_XLA_REPLICAS_H
#define PL_RUNTIME_ENGINE_TRAIN_XLA_REPLICAS_H

#include "runtime/engine/train/stage.h"

#define PL_XLA_REPLICAS_MAX 64 /* as PL_PJRT_DEVICES_MAX */

/* Replica 1, 2, ...: of one stage. */
struct pl_xla_peer {
    struct pl_loader loader;
    struct pl_lane lane;
    const struct plume_batch *batch; /* as replica 0's running one; NULL: it has none left */
};

struct pl_xla_replicas {
    unsigned n;                  /* with replica 0; 0 = no such device */
    struct pl_xla_peer *peer[3]; /* n - 1 by stage, if it is present */
};

/* Zeroed memory may be finished. -ENOMEM, -EINVAL. */
int pl_xla_replicas_open(struct pl_xla_replicas *replicas,
                         unsigned n,
                         struct pl_stage *stages,
                         struct pl_context *ctx,
                         struct pl_error *err);
void pl_xla_replicas_finish(struct pl_xla_replicas *replicas);

/* Loads the batches that go with the stage's one. In training all replicas have as many. An error
 * is that of the loader. */
int pl_xla_replicas_follow(struct pl_xla_replicas *replicas,
                           const struct pl_stage *stage,
                           struct pl_error *err);

/* Replica k's lane, and its running batch, given that of replica 0. */
struct pl_lane *
pl_xla_replicas_lane(struct pl_xla_replicas *replicas, const struct pl_stage *stage, unsigned k);
const struct plume_batch *pl_xla_replicas_batch(const struct pl_xla_replicas *replicas,
                                                const struct pl_stage *stage,
                                                const struct plume_batch *first,
                                                unsigned k);

#endif
