/* SPDX-License-Identifier: MIT */
/* Nodes of several ranks: the ranks of a node add up in shared memory, the first of each node
 * meet over the network, and shared memory carries the sum back. */
#include "runtime/engine/comm.h"

#include <string.h>

struct hier {
    struct pl_comm base;
    struct pl_comm *local, *leaders; /* leaders is NULL but on each node's first rank */
    unsigned *world;
};

/* A failure above must reach the ranks below, and the other way round. */
static int spread(struct hier *h, int r, struct pl_comm *to, const struct pl_error *err)
{
    if (r < 0 && to)
        to->ops->abort(to, err->text);
    return r;
}

static int hier_allreduce(struct pl_comm *comm,
                          void *buf,
                          size_t count,
                          enum pl_real real,
                          double scale,
                          struct pl_error *err)
{
    struct hier *h = (struct hier *)comm;
    struct pl_error own = {0};
    int r = 0;

    err = err ? err : &own;
    if (h->local->size > 1)
        r = spread(h, pl_comm_shm_reduce(h->local, buf, count, real, err), h->leaders, err);
    if (r == 0 && h->leaders)
        r = spread(h, pl_comm_allreduce(h->leaders, buf, count, real, scale, err), h->local, err);
    if (r == 0)
        r = spread(h, pl_comm_broadcast(h->local, buf, count * pl_real_size(real), err), h->leaders,
                   err);
    return r;
}

static int hier_broadcast(struct pl_comm *comm, void *buf, size_t bytes, struct pl_error *err)
{
    struct hier *h = (struct hier *)comm;
    struct pl_error own = {0};
    int r = 0;

    err = err ? err : &own;
    if (h->leaders)
        r = spread(h, pl_comm_broadcast(h->leaders, buf, bytes, err), h->local, err);
    if (r == 0)
        r = spread(h, pl_comm_broadcast(h->local, buf, bytes, err), h->leaders, err);
    return r;
}

static int hier_barrier(struct pl_comm *comm, struct pl_error *err)
{
    struct hier *h = (struct hier *)comm;
    struct pl_error own = {0};
    int r;

    err = err ? err : &own;
    r = spread(h, pl_comm_barrier(h->local, err), h->leaders, err);
    if (r == 0 && h->leaders)
        r = spread(h, pl_comm_barrier(h->leaders, err), h->local, err);
    if (r == 0)
        r = spread(h, pl_comm_barrier(h->local, err), h->leaders, err);
    return r;
}

static int hier_alloc(struct pl_comm *comm, size_t bytes, void **ret, struct pl_error *err)
{
    struct hier *h = (struct hier *)comm;
    struct pl_error own = {0};

    err = err ? err : &own;
    return spread(h, pl_comm_alloc(h->local, bytes, ret, err), h->leaders, err);
}

static void hier_abort(struct pl_comm *comm, const char *text)
{
    struct hier *h = (struct hier *)comm;

    h->local->ops->abort(h->local, text);
    if (h->leaders)
        h->leaders->ops->abort(h->leaders, text);
}

static void hier_destroy(struct pl_comm *comm)
{
    struct hier *h = (struct hier *)comm;

    pl_comm_destroy(h->leaders);
    pl_comm_destroy(h->local);
    free(h->world);
    free(h);
}

static const struct pl_comm_ops hier_ops = {
    .name = "shm+tcp",
    .allreduce = hier_allreduce,
    .broadcast = hier_broadcast,
    .barrier = hier_barrier,
    .alloc = hier_alloc,
    .abort = hier_abort,
    .destroy = hier_destroy,
};

int pl_comm_hier_create(struct pl_comm *local,
                        struct pl_comm *leaders,
                        unsigned rank,
                        unsigned size,
                        struct pl_comm **ret,
                        struct pl_error *err)
{
    struct hier *h = calloc(1, sizeof(*h));
    unsigned *world = calloc(size, sizeof(*world));

    if (!h || !world) {
        free(h);
        free(world);
        return pl_error_set(err, -ENOMEM, "out of memory");
    }
    for (unsigned i = 0; i < size; i++)
        world[i] = i;
    *h = (struct hier){
        .base = {.ops = &hier_ops, .rank = rank, .size = size, .world = world},
        .local = local,
        .leaders = leaders,
        .world = world,
    };
    *ret = &h->base;
    return 0;
}
