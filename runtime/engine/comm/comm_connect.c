/* SPDX-License-Identifier: MIT */
/* The rendezvous of all ranks, or of a part of them.
 *
 * Each rank describes its endpoint in a line of text: its node and its address. All ranks get all
 * lines: through the node daemon, through MPI if that started the job, through the module's own
 * rendezvous (comm_store.c), or, for a part of a communicator, through that communicator. The lines
 * determine the groups: the ranks of this node, and the first rank of each node. */
#include "common/base/env.h"
#include "common/base/fs.h"
#include "common/base/log.h"
#include "common/base/parse.h"
#include "common/proto/rank/rank_link.h"
#include "runtime/engine/comm/comm.h"
#include "runtime/engine/comm/comm_mpi.h"
#include "runtime/engine/comm/comm_store.h"

#include <string.h>
#include <sys/random.h>

#define EXCHANGE_TIMEOUT_MS 120000 /* a node may start late; the hub ends the job before that */
#define KEY_BYTES 32
#define ENDPOINT_MAX 512

static int env_number(enum pl_env_id id, int64_t max, unsigned *ret, struct pl_error *err)
{
    const char *text = pl_env(id), *name = pl_env_var(id)->name;
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

/* A rank has started a step of several tasks by srun without plrun: all its tasks have inherited
 * that rank's number, and each of them would train alone. Of one task this is no harm, and MPI
 * counts its processes itself. The plugin lets no step inherit a rank, and names the socket of one
 * in a heterogeneous job by its component, which is not in SLURM_JOB_ID. */
static int check_inherited(struct pl_error *err)
{
    const char *runtime = pl_env(PL_ENV_PLUME_RUNTIME);
    const char *socket = pl_env(PL_ENV_PLUME_SOCKET), *job = pl_env(PL_ENV_SLURM_JOB_ID);
    const char *step = pl_env(PL_ENV_SLURM_STEP_ID), *tasks = pl_env(PL_ENV_SLURM_STEP_NUM_TASKS);
    int64_t n;

    if (!runtime || strcmp(runtime, "plugin") == 0 || !socket || !job || !step || !tasks ||
        pl_mpi_launched() || pl_parse_int(tasks, 2, INT64_MAX, &n, NULL) < 0 ||
        pl_rank_socket_is_of(socket, job, step))
        return 0;
    return pl_error_set(
        err, -EINVAL,
        "RANK is set for the %lld tasks of step %s.%s, which plrun has not started: start them "
        "with srun plrun pltrain, or unset PLUME_SOCKET if each has a RANK of its own",
        (long long)n, job, step);
}

int pl_world_from_env(struct pl_world *ret, struct pl_error *err)
{
    const int64_t max = 1 << 20;
    struct pl_world w = {.size = 1, .local_size = 1, .n_nodes = 1};
    const char *address = pl_env(PL_ENV_PLUME_NODE_ADDR);
    int r;

    if (!address || !*address)
        address = "127.0.0.1";
    if (strlen(address) >= sizeof(w.address))
        return pl_error_set(err, -EINVAL, "PLUME_NODE_ADDR is longer than a host name");
    memcpy(w.address, address, strlen(address) + 1);
    if (pl_env(PL_ENV_RANK)) {
        if ((r = check_inherited(err)) < 0 ||
            (r = env_number(PL_ENV_RANK, max, &w.rank, err)) < 0 ||
            (r = env_number(PL_ENV_WORLD_SIZE, max, &w.size, err)) < 0)
            return r;
        if (w.size > 1 && ((r = env_number(PL_ENV_LOCAL_RANK, max, &w.local_rank, err)) < 0 ||
                           (r = env_number(PL_ENV_LOCAL_WORLD_SIZE, max, &w.local_size, err)) < 0 ||
                           (r = env_number(PL_ENV_NODE_RANK, max, &w.node, err)) < 0))
            return r;
        if (w.rank >= w.size || w.local_rank >= w.local_size || w.local_size > w.size)
            return pl_error_set(err, -EINVAL,
                                "RANK %u of WORLD_SIZE %u, LOCAL_RANK %u of LOCAL_WORLD_SIZE %u "
                                "are not consistent",
                                w.rank, w.size, w.local_rank, w.local_size);
    }
    *ret = w;
    return 0;
}

int pl_world_open(struct pl_world *ret, enum pl_comm_kind kind, struct pl_error *err)
{
    bool launched = pl_mpi_launched(), ours = pl_env(PL_ENV_RANK) != NULL;
    struct pl_world w, seen;
    int r = pl_world_from_env(&w, err);

    if (r < 0)
        return r;
    w.kind = kind;
    /* Ranks of one node that plrun or pltrain has started need no MPI. */
    if (kind != PL_COMM_MPI && !(kind == PL_COMM_AUTO && launched && w.local_size < w.size) &&
        !(launched && !ours)) {
        *ret = w;
        return 0;
    }
    r = pl_mpi_open(&w.mpi, &seen, err);
    if (r == -ENOTSUP && kind == PL_COMM_AUTO && ours) {
        pl_log_debug("comm", "%s", pl_error_text(err));
        *err = (struct pl_error){0};
        *ret = w;
        return 0;
    }
    if (r < 0)
        return r;
    if (ours && (seen.rank != w.rank || seen.size != w.size)) {
        r = pl_error_set(err, -EINVAL,
                         "this is rank %u of %u by RANK and WORLD_SIZE, but %u of %u by MPI: start "
                         "the ranks with srun --mpi=pmix, or with mpirun",
                         w.rank, w.size, seen.rank, seen.size);
        pl_mpi_close(w.mpi, true);
        return r;
    }
    if (!ours) {
        w.rank = seen.rank;
        w.size = seen.size;
        w.local_rank = seen.local_rank;
        w.local_size = seen.local_size;
        w.node = seen.node;
    }
    *ret = w;
    return 0;
}

/* A rank's description of itself, sent as one line. */
struct comm_endpoint {
    unsigned node;
    struct pl_comm_peer peer;
    char key[2 * KEY_BYTES + 1];
};

static int
parse_endpoint(const char *text, unsigned rank, struct comm_endpoint *ret, struct pl_error *err)
{
    struct comm_endpoint c = {.peer.world_rank = rank};

    if (sscanf(text, "plume-1 node=%u pid=%d fd=%d addr=%255s port=%u key=%64s", &c.node,
               &c.peer.pid, &c.peer.fd, c.peer.address, &c.peer.port, c.key) != 6)
        return pl_error_set(err, -EPROTO,
                            "rank %u runs another version of the engine: start the same pltrain "
                            "everywhere",
                            rank);
    *ret = c;
    return 0;
}

/* The members of the new communicator in their order; the first of each node; the members on this
 * node. */
struct groups {
    struct pl_comm_peer *all, *local, *leaders;
    unsigned *node; /* of each member: index into leaders */
    unsigned n_local, n_leaders, local_rank, leader_rank;
    bool is_leader;
    char key[2 * KEY_BYTES + 1];
};

static void groups_finish(struct groups *g)
{
    free(g->all);
    free(g->local);
    free(g->leaders);
    free(g->node);
}

static int groups_init(struct groups *g, unsigned n, struct pl_error *err)
{
    *g = (struct groups){
        .all = calloc(n, sizeof(*g->all)),
        .local = calloc(n, sizeof(*g->local)),
        .leaders = calloc(n, sizeof(*g->leaders)),
        .node = calloc(n, sizeof(*g->node)),
    };
    return g->all && g->local && g->leaders && g->node ? 0 : pl_error_nomem(err);
}

/* texts[i] is member i's; its world rank is members[i] (NULL: i). */
static int make_groups(const struct pl_world *world,
                       char **texts,
                       const unsigned *members,
                       struct groups *g,
                       struct pl_error *err)
{
    _cleanup_free_ unsigned *nodes = calloc(world->size, sizeof(*nodes));

    if (!nodes)
        return pl_error_nomem(err);
    for (unsigned i = 0; i < world->size; i++) {
        struct comm_endpoint endpoint = {0};
        unsigned k = 0;
        int r = parse_endpoint(texts[i], members ? members[i] : i, &endpoint, err);

        if (r < 0)
            return r;
        if (i == 0)
            memcpy(g->key, endpoint.key, sizeof(endpoint.key));
        while (k < g->n_leaders && nodes[k] != endpoint.node)
            k++;
        if (k == g->n_leaders) {
            nodes[k] = endpoint.node;
            if (i == world->rank) {
                g->is_leader = true;
                g->leader_rank = k;
            }
            g->leaders[g->n_leaders++] = endpoint.peer;
        }
        g->all[i] = endpoint.peer;
        g->node[i] = k;
        if (endpoint.node == world->node) {
            if (i == world->rank)
                g->local_rank = g->n_local;
            g->local[g->n_local++] = endpoint.peer;
        }
    }
    if (g->n_local != world->local_size || g->is_leader != (world->local_rank == 0))
        return pl_error_set(err, -EINVAL,
                            "rank %u has local rank %u of %u, but its node has %u ranks",
                            world->rank, world->local_rank, world->local_size, g->n_local);
    return 0;
}

/* True if a network connects all ranks, not only the first of each node. */
static bool is_flat(const struct pl_world *world)
{
    return world->kind == PL_COMM_TCP || world->kind == PL_COMM_MPI;
}

static int connect_network(const struct pl_world *world,
                           const struct pl_comm_peer *peers,
                           unsigned n,
                           unsigned rank,
                           const char *key,
                           int *listen_fd,
                           struct pl_comm **ret,
                           struct pl_error *err)
{
    _cleanup_(pl_comm_destroyp) struct pl_comm *tcp = NULL;
    int r = pl_comm_tcp_create(peers, n, rank, PL_TAKE_FD(*listen_fd), key, strlen(key), &tcp, err);

    if (r == 0 && world->mpi)
        return pl_comm_mpi_create(world->mpi, PL_TAKE(tcp), ret, err);
    if (r == 0)
        *ret = PL_TAKE(tcp);
    return r;
}

static int connect_groups(const struct pl_world *world,
                          const struct groups *g,
                          int control_fd,
                          int *listen_fd,
                          struct pl_comm **ret,
                          struct pl_error *err)
{
    _cleanup_(pl_comm_destroyp) struct pl_comm *local = NULL, *leaders = NULL;
    int r;

    if (is_flat(world))
        return connect_network(world, g->all, world->size, world->rank, g->key, listen_fd, ret,
                               err);
    if (g->n_local > 1) {
        r = pl_comm_shm_create(g->local, g->n_local, g->local_rank, control_fd, &local, err);
        if (r < 0)
            return r;
    }
    if (g->n_leaders > 1 && g->is_leader) {
        r = connect_network(world, g->leaders, g->n_leaders, g->leader_rank, g->key, listen_fd,
                            &leaders, err);
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
        /* A node with one rank needs no shared memory. */
        if (!local && (r = pl_comm_self_create(g->local[0].world_rank, &local, err)) < 0)
            return r;
        r = pl_comm_hier_create(local, leaders, g->all, g->node, world->rank, world->size,
                                world->mpi != NULL, ret, err);
        if (r < 0)
            return r;
        local = leaders = NULL;
    }
    return 0;
}

/* Member 0's key is the run's; the others send "-". */
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

/* A way to exchange texts: *ret_texts has world->size strings, all in one block. */
struct exchange {
    int (*run)(void *ctx, const char *text, char ***ret_texts, struct pl_error *err);
    void *ctx;
    const unsigned *members; /* world rank of each member; NULL = the same */
    const char *key;         /* of the run, which all members have; NULL = in member 0's text */
};

static int connect_members(const struct pl_world *world,
                           const struct exchange *x,
                           struct pl_comm **ret,
                           struct pl_error *err)
{
    _cleanup_close_ int control_fd = -EBADF, listen_fd = -EBADF;
    _cleanup_(groups_finish) struct groups groups = {0};
    char key[2 * KEY_BYTES + 1], text[ENDPOINT_MAX];
    _cleanup_free_ char **texts = NULL;
    unsigned port = 0;
    int r;

    if (world->local_rank == 0 && world->local_size > 1 && !is_flat(world) &&
        (r = pl_comm_shm_control(&control_fd, err)) < 0)
        return r;
    if ((is_flat(world) || (world->local_rank == 0 && world->local_size < world->size)) &&
        (r = pl_comm_tcp_listen(world->address, &listen_fd, &port, err)) < 0)
        return r;
    r = make_key(x->key ? 1 : world->rank, key, err);
    if (r == 0)
        r = groups_init(&groups, world->size, err);
    if (r < 0)
        return r;
    snprintf(text, sizeof(text), "plume-1 node=%u pid=%d fd=%d addr=%s port=%u key=%s", world->node,
             (int)getpid(), control_fd, world->address, port, key);
    r = x->run(x->ctx, text, &texts, err);
    if (r < 0)
        return pl_error_wrap(err, r, "while exchanging addresses with the other ranks");
    r = make_groups(world, texts, x->members, &groups, err);
    if (r == 0 && x->key)
        snprintf(groups.key, sizeof(groups.key), "%s", x->key);
    if (r == 0)
        r = connect_groups(world, &groups, control_fd, &listen_fd, ret, err);
    if (r < 0)
        return r;
    (*ret)->world = *world;
    (*ret)->world.n_nodes = groups.n_leaders;
    return 0;
}

/* Through the node daemon. */
struct by_link {
    struct pl_rank_link *link;
    unsigned size;
};

static int link_exchange(void *ctx, const char *text, char ***ret_texts, struct pl_error *err)
{
    const struct by_link *by = ctx;
    size_t n;
    int r =
        pl_rank_link_exchange(by->link, "engine", text, EXCHANGE_TIMEOUT_MS, ret_texts, &n, err);

    if (r == 0 && n != by->size) {
        free(*ret_texts);
        return pl_error_set(err, -EPROTO, "the node daemon knows %zu ranks, not %u", n, by->size);
    }
    return r;
}

/* Splits texts of fixed size, one after the other, into strings; one block holds strings and list.
 */
static int split_texts(const char *block, unsigned n, char ***ret_texts, struct pl_error *err)
{
    char **texts = malloc(n * (sizeof(*texts) + ENDPOINT_MAX)), *text;

    if (!texts)
        return pl_error_nomem(err);
    text = (char *)(texts + n);
    memcpy(text, block, (size_t)n * ENDPOINT_MAX);
    for (unsigned i = 0; i < n; i++) {
        texts[i] = text + (size_t)i * ENDPOINT_MAX;
        texts[i][ENDPOINT_MAX - 1] = '\0';
    }
    *ret_texts = texts;
    return 0;
}

static int mpi_exchange(void *ctx, const char *text, char ***ret_texts, struct pl_error *err)
{
    const struct pl_world *world = ctx;
    _cleanup_free_ char *block = calloc(world->size, ENDPOINT_MAX);
    int r;

    if (!block)
        return pl_error_nomem(err);
    memcpy(block + (size_t)world->rank * ENDPOINT_MAX, text, strlen(text));
    r = pl_mpi_allgather(world->mpi, block, ENDPOINT_MAX, err);
    return r < 0 ? r : split_texts(block, world->size, ret_texts, err);
}

/* Through the module's own rendezvous. */
struct by_store {
    const struct pl_world *world;
    uint8_t key[PL_SHA256_BYTES];    /* of the rendezvous */
    char run_key[2 * KEY_BYTES + 1]; /* made of it */
};

static int by_store_init(struct by_store *by,
                         const struct pl_world *world,
                         struct pl_rank_link *link,
                         struct pl_error *err)
{
    static const char context[] = "plume engine run 1";
    uint8_t run_key[PL_SHA256_BYTES];
    int r = pl_comm_store_key(world, link, EXCHANGE_TIMEOUT_MS, by->key, err);

    if (r < 0)
        return r;
    by->world = world;
    pl_hmac_sha256(by->key, sizeof(by->key), context, sizeof(context), run_key);
    pl_store_hex(run_key, by->run_key);
    return 0;
}

static int store_exchange(void *ctx, const char *text, char ***ret_texts, struct pl_error *err)
{
    const struct by_store *by = ctx;
    const struct pl_world *world = by->world;
    _cleanup_free_ char *block = calloc(world->size, ENDPOINT_MAX);
    int r;

    if (!block)
        return pl_error_nomem(err);
    memcpy(block + (size_t)world->rank * ENDPOINT_MAX, text, strlen(text));
    r = pl_comm_store_exchange(world, by->key, block, ENDPOINT_MAX, EXCHANGE_TIMEOUT_MS, err);
    return r < 0 ? r : split_texts(block, world->size, ret_texts, err);
}

int pl_comm_create(const struct pl_world *world,
                   struct pl_rank_link *link,
                   struct pl_comm **ret,
                   struct pl_error *err)
{
    struct by_link by = {.link = link, .size = world->size};
    struct exchange x = {.run = link_exchange, .ctx = &by};
    struct by_store store;
    int r;

    if (world->size == 1 && world->kind != PL_COMM_MPI) {
        r = pl_comm_self_create(0, ret, err);
        if (r == 0)
            (*ret)->world = *world;
        return r;
    }
    if (world->kind == PL_COMM_SHM && world->local_size < world->size)
        return pl_error_set(err, -EINVAL,
                            "shared memory reaches the %u ranks of this node, not all %u",
                            world->local_size, world->size);
    if (world->store_port) {
        r = by_store_init(&store, world, link, err);
        if (r < 0)
            return r;
        x = (struct exchange){.run = store_exchange, .ctx = &store, .key = store.run_key};
    } else if (world->mpi && !link) {
        x.run = mpi_exchange;
        x.ctx = (void *)world;
    } else if (!link) {
        return pl_error_set(err, -EINVAL,
                            "WORLD_SIZE is %u but PLUME_SOCKET is not set: start the ranks with "
                            "plrun, or with pltrain --processes",
                            world->size);
    }
    return connect_members(world, &x, ret, err);
}

/* ---- a part of a communicator ---- */

struct vote {
    int color, key;
    unsigned node, world_rank;
};

struct by_comm {
    struct pl_comm *parent;
    const unsigned *chosen; /* members of the parent, in the new order */
    unsigned n;
};

static int gather_equal(struct pl_comm *comm, void *all, size_t bytes, struct pl_error *err)
{
    _cleanup_free_ size_t *offset = calloc(comm->size + 1, sizeof(*offset));

    if (!offset)
        return pl_error_nomem(err);
    for (unsigned i = 0; i <= comm->size; i++)
        offset[i] = i * bytes;
    return pl_comm_allgather(comm, all, offset, err);
}

/* All members of the parent take part, of any color. */
static int comm_exchange(void *ctx, const char *text, char ***ret_texts, struct pl_error *err)
{
    const struct by_comm *by = ctx;
    _cleanup_free_ char *all = calloc(by->parent->size, ENDPOINT_MAX);
    _cleanup_free_ char *part = calloc(PL_MAX(by->n, 1u), ENDPOINT_MAX);
    int r;

    if (!all || !part)
        return pl_error_nomem(err);
    memcpy(all + (size_t)by->parent->rank * ENDPOINT_MAX, text, strlen(text));
    r = gather_equal(by->parent, all, ENDPOINT_MAX, err);
    if (r < 0)
        return r;
    for (unsigned i = 0; i < by->n; i++)
        memcpy(part + (size_t)i * ENDPOINT_MAX, all + (size_t)by->chosen[i] * ENDPOINT_MAX,
               ENDPOINT_MAX);
    return ret_texts ? split_texts(part, by->n, ret_texts, err) : 0;
}

/* Members of my color by key, then by rank. There are few: insertion sort. */
static unsigned choose_members(const struct vote *votes, unsigned n, int color, unsigned *chosen)
{
    unsigned count = 0;

    for (unsigned i = 0; i < n; i++) {
        unsigned k = count;

        if (votes[i].color != color)
            continue;
        for (; k > 0 && votes[chosen[k - 1]].key > votes[i].key; k--)
            chosen[k] = chosen[k - 1];
        chosen[k] = i;
        count++;
    }
    return count;
}

int pl_comm_split(
    struct pl_comm *comm, int color, int key, struct pl_comm **ret, struct pl_error *err)
{
    _cleanup_free_ struct vote *votes = calloc(comm->size, sizeof(*votes));
    _cleanup_free_ unsigned *chosen = calloc(comm->size, sizeof(*chosen));
    _cleanup_free_ unsigned *members = calloc(comm->size, sizeof(*members));
    struct by_comm by = {.parent = comm, .chosen = chosen};
    struct exchange x = {.run = comm_exchange, .ctx = &by, .members = members};
    struct pl_world part = comm->world;
    int r;

    if (!votes || !chosen || !members)
        return pl_error_nomem(err);
    votes[comm->rank] = (struct vote){color, key, part.node, comm->world_ranks[comm->rank]};
    r = gather_equal(comm, votes, sizeof(*votes), err);
    if (r < 0)
        return r;
    by.n = color < 0 ? 0 : choose_members(votes, comm->size, color, chosen);
    part.is_part = true;
    part.size = by.n;
    part.local_size = part.local_rank = 0;
    for (unsigned i = 0; i < by.n; i++) {
        members[i] = votes[chosen[i]].world_rank;
        if (chosen[i] == comm->rank) {
            part.rank = i;
            part.local_rank = part.local_size;
        }
        part.local_size += votes[chosen[i]].node == part.node;
    }
    /* A rank that is alone or left out still sends a text: the exchange is collective over the
     * parent. */
    if (by.n > 1)
        return connect_members(&part, &x, ret, err);
    r = comm_exchange(&by, "", NULL, err);
    if (r < 0)
        return r;
    if (color < 0) {
        *ret = NULL;
        return 0;
    }
    r = pl_comm_self_create(comm->world_ranks[comm->rank], ret, err);
    if (r == 0)
        (*ret)->world = part;
    return r;
}
