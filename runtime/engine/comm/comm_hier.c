/* SPDX-License-Identifier: MIT */
/* Several ranks per node: the ranks of a node sum in shared memory, the first rank of each node
 * sums over the network, and shared memory distributes the result. */
#include "runtime/engine/comm/comm.h"

#include <string.h>

struct hier {
    struct pl_comm base;
    struct pl_comm *local, *leaders; /* leaders is NULL except on each node's first rank */
    unsigned *world_ranks, *node;    /* of each member; node: index among the leaders */
    unsigned n_nodes;
};

/* Forwards a failure between the two levels. */
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

/* Offsets for parts ordered by node: at[i] of member i; begin[node] of a node's first part; own[i]
 * of this node's members, from 0. */
static void
by_node(const struct hier *h, const size_t *offset, size_t *at, size_t *begin, size_t *own)
{
    unsigned me = h->base.rank, n_own = 0;
    size_t sum = 0;

    for (unsigned node = 0; node < h->n_nodes; node++) {
        begin[node] = sum;
        for (unsigned i = 0; i < h->base.size; i++) {
            if (h->node[i] != node)
                continue;
            at[i] = sum;
            sum += offset[i + 1] - offset[i];
            if (node == h->node[me])
                own[++n_own] = sum - begin[node];
        }
    }
    begin[h->n_nodes] = sum;
    own[0] = 0;
}

/* The parts of a node are contiguous in transit, for any numbering of its ranks. */
static int
hier_allgather(struct pl_comm *comm, void *buf, const size_t *offset, struct pl_error *err)
{
    struct hier *h = (struct hier *)comm;
    unsigned n = comm->size, me = comm->rank;
    _cleanup_free_ size_t *numbers = calloc(3 * (size_t)n + 2, sizeof(*numbers));
    _cleanup_free_ char *all = malloc(PL_MAX(offset[n], (size_t)1));
    size_t *at, *begin, *own;
    struct pl_error none = {0};
    int r = 0;

    err = err ? err : &none;
    if (!numbers || !all)
        return spread(h, pl_error_nomem(err), h->local, err);
    at = numbers;
    begin = at + n;
    own = begin + n + 1;
    by_node(h, offset, at, begin, own);
    memcpy(all + at[me], (char *)buf + offset[me], offset[me + 1] - offset[me]);
    r = spread(h, pl_comm_allgather(h->local, all + begin[h->node[me]], own, err), h->leaders, err);
    if (r == 0 && h->leaders)
        r = spread(h, pl_comm_allgather(h->leaders, all, begin, err), h->local, err);
    if (r == 0)
        r = spread(h, pl_comm_broadcast(h->local, all, offset[n], err), h->leaders, err);
    for (unsigned i = 0; r == 0 && i < n; i++)
        memcpy((char *)buf + offset[i], all + at[i], offset[i + 1] - offset[i]);
    return r;
}

/* The parts of each node, [begin[node], begin[node + 1]) in buf; false if they are not contiguous,
 * since the ranks of a node are not neighbours. */
static bool node_parts(const struct hier *h, const size_t *offset, size_t *begin)
{
    for (unsigned i = 1; i < h->base.size; i++)
        if (h->node[i] != h->node[i - 1] && h->node[i] != h->node[i - 1] + 1)
            return false;
    for (unsigned i = h->base.size; i-- > 0;)
        begin[h->node[i]] = offset[i];
    begin[h->n_nodes] = offset[h->base.size];
    return h->node[0] == 0;
}

/* Each leader gets its node's parts, or everything where they are not contiguous. */
static int scatter_over_leaders(struct hier *h,
                                void *buf,
                                const size_t *begin,
                                bool parts,
                                enum pl_real real,
                                double scale,
                                struct pl_error *err)
{
    if (parts)
        return pl_comm_reduce_scatter(h->leaders, buf, begin, real, scale, err);
    return pl_comm_allreduce(h->leaders, buf, begin[h->n_nodes], real, scale, err);
}

static int hier_reduce_scatter(struct pl_comm *comm,
                               void *buf,
                               const size_t *offset,
                               enum pl_real real,
                               double scale,
                               struct pl_error *err)
{
    struct hier *h = (struct hier *)comm;
    unsigned node = h->node[comm->rank];
    size_t size = pl_real_size(real), count = offset[comm->size], from = 0, to = count;
    _cleanup_free_ size_t *begin = calloc((size_t)h->n_nodes + 1, sizeof(*begin));
    struct pl_error own = {0};
    bool parts;
    int r = 0;

    err = err ? err : &own;
    if (!begin)
        return spread(h, pl_error_nomem(err), h->local, err);
    parts = node_parts(h, offset, begin);
    begin[h->n_nodes] = count;
    if (parts) {
        from = begin[node];
        to = begin[node + 1];
    }
    if (h->local->size > 1)
        r = spread(h, pl_comm_shm_reduce(h->local, buf, count, real, err), h->leaders, err);
    if (r == 0 && h->leaders)
        r = spread(h, scatter_over_leaders(h, buf, begin, parts, real, scale, err), h->local, err);
    if (r == 0)
        r = spread(h,
                   pl_comm_broadcast(h->local, (char *)buf + from * size, (to - from) * size, err),
                   h->leaders, err);
    return r;
}

static int hier_alloc(struct pl_comm *comm, size_t bytes, void **ret, struct pl_error *err)
{
    struct hier *h = (struct hier *)comm;
    struct pl_error own = {0};

    err = err ? err : &own;
    return spread(h, pl_comm_alloc(h->local, bytes, ret, err), h->leaders, err);
}

static struct pl_comm *hier_node(struct pl_comm *comm)
{
    return pl_comm_node(((struct hier *)comm)->local);
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
    free(h->world_ranks);
    free(h);
}

#define HIER_OPS(text)                                                                             \
    {                                                                                              \
        .name = text, .allreduce = hier_allreduce, .broadcast = hier_broadcast,                    \
        .barrier = hier_barrier, .allgather = hier_allgather,                                      \
        .reduce_scatter = hier_reduce_scatter, .alloc = hier_alloc, .node = hier_node,             \
        .abort = hier_abort, .destroy = hier_destroy,                                              \
    }

static const struct pl_comm_ops hier_ops = HIER_OPS("shm+tcp"), hier_mpi_ops = HIER_OPS("shm+mpi");

int pl_comm_hier_create(struct pl_comm *local,
                        struct pl_comm *leaders,
                        const struct pl_comm_peer *peers,
                        const unsigned *node,
                        unsigned rank,
                        unsigned size,
                        bool by_mpi,
                        struct pl_comm **ret,
                        struct pl_error *err)
{
    struct hier *h = calloc(1, sizeof(*h));
    unsigned *numbers = calloc(2 * (size_t)size, sizeof(*numbers));

    if (!h || !numbers) {
        free(h);
        free(numbers);
        return pl_error_nomem(err);
    }
    *h = (struct hier){
        .base = {.ops = &hier_ops, .rank = rank, .size = size, .world_ranks = numbers},
        .local = local,
        .leaders = leaders,
        .world_ranks = numbers,
        .node = numbers + size,
    };
    for (unsigned i = 0; i < size; i++) {
        h->world_ranks[i] = peers[i].world_rank;
        h->node[i] = node[i];
        h->n_nodes = PL_MAX(h->n_nodes, node[i] + 1);
    }
    if (by_mpi)
        h->base.ops = &hier_mpi_ops;
    *ret = &h->base;
    return 0;
}
