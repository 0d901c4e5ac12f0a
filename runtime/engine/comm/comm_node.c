/* SPDX-License-Identifier: MIT */
/* The ranks of a node, and their common memory. */
#include "runtime/engine/comm/comm.h"

/* Tells the ranks of other nodes. */
static int spread(struct pl_comm *comm, int r, const struct pl_error *err)
{
    if (r < 0 && pl_comm_node(comm) != comm)
        comm->ops->abort(comm, err->text);
    return r;
}

struct pl_comm *pl_comm_node(struct pl_comm *comm)
{
    return comm->ops->node ? comm->ops->node(comm) : NULL;
}

int pl_comm_alloc_common(struct pl_comm *comm, size_t bytes, void **ret, struct pl_error *err)
{
    struct pl_comm *node = pl_comm_node(comm);
    struct pl_error own = {0};

    err = err ? err : &own;
    return spread(comm, node->ops->alloc_common(node, bytes, ret, err), err);
}

void pl_comm_node_post(struct pl_comm *comm)
{
    comm->ops->post(comm);
}

uint32_t pl_comm_node_posted(struct pl_comm *comm)
{
    return comm->ops->posted(comm);
}

void *pl_comm_of_peer(struct pl_comm *comm, const void *own, unsigned peer)
{
    struct pl_comm *node = pl_comm_node(comm);

    return node->ops->of_peer(node, own, peer);
}
