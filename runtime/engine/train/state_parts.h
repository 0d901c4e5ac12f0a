/* SPDX-License-Identifier: MIT */
/* The shards of a training state on their way into a checkpoint's file (checkpoint_parts.h): each
 * rank writes its own part of each tensor, all ranks at the same time. If a rank cannot open the
 * file, because its node has another file system, rank 0 collects the parts and writes them. */
#ifndef PL_RUNTIME_ENGINE_TRAIN_STATE_PARTS_H
#define PL_RUNTIME_ENGINE_TRAIN_STATE_PARTS_H

#include "runtime/engine/checkpoint/checkpoint.h"
#include "runtime/engine/params/shard.h"

struct pl_state_parts {
    struct pl_comm *comm; /* of the ranks that have the state between them. Borrowed */
    char *path;           /* of the checkpoint */
    int fd;
    bool collects; /* rank 0 writes all */
    uint64_t *places;
    size_t n, next;
};

/* Call on all ranks of comm; those but 0 take temp and the n places from it
 * (pl_checkpoint_begin()). places: malloc()ed, taken over also on failure. -ENOMEM, -ECONNRESET. */
int pl_state_parts_open(struct pl_state_parts *parts,
                        struct pl_comm *comm,
                        const char *path,
                        const char *temp,
                        uint64_t *places,
                        size_t n,
                        struct pl_error *err);

/* The next tensor, of a parameter's shape: this rank has all or a part of it (param_parts.h) at
 * `own`, in device memory; with shards (of params->shards) `span` of that, else NULL. The parts of
 * a split tensor are scattered over the file: rank 0 writes it. Collective. -errno. */
int pl_state_parts_put(struct pl_state_parts *parts,
                       const struct pl_params *params,
                       const struct pl_param *param,
                       const void *own,
                       const struct pl_shard_span *span,
                       struct pl_error *err);

/* Call after the last tensor: waits for the parts of all ranks. -errno. */
int pl_state_parts_end(struct pl_state_parts *parts, struct pl_error *err);

void pl_state_parts_close(struct pl_state_parts *parts);

#endif
