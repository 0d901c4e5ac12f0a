/* SPDX-License-Identifier: MIT */
/* The ranks that have one copy of the model between them (--shard-group): all ranks, or those of a
 * node. Then each node has a copy (FSDP's hybrid: Zhao et al., VLDB 2023, arXiv 2304.11277, 3.2.2):
 * shards are scattered and gathered inside the nodes, and only the sums of the own shard go between
 * them. With tensor parallel the copies are of a rank's parts, and the world is of the ranks that
 * have the same parts. */
#ifndef PL_RUNTIME_ENGINE_REDUCE_SHARD_GROUP_H
#define PL_RUNTIME_ENGINE_REDUCE_SHARD_GROUP_H

#include "runtime/engine/comm/comm.h"

struct pl_shard_group {
    struct pl_comm *world;
    struct pl_comm *shards; /* of those that have a shard each; `world` if these are all ranks */
    struct pl_comm *copies; /* of those that have this rank's shard; NULL: it alone has it */
    char failed[PL_COMM_TEXT_MAX]; /* why this rank gave up; "": it did not */
};

/* in_node: the ranks of a node, and what a message calls these; NULL: all ranks. dev: of this rank;
 * where the GPUs of the world are joined by NCCL, so are those of its parts. -EINVAL if nodes have
 * not the same number of ranks, or one each. Collective over world, which is borrowed. Zeroed
 * memory may be finished. */
int pl_shard_group_open(struct pl_shard_group *group,
                        const char *in_node,
                        struct pl_comm *world,
                        struct pl_device *dev,
                        struct pl_error *err);
void pl_shard_group_finish(struct pl_shard_group *group);

/* As pl_comm_nccl_check(), of the parts of the world. */
int pl_shard_group_check(const struct pl_shard_group *group, struct pl_error *err);

/* Call after a failure, before finish: tells the other ranks. */
void pl_shard_group_fail(struct pl_shard_group *group, int r, const struct pl_error *err);

#endif
