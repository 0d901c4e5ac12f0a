/* SPDX-License-Identifier: MIT */
#include "runtime/engine/reduce/shard_group.h"
#include "runtime/engine/comm/comm_gpu.h"
#include "runtime/engine/comm/comm_nccl.h"

/* The same verdict on all ranks. */
static int check(struct pl_comm *world, const char *members, struct pl_error *err)
{
    const struct pl_world *place = &world->world;
    bool even, several;
    int r = pl_comm_agree(world, place->local_size * place->n_nodes == world->size, &even, err);

    if (r == 0)
        r = pl_comm_agree(world, place->local_size > 1, &several, err);
    if (r < 0)
        return r;
    if (!even)
        return pl_error_set(
            err, -EINVAL,
            "--shard-group node needs the same number of %s on each node, so that each shard "
            "has its copies: start as many, or leave it out",
            members);
    if (!several)
        return pl_error_set(err, -EINVAL,
                            "--shard-group node needs several %s on each node, which share the "
                            "model: start more, or leave it out",
                            members);
    return 0;
}

int pl_shard_group_open(struct pl_shard_group *group,
                        const char *in_node,
                        struct pl_comm *world,
                        struct pl_device *dev,
                        struct pl_error *err)
{
    const struct pl_world *place = &world->world;
    int r;

    *group = (struct pl_shard_group){.world = world, .shards = world};
    if (!in_node || world->size == 1)
        return 0;
    r = check(world, in_node, err);
    if (r < 0 || place->n_nodes == 1)
        return r;
    group->shards = NULL;
    r = pl_comm_split(world, (int)place->node, (int)world->rank, &group->shards, err);
    if (r == 0)
        r = pl_comm_split(world, (int)group->shards->rank, (int)world->rank, &group->copies, err);
    if (r == 0 && world->gpu)
        r = pl_comm_gpu_create(group->shards, dev, true, err);
    if (r == 0 && world->gpu)
        r = pl_comm_gpu_create(group->copies, dev, true, err);
    if (r < 0)
        return pl_error_wrap(err, r, "while joining the ranks of a node");
    group->shards->ordered = group->copies->ordered = world->ordered;
    return 0;
}

static bool is_split(const struct pl_shard_group *group)
{
    return group->world && group->shards != group->world;
}

static void close_comm(const struct pl_shard_group *group, struct pl_comm *comm)
{
    if (comm)
        pl_comm_gpu_destroy(comm, group->failed[0] ? group->failed : NULL);
    pl_comm_destroy(comm);
}

void pl_shard_group_finish(struct pl_shard_group *group)
{
    if (is_split(group)) {
        close_comm(group, group->copies);
        close_comm(group, group->shards);
    }
    *group = (struct pl_shard_group){0};
}

int pl_shard_group_check(const struct pl_shard_group *group, struct pl_error *err)
{
    int r = 0;

    if (is_split(group) && group->shards->gpu)
        r = pl_comm_nccl_check(group->shards->gpu, err);
    if (r == 0 && is_split(group) && group->copies->gpu)
        r = pl_comm_nccl_check(group->copies->gpu, err);
    return r;
}

void pl_shard_group_fail(struct pl_shard_group *group, int r, const struct pl_error *err)
{
    struct pl_comm *list[] = {group->world, group->shards, group->copies};
    char *text = group->failed;

    if (!is_split(group))
        return;
    if (r == -ECONNRESET)
        snprintf(text, sizeof(group->failed), "%s", pl_error_text(err));
    else
        snprintf(text, sizeof(group->failed), "rank %u gave up: %s",
                 group->world->world_ranks[group->world->rank], pl_error_text(err));
    for (int i = 0; i < 3; i++) {
        if (list[i])
            list[i]->ops->abort(list[i], text);
        if (list[i] && list[i]->gpu)
            list[i]->gpu->ops->abort(list[i]->gpu, text);
    }
}
