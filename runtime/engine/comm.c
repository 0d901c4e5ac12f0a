/* SPDX-License-Identifier: MIT */
/* The table's front, the communicator of one, and the rendezvous. */
#include "runtime/engine/comm.h"
#include "common/base/fs.h"
#include "common/base/parse.h"
#include "runtime/engine/sha256.h"

#include <string.h>
#include <sys/random.h>

#define EXCHANGE_TIMEOUT_MS 120000 /* a node may come up late; the hub ends the job before that */
#define KEY_BYTES 32

int pl_comm_allreduce(struct pl_comm *comm,
                      void *buf,
                      size_t count,
                      enum pl_real real,
                      double scale,
                      struct pl_error *err)
{
    return comm->ops->allreduce(comm, buf, count, real, scale, err);
}

int pl_comm_broadcast(struct pl_comm *comm, void *buf, size_t bytes, struct pl_error *err)
{
    return comm->ops->broadcast(comm, buf, bytes, err);
}

int pl_comm_barrier(struct pl_comm *comm, struct pl_error *err)
{
    return comm->ops->barrier(comm, err);
}

int pl_comm_alloc(struct pl_comm *comm, size_t bytes, void **ret, struct pl_error *err)
{
    return comm->ops->alloc(comm, bytes, ret, err);
}

void pl_comm_abort(struct pl_comm *comm, const char *text)
{
    char full[PL_COMM_TEXT_MAX];

    if (!comm)
        return;
    snprintf(full, sizeof(full), "rank %u gave up: %s", comm->world[comm->rank], text);
    comm->ops->abort(comm, full);
}

void pl_comm_destroy(struct pl_comm *comm)
{
    if (comm)
        comm->ops->destroy(comm);
}

/* self */

struct self {
    struct pl_comm base;
    void **blocks;
    size_t n;
};

static const unsigned self_world[] = {0};

static int self_allreduce(struct pl_comm *comm,
                          void *buf,
                          size_t count,
                          enum pl_real real,
                          double scale,
                          struct pl_error *err)
{
    if (scale == 1)
        return 0;
    for (size_t i = 0; i < count; i++) {
        if (real == PL_REAL_F64)
            ((double *)buf)[i] *= scale;
        else
            ((float *)buf)[i] *= (float)scale;
    }
    return 0;
}

static int self_broadcast(struct pl_comm *comm, void *buf, size_t bytes, struct pl_error *err)
{
    return 0;
}

static int self_barrier(struct pl_comm *comm, struct pl_error *err)
{
    return 0;
}

static int self_alloc(struct pl_comm *comm, size_t bytes, void **ret, struct pl_error *err)
{
    struct self *self = (struct self *)comm;
    void **blocks = reallocarray(self->blocks, self->n + 1, sizeof(*blocks));
    void *p;

    if (!blocks)
        return pl_error_set(err, -ENOMEM, "out of memory");
    self->blocks = blocks;
    if (posix_memalign(&p, 64, PL_MAX(bytes, (size_t)64)) != 0)
        return pl_error_set(err, -ENOMEM, "out of memory for %zu bytes", bytes);
    memset(p, 0, bytes);
    self->blocks[self->n++] = p;
    *ret = p;
    return 0;
}

static void self_abort(struct pl_comm *comm, const char *text) {}

static void self_destroy(struct pl_comm *comm)
{
    struct self *self = (struct self *)comm;

    for (size_t i = 0; i < self->n; i++)
        free(self->blocks[i]);
    free(self->blocks);
    free(self);
}

static const struct pl_comm_ops self_ops = {
    .name = "self",
    .allreduce = self_allreduce,
    .broadcast = self_broadcast,
    .barrier = self_barrier,
    .alloc = self_alloc,
    .abort = self_abort,
    .destroy = self_destroy,
};

static int self_create(struct pl_comm **ret, struct pl_error *err)
{
    struct self *self = calloc(1, sizeof(*self));

    if (!self)
        return pl_error_set(err, -ENOMEM, "out of memory");
    self->base = (struct pl_comm){.ops = &self_ops, .size = 1, .world = self_world};
    *ret = &self->base;
    return 0;
}

/* rendezvous */

static int env_number(const char *name, int64_t max, unsigned *ret, struct pl_error *err)
{
    const char *text = getenv(name);
    int64_t value;
    int r;

    if (!text)
        return pl_error_set(err, -EINVAL,
                            "RANK is set but %s is not: start the ranks with plrun, or with "
                            "pltrain --processes",
                            name);
    r = pl_parse_int(text, 0, max, &value, err);
    if (r < 0)
        return pl_error_wrap(err, r, "environment variable %s", name);
    *ret = (unsigned)value;
    return 0;
}

int pl_world_from_env(struct pl_world *ret, struct pl_error *err)
{
    const int64_t max = 1 << 20;
    struct pl_world w = {.size = 1, .local_size = 1, .address = getenv("PLUME_NODE_ADDR")};
    int r;

    if (!w.address || !*w.address)
        w.address = "127.0.0.1";
    if (getenv("RANK")) {
        if ((r = env_number("RANK", max, &w.rank, err)) < 0 ||
            (r = env_number("WORLD_SIZE", max, &w.size, err)) < 0)
            return r;
        if (w.size > 1 && ((r = env_number("LOCAL_RANK", max, &w.local_rank, err)) < 0 ||
                           (r = env_number("LOCAL_WORLD_SIZE", max, &w.local_size, err)) < 0 ||
                           (r = env_number("NODE_RANK", max, &w.node, err)) < 0))
            return r;
        if (w.rank >= w.size || w.local_rank >= w.local_size || w.local_size > w.size)
            return pl_error_set(err, -EINVAL,
                                "RANK %u of WORLD_SIZE %u, LOCAL_RANK %u of LOCAL_WORLD_SIZE %u "
                                "make no sense",
                                w.rank, w.size, w.local_rank, w.local_size);
    }
    *ret = w;
    return 0;
}

/* What a rank tells the others: one line of words. */
struct card {
    unsigned node;
    struct pl_comm_peer peer;
    char key[2 * KEY_BYTES + 1];
};

static int parse_card(const char *text, unsigned rank, struct card *ret, struct pl_error *err)
{
    struct card c = {.peer.world_rank = rank};

    if (sscanf(text, "plume-1 node=%u pid=%d fd=%d addr=%255s port=%u key=%64s", &c.node,
               &c.peer.pid, &c.peer.fd, c.peer.address, &c.peer.port, c.key) != 6)
        return pl_error_set(err, -EPROTO,
                            "rank %u speaks another version of the engine: start the same pltrain "
                            "everywhere",
                            rank);
    *ret = c;
    return 0;
}

/* The first rank of each node, and this node's ranks. */
struct groups {
    struct pl_comm_peer *local, *leaders;
    unsigned n_local, n_leaders, local_rank, leader_rank;
    bool is_leader;
};

static int sort_out(
    const struct pl_world *world, char **cards, struct groups *g, char *key, struct pl_error *err)
{
    _cleanup_free_ unsigned *nodes = calloc(world->size, sizeof(*nodes));

    if (!nodes)
        return pl_error_set(err, -ENOMEM, "out of memory");
    for (unsigned i = 0; i < world->size; i++) {
        struct card card = {0};
        bool known = false;
        int r = parse_card(cards[i], i, &card, err);

        if (r < 0)
            return r;
        if (i == 0)
            memcpy(key, card.key, sizeof(card.key));
        for (unsigned k = 0; k < g->n_leaders && !known; k++)
            known = nodes[k] == card.node;
        if (!known) {
            nodes[g->n_leaders] = card.node;
            if (i == world->rank) {
                g->is_leader = true;
                g->leader_rank = g->n_leaders;
            }
            g->leaders[g->n_leaders++] = card.peer;
        }
        if (card.node == world->node) {
            if (i == world->rank)
                g->local_rank = g->n_local;
            g->local[g->n_local++] = card.peer;
        }
    }
    if (g->n_local != world->local_size || g->is_leader != (world->local_rank == 0))
        return pl_error_set(err, -EINVAL,
                            "rank %u is told to be %u of %u on its node, but %u ranks are there",
                            world->rank, world->local_rank, world->local_size, g->n_local);
    return 0;
}

static int connect_groups(const struct pl_world *world,
                          const struct groups *g,
                          int control_fd,
                          int *listen_fd,
                          const char *key,
                          struct pl_comm **ret,
                          struct pl_error *err)
{
    _cleanup_(pl_comm_destroyp) struct pl_comm *local = NULL, *leaders = NULL;
    int r;

    if (g->n_local > 1) {
        r = pl_comm_shm_create(g->local, g->n_local, g->local_rank, control_fd, &local, err);
        if (r < 0)
            return r;
    }
    if (g->n_leaders > 1 && g->is_leader) {
        r = pl_comm_tcp_create(g->leaders, g->n_leaders, g->leader_rank, PL_TAKE_FD(*listen_fd),
                               key, strlen(key), &leaders, err);
        if (r < 0) {
            if (local)
                local->ops->abort(local, pl_error_text(err));
            return r;
        }
    }
    if (g->n_leaders == 1)
        *ret = PL_TAKE(local);
    else if (g->n_leaders == world->size)
        *ret = PL_TAKE(leaders);
    else {
        /* A node with one rank has no shared memory to make. */
        if (!local && (r = self_create(&local, err)) < 0)
            return r;
        r = pl_comm_hier_create(local, leaders, world->rank, world->size, ret, err);
        if (r < 0)
            return r;
        local = leaders = NULL;
    }
    return 0;
}

/* Rank 0's is the run's; the others have none to tell. */
static int make_key(unsigned rank, char *key, struct pl_error *err)
{
    unsigned char secret[KEY_BYTES];

    if (rank) {
        memcpy(key, "-", 2);
        return 0;
    }
    if (getrandom(secret, sizeof(secret), 0) != sizeof(secret))
        return pl_error_errno(err, errno, "cannot get random bytes");
    for (size_t i = 0; i < sizeof(secret); i++)
        snprintf(key + 2 * i, 3, "%02x", secret[i]);
    return 0;
}

int pl_comm_create(const struct pl_world *world,
                   struct pl_rank_link *link,
                   struct pl_comm **ret,
                   struct pl_error *err)
{
    _cleanup_close_ int control_fd = -EBADF, listen_fd = -EBADF;
    _cleanup_free_ struct pl_comm_peer *local = NULL, *leaders = NULL;
    _cleanup_free_ char *card = NULL, **cards = NULL;
    char key[2 * KEY_BYTES + 1];
    struct groups groups = {0};
    unsigned port = 0;
    size_t n;
    int r;

    if (world->size == 1)
        return self_create(ret, err);
    if (!link)
        return pl_error_set(err, -EINVAL,
                            "WORLD_SIZE is %u but PLUME_SOCKET is not set: start the ranks with "
                            "plrun, or with pltrain --processes",
                            world->size);
    if (world->local_rank == 0) {
        if (world->local_size > 1 && (r = pl_comm_shm_control(&control_fd, err)) < 0)
            return r;
        if (world->local_size < world->size &&
            (r = pl_comm_tcp_listen(world->address, &listen_fd, &port, err)) < 0)
            return r;
    }
    r = make_key(world->rank, key, err);
    if (r < 0)
        return r;
    card = pl_strf("plume-1 node=%u pid=%d fd=%d addr=%s port=%u key=%s", world->node,
                   (int)getpid(), control_fd, world->address, port, key);
    local = calloc(world->size, sizeof(*local));
    leaders = calloc(world->size, sizeof(*leaders));
    if (!card || !local || !leaders)
        return pl_error_set(err, -ENOMEM, "out of memory");
    r = pl_rank_link_exchange(link, "engine", card, EXCHANGE_TIMEOUT_MS, &cards, &n, err);
    if (r < 0)
        return pl_error_wrap(err, r, "while looking for the other ranks");
    if (n != world->size)
        return pl_error_set(err, -EPROTO, "the node daemon knows %zu ranks, not %u", n,
                            world->size);
    groups.local = local;
    groups.leaders = leaders;
    r = sort_out(world, cards, &groups, key, err);
    if (r < 0)
        return r;
    return connect_groups(world, &groups, control_fd, &listen_fd, key, ret, err);
}
