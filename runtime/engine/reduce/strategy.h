/* SPDX-License-Identifier: MIT */
/* The differences between the strategies (doc/semantics.md 4.1). All of them train through one step
 * and one reducer; a strategy only sets these fields.
 *
 *            processes       loader's batch     gradient                       lr
 *   single   1               whole              -                              as given
 *   dp       1, k devices    split over them    of what training_step_end or   as given
 *                                               the mean makes of the parts
 *   ddp      1 a device      each its own       mean over ranks, in buckets    as given
 *   ddp2     1 a node,       a node's, split    as dp, then mean over nodes    as given
 *            k devices       over its devices
 *   horovod  1 a device      each its own       mean over ranks, fused         x world size
 *   sharded  1 a device      each its own       as ddp, each rank its shard    as given
 *   pipeline 1 a device,     one a pipeline     sum over microbatches, then    as given
 *            1 a stage                          mean over pipelines
 *
 * PL_STRATEGY_AUTO: single for one rank with one device, else ddp, with one device per rank. */
#ifndef PL_RUNTIME_ENGINE_REDUCE_STRATEGY_H
#define PL_RUNTIME_ENGINE_REDUCE_STRATEGY_H

#include "runtime/engine/comm/comm.h"
#include "runtime/engine/config/train_options.h"

struct pl_strategy {
    enum pl_strategy_kind kind; /* never PL_STRATEGY_AUTO */
    unsigned devices;           /* of this process, which share a batch; 1 except for dp and ddp2 */
    bool reduces;               /* averages gradients over the ranks */
    enum pl_shard_kind shard;   /* sharded: what each rank has its shard of; else PL_SHARD_NONE */
    unsigned stages;            /* of a pipeline; 0: none. World size / stages pipelines */
    unsigned tensor_parallel;   /* ranks that share a copy of the model; 0: none */
    bool fused;                 /* reduces after the backward pass, not in buckets beside it */
    bool uneven_inputs;         /* ranks may run out of batches at different times */
    double lr_scale;            /* factor of learning rates */
    uint64_t average_every;     /* ranks step alone, and average as often (average.h); 0 = never */
};

/* Chooses the strategy that the options and the ranks allow. -EINVAL names the conflict and what to
 * do. */
int pl_strategy_choose(const struct pl_train_options *options,
                       const struct pl_world *place,
                       unsigned world_size,
                       struct pl_strategy *ret,
                       struct pl_error *err);

/* "auto", "single", "dp", "ddp", "ddp2", "horovod", "sharded", "pipeline"; ends with NULL, by enum
 * pl_strategy_kind. */
extern const char *const pl_strategy_names[];

/* "os", "grad", "param"; ends with NULL, from PL_SHARD_OS on. */
extern const char *const pl_shard_names[];

/* "1f1b", "gpipe"; ends with NULL, by enum pl_pipe_order. */
extern const char *const pl_pipe_order_names[];

#endif
