/* SPDX-License-Identifier: MIT */
/* Making communicators of NCCL: ranks compare their libraries, and connect. */
#include "runtime/engine/comm/comm_nccl_private.h"

#include <string.h>

/* Makes the object and its TCP connection to the members of host, which carries no data. */
static int new_nccl(struct pl_comm *host,
                    const struct pl_nccl_table *table,
                    void *compute,
                    unsigned limit_ms,
                    struct nccl **ret,
                    struct pl_error *err)
{
    struct nccl *n = calloc(1, sizeof(*n));
    enum pl_comm_kind kind = host->world.kind;
    pthread_condattr_t attr;
    struct pl_comm *watch = NULL;
    int r = n ? 0 : pl_error_nomem(err);

    if (r < 0)
        return r;
    n->table = table;
    n->compute = compute;
    n->limit_ms = limit_ms;
    n->own_rank = host->world_ranks[host->rank];
    n->base = (struct pl_comm){.ops = &pl_comm_nccl_ops,
                               .rank = host->rank,
                               .size = host->size,
                               .world_ranks = &n->own_rank,
                               .world = host->world};
    pthread_mutex_init(&n->lock, NULL);
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&n->wake, &attr);
    pthread_condattr_destroy(&attr);
    *ret = n;
    if (host->size == 1)
        return 0;
    host->world.kind = PL_COMM_TCP;
    r = pl_comm_split(host, 0, (int)host->rank, &watch, err);
    host->world.kind = kind;
    if (r < 0)
        return r;
    n->watch = (struct pl_tcp *)watch;
    n->base.world_ranks = watch->world_ranks;
    return 0;
}

static int start_watchdog(struct nccl *n, struct pl_error *err)
{
    int r = pthread_create(&n->thread, NULL, pl_comm_nccl_watchdog, n);

    n->has_thread = r == 0;
    return r == 0 ? 0 : pl_error_errno(err, r, "cannot start the watchdog of NCCL");
}

/* A rank's description of its NCCL, exchanged before the first call. */
struct nccl_hello {
    int32_t header, library;
    char id[PL_NCCL_ID_BYTES]; /* rank 0's */
    char text[PL_NCCL_TEXT];   /* this rank's error; "" = none */
};

static void version_text(int version, char ret[16])
{
    snprintf(ret, 16, "%d.%d.%d", version / 10000 % 1000, version / 100 % 100, version % 100);
}

/* A library fits if it has the header's major version and not an older minor one: functions are not
 * added by what differs in the last number only. */
static void fill_hello(const struct nccl *n, struct nccl_hello *hello)
{
    char header[16], library[16];
    int h = 0, l = 0;

    if (n->table->versions(&h, &l, hello->text) < 0)
        return;
    hello->header = h;
    hello->library = l;
    version_text(h, header);
    version_text(l, library);
    if (l / 10000 != h / 10000 || l / 100 < h / 100)
        snprintf(hello->text, sizeof(hello->text),
                 "libnccl is %s, but plume-cuda.so was built for %s: put the newer one first in "
                 "LD_LIBRARY_PATH",
                 library, header);
    else if (n->base.rank == 0)
        n->table->unique_id(hello->id, hello->text);
}

static int check_hellos(const struct nccl *n, const struct nccl_hello *hellos, struct pl_error *err)
{
    char first[16], other[16];

    for (unsigned i = 0; i < n->base.size; i++)
        if (hellos[i].text[0])
            return pl_error_set(err, -ENOTSUP, "NCCL of rank %u: %.*s", n->base.world_ranks[i],
                                (int)sizeof(hellos[i].text) - 1, hellos[i].text);
    for (unsigned i = 1; i < n->base.size; i++) {
        if (hellos[i].library == hellos[0].library)
            continue;
        version_text(hellos[0].library, first);
        version_text(hellos[i].library, other);
        return pl_error_set(err, -ENOTSUP,
                            "rank %u has NCCL %s and rank %u has %s: all need the same",
                            n->base.world_ranks[0], first, n->base.world_ranks[i], other);
    }
    return 0;
}

static int init_nccl(struct nccl *n, struct pl_comm *host, struct pl_error *err)
{
    _cleanup_free_ struct nccl_hello *hellos = calloc(n->base.size, sizeof(*hellos));
    _cleanup_free_ size_t *offset = calloc(n->base.size + 1, sizeof(*offset));
    char text[PL_NCCL_TEXT];
    int r;

    if (!hellos || !offset)
        return pl_error_nomem(err);
    for (unsigned i = 0; i <= n->base.size; i++)
        offset[i] = i * sizeof(*hellos);
    fill_hello(n, &hellos[n->base.rank]);
    r = pl_comm_allgather(host, hellos, offset, err);
    if (r == 0)
        r = check_hellos(n, hellos, err);
    if (r == 0)
        r = start_watchdog(n, err);
    if (r < 0 || (r = pl_comm_nccl_lock(n, err)) < 0)
        return r;
    r = n->table->init(hellos[0].id, n->base.size, n->base.rank, n->compute, &n->comm, text);
    if (r < 0)
        pl_comm_nccl_note(n, r, text);
    pthread_mutex_unlock(&n->lock);
    if (r < 0)
        return pl_comm_nccl_lock(n, err);
    return 0;
}

/* Waits until init or split has connected all ranks. */
static int wait_connected(struct nccl *n, struct pl_error *err)
{
    int r = pl_comm_nccl_ask(n, n->table->state, n->limit_ms, "did not connect all ranks", err);

    return r < 0 ? r : n->base.ops->alloc(&n->base, sizeof(float), &n->token, err);
}

static int done_or_destroy(struct nccl *n, int r, struct pl_comm **ret)
{
    if (r == 0)
        *ret = &n->base;
    else if (n)
        n->base.ops->destroy(&n->base);
    return r;
}

int pl_comm_nccl_begin(struct pl_comm *host,
                       const struct pl_nccl_table *table,
                       void *compute,
                       unsigned limit_ms,
                       struct pl_comm **ret,
                       struct pl_error *err)
{
    struct nccl *n = NULL;
    int r = new_nccl(host, table, compute, limit_ms, &n, err);

    if (r == 0)
        r = init_nccl(n, host, err);
    return done_or_destroy(n, r, ret);
}

int pl_comm_nccl_connect(struct pl_comm *comm, struct pl_error *err)
{
    return wait_connected((struct nccl *)comm, err);
}

int pl_comm_nccl_create(struct pl_comm *host,
                        const struct pl_nccl_table *table,
                        void *compute,
                        unsigned limit_ms,
                        struct pl_comm **ret,
                        struct pl_error *err)
{
    struct pl_comm *comm = NULL;
    int r = pl_comm_nccl_begin(host, table, compute, limit_ms, &comm, err);

    if (r == 0)
        r = pl_comm_nccl_connect(comm, err);
    return done_or_destroy((struct nccl *)comm, r, ret);
}

int pl_comm_nccl_split(struct pl_comm *comm,
                       struct pl_comm *part,
                       int color,
                       int key,
                       struct pl_comm **ret,
                       struct pl_error *err)
{
    struct nccl *from = (struct nccl *)comm, *n = NULL;
    char text[PL_NCCL_TEXT];
    void *made = NULL;
    int r = 0;

    if (part)
        r = new_nccl(part, from->table, from->compute, from->limit_ms, &n, err);
    if (r == 0)
        r = pl_comm_nccl_lock(from, err);
    if (r < 0)
        return done_or_destroy(n, r, ret);
    r = from->table->split(from->comm, part ? color : -1, key, &made, text);
    if (r < 0)
        pl_comm_nccl_note(from, r, text);
    pthread_mutex_unlock(&from->lock);
    if (r < 0)
        return done_or_destroy(n, pl_comm_nccl_lock(from, err), ret);
    r = pl_comm_nccl_ask(from, from->table->state, from->limit_ms, "did not split the ranks", err);
    if (!part) {
        if (r == 0)
            *ret = NULL;
        return r;
    }
    n->comm = made;
    if (r == 0)
        r = start_watchdog(n, err);
    if (r == 0)
        r = wait_connected(n, err);
    return done_or_destroy(n, r, ret);
}
