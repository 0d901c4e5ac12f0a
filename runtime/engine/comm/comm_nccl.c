/* SPDX-License-Identifier: MIT */
#include "runtime/engine/comm/comm_nccl.h"
#include "common/base/fs.h"
#include "runtime/engine/comm/comm_tcp_private.h"

#include <pthread.h>
#include <string.h>
#include <time.h>

#define CHECK_MS 20       /* interval of the watchdog */
#define RANK_NAME_MS 2000 /* limit for learning which rank NCCL has lost */
#define POLL_NS 50000     /* polling interval of a waiting call */
/* Limit for starting a collective, in units of limit_ms. The first collectives connect ranks, and
 * one rank may come late because of its data. Half an hour, as in PyTorch. The loss of a rank ends
 * the wait at once. */
#define START_LIMITS 15

struct nccl {
    struct pl_comm base;
    const struct pl_nccl_table *table;
    unsigned limit_ms;
    void *compute;
    unsigned own_rank;    /* world rank, if it is the only member */
    struct pl_tcp *watch; /* NULL with one member */
    pthread_t thread;
    bool has_thread;

    /* The lock protects the fields below, all calls of the table and of watch. */
    pthread_mutex_t lock;
    pthread_cond_t wake;
    bool stop, aborted, closing;
    void *comm;                /* NULL until created */
    void *token;               /* a float on the device, for barriers */
    char broken[PL_NCCL_TEXT]; /* NCCL's first error; "" if none */
    uint64_t name_until_ns;    /* limit for getting a better text */
    uint64_t
        hangup_until_ns; /* while closing: a peer has hung up, which is normal until this time */
    char failed[PL_COMM_TEXT_MAX]; /* the final text, which calls report */
};

/* ---- failing ---- */

/* Called with the lock held, like all functions of this part. Releases a thread that waits for the
 * device. */
static void stop_nccl(struct nccl *n)
{
    if (n->comm && !n->aborted)
        n->table->abort(n->comm);
    n->aborted = true;
}

static void fail_comm(struct nccl *n, const char *text)
{
    if (!n->failed[0])
        snprintf(n->failed, sizeof(n->failed), "%s", text);
    stop_nccl(n);
    if (n->watch)
        pl_tcp_abort(n->watch, n->failed);
}

/* A call of the table has failed, with -1 or PL_NCCL_REMOTE. */
static void note_nccl_error(struct nccl *n, int code, const char *text)
{
    char full[PL_COMM_TEXT_MAX];

    if (n->broken[0] || n->failed[0])
        return;
    snprintf(n->broken, sizeof(n->broken), "%s", text);
    stop_nccl(n);
    if (code == PL_NCCL_REMOTE && n->watch) {
        n->name_until_ns = pl_now_ns() + RANK_NAME_MS * 1000000ull;
        return;
    }
    snprintf(full, sizeof(full), "rank %u: %.140s", n->base.world_ranks[n->base.rank], text);
    fail_comm(n, full);
}

static void check_health(struct nccl *n)
{
    struct pl_error err = {0};
    char text[PL_NCCL_TEXT], full[PL_COMM_TEXT_MAX];
    int done, r;

    if (n->failed[0])
        return;
    if (n->watch && !n->hangup_until_ns && pl_tcp_check(n->watch, &err) < 0) {
        if (!n->closing) {
            fail_comm(n, pl_error_text(&err));
            return;
        }
        /* Other ranks may have finished first and closed their connections. */
        n->hangup_until_ns = pl_now_ns() + RANK_NAME_MS * 1000000ull;
    }
    if (n->hangup_until_ns && pl_now_ns() >= n->hangup_until_ns) {
        fail_comm(n, n->watch->failed);
        return;
    }
    if (n->comm && !n->broken[0]) {
        r = n->table->state(n->comm, &done, text);
        if (r < 0)
            note_nccl_error(n, r, text);
    }
    if (n->broken[0] && !n->failed[0] && pl_now_ns() >= n->name_until_ns) {
        snprintf(full, sizeof(full), "rank %u: %.140s", n->base.world_ranks[n->base.rank],
                 n->broken);
        fail_comm(n, full);
    }
}

static void *watchdog(void *arg)
{
    struct nccl *n = arg;

    pthread_mutex_lock(&n->lock);
    while (!n->stop) {
        struct timespec until;

        check_health(n);
        clock_gettime(CLOCK_MONOTONIC, &until);
        until.tv_nsec += CHECK_MS * 1000000;
        until.tv_sec += until.tv_nsec / 1000000000;
        until.tv_nsec %= 1000000000;
        pthread_cond_timedwait(&n->wake, &n->lock, &until);
    }
    pthread_mutex_unlock(&n->lock);
    return NULL;
}

/* ---- calls ---- */

/* Takes the lock if the communicator is healthy. If not, waits until the text to report is known.
 */
static int lock_healthy(struct nccl *n, struct pl_error *err)
{
    const struct timespec nap = {.tv_nsec = POLL_NS};

    pthread_mutex_lock(&n->lock);
    while (n->broken[0] && !n->failed[0]) {
        pthread_mutex_unlock(&n->lock);
        nanosleep(&nap, NULL);
        pthread_mutex_lock(&n->lock);
    }
    if (!n->failed[0])
        return 0;
    pl_error_set(err, -ECONNRESET, "%s", n->failed);
    pthread_mutex_unlock(&n->lock);
    return -ECONNRESET;
}

typedef int (*ask_f)(void *comm, int *ret_done, char *text);

/* Polls until done; called without the lock. limit_ms 0: no limit; the watchdog ends the wait when
 * a rank is lost. */
static int
ask_until_done(struct nccl *n, ask_f ask, unsigned limit_ms, const char *what, struct pl_error *err)
{
    const struct timespec nap = {.tv_nsec = POLL_NS};
    uint64_t end = pl_now_ns() + limit_ms * 1000000ull;
    char text[PL_NCCL_TEXT], full[PL_COMM_TEXT_MAX];
    int done = 0, r;

    while ((r = lock_healthy(n, err)) == 0) {
        r = ask(n->comm, &done, text);
        if (r < 0) {
            note_nccl_error(n, r, text);
        } else if (!done && limit_ms && pl_now_ns() >= end) {
            snprintf(full, sizeof(full), "rank %u: NCCL %s within %g s (NCCL_DEBUG=INFO says more)",
                     n->base.world_ranks[n->base.rank], what, limit_ms / 1000.0);
            fail_comm(n, full);
            pl_error_set(err, -ETIMEDOUT, "%s", full);
            pthread_mutex_unlock(&n->lock);
            return -ETIMEDOUT;
        }
        pthread_mutex_unlock(&n->lock);
        if (r == 0 && done)
            return 0;
        nanosleep(&nap, NULL);
    }
    return r;
}

/* Call with the lock held after the table has started a collective. Releases the lock and waits
 * until the collective has started. */
static int finish_launch(struct nccl *n, int started, char *text, struct pl_error *err)
{
    int r;

    if (started < 0)
        note_nccl_error(n, started, text);
    pthread_mutex_unlock(&n->lock);
    r = ask_until_done(n, n->table->state, START_LIMITS * n->limit_ms, "did not start a collective",
                       err);
    if (r < 0 || (r = lock_healthy(n, err)) < 0)
        return r;
    started = n->table->mark(n->comm, text);
    if (started < 0)
        note_nccl_error(n, started, text);
    pthread_mutex_unlock(&n->lock);
    return started < 0 ? lock_healthy(n, err) : 0;
}

int pl_comm_nccl_start(struct pl_comm *comm,
                       void *buf,
                       size_t count,
                       enum pl_nccl_type type,
                       double scale,
                       struct pl_error *err)
{
    struct nccl *n = (struct nccl *)comm;
    char text[PL_NCCL_TEXT];
    int r = lock_healthy(n, err);

    return r < 0 ? r
                 : finish_launch(n, n->table->allreduce(n->comm, buf, count, type, scale, text),
                                 text, err);
}

int pl_comm_nccl_start_scatter(struct pl_comm *comm,
                               void *buf,
                               const size_t *offset,
                               enum pl_nccl_type type,
                               double scale,
                               struct pl_error *err)
{
    struct nccl *n = (struct nccl *)comm;
    char text[PL_NCCL_TEXT];
    int r = lock_healthy(n, err);

    if (r < 0)
        return r;
    return finish_launch(n, n->table->reduce_scatter(n->comm, buf, offset, type, scale, text), text,
                         err);
}

int pl_comm_nccl_join(struct pl_comm *comm, struct pl_error *err)
{
    struct nccl *n = (struct nccl *)comm;
    char text[PL_NCCL_TEXT];
    int r = lock_healthy(n, err);

    if (r < 0)
        return r;
    r = n->table->join(n->comm, text);
    if (r < 0)
        note_nccl_error(n, r, text);
    pthread_mutex_unlock(&n->lock);
    return r < 0 ? lock_healthy(n, err) : 0;
}

int pl_comm_nccl_check(struct pl_comm *comm, struct pl_error *err)
{
    struct nccl *n = (struct nccl *)comm;
    int r = lock_healthy(n, err);

    if (r == 0)
        pthread_mutex_unlock(&n->lock);
    return r;
}

int pl_comm_nccl_wait(struct pl_comm *comm, struct pl_error *err)
{
    struct nccl *n = (struct nccl *)comm;

    return ask_until_done(n, n->table->finished, 0, "", err);
}

static int nccl_allreduce(struct pl_comm *comm,
                          void *buf,
                          size_t count,
                          enum pl_real real,
                          double scale,
                          struct pl_error *err)
{
    int r = pl_comm_nccl_start(comm, buf, count, real == PL_REAL_F64 ? PL_NCCL_F64 : PL_NCCL_F32,
                               scale, err);

    return r < 0 ? r : pl_comm_nccl_join(comm, err);
}

static int nccl_reduce_scatter(struct pl_comm *comm,
                               void *buf,
                               const size_t *offset,
                               enum pl_real real,
                               double scale,
                               struct pl_error *err)
{
    int r = pl_comm_nccl_start_scatter(comm, buf, offset,
                                       real == PL_REAL_F64 ? PL_NCCL_F64 : PL_NCCL_F32, scale, err);

    return r < 0 ? r : pl_comm_nccl_join(comm, err);
}

static int nccl_broadcast(struct pl_comm *comm, void *buf, size_t bytes, struct pl_error *err)
{
    struct nccl *n = (struct nccl *)comm;
    char text[PL_NCCL_TEXT];
    int r = lock_healthy(n, err);

    if (r == 0)
        r = finish_launch(n, n->table->broadcast(n->comm, buf, bytes, text), text, err);
    return r < 0 ? r : pl_comm_nccl_join(comm, err);
}

int pl_comm_nccl_start_gather(struct pl_comm *comm,
                              void *buf,
                              const size_t *offset,
                              struct pl_error *err)
{
    struct nccl *n = (struct nccl *)comm;
    char text[PL_NCCL_TEXT];
    int r = lock_healthy(n, err);

    return r < 0 ? r : finish_launch(n, n->table->allgather(n->comm, buf, offset, text), text, err);
}

static int
nccl_allgather(struct pl_comm *comm, void *buf, const size_t *offset, struct pl_error *err)
{
    int r = pl_comm_nccl_start_gather(comm, buf, offset, err);

    return r < 0 ? r : pl_comm_nccl_join(comm, err);
}

/* A barrier of the hosts and of the devices. */
static int nccl_barrier(struct pl_comm *comm, struct pl_error *err)
{
    int r = nccl_allreduce(comm, ((struct nccl *)comm)->token, 1, PL_REAL_F32, 1, err);

    return r < 0 ? r : pl_comm_nccl_wait(comm, err);
}

static int nccl_alloc(struct pl_comm *comm, size_t bytes, void **ret, struct pl_error *err)
{
    struct nccl *n = (struct nccl *)comm;
    char text[PL_NCCL_TEXT];
    int r = lock_healthy(n, err);

    if (r < 0)
        return r;
    r = n->table->alloc(n->comm, bytes, ret, text);
    pthread_mutex_unlock(&n->lock);
    return r < 0 ? pl_error_set(err, -ENOMEM, "cannot allocate %zu bytes for collectives: %s",
                                bytes, text)
                 : 0;
}

static void nccl_abort(struct pl_comm *comm, const char *text)
{
    struct nccl *n = (struct nccl *)comm;

    pthread_mutex_lock(&n->lock);
    fail_comm(n, text);
    pthread_mutex_unlock(&n->lock);
}

static void nccl_destroy(struct pl_comm *comm)
{
    struct nccl *n = (struct nccl *)comm;

    /* Barrier: a rank that exits early would look lost to the others. */
    if (n->token) {
        pthread_mutex_lock(&n->lock);
        n->closing = true;
        pthread_mutex_unlock(&n->lock);
        nccl_barrier(comm, NULL);
    }
    if (n->has_thread) {
        pthread_mutex_lock(&n->lock);
        n->stop = true;
        pthread_cond_signal(&n->wake);
        pthread_mutex_unlock(&n->lock);
        pthread_join(n->thread, NULL);
    }
    n->table->destroy(n->comm);
    if (n->watch)
        pl_tcp_destroy(&n->watch->base);
    pthread_cond_destroy(&n->wake);
    pthread_mutex_destroy(&n->lock);
    free(n);
}

static const struct pl_comm_ops nccl_ops = {
    .name = "nccl",
    .allreduce = nccl_allreduce,
    .broadcast = nccl_broadcast,
    .barrier = nccl_barrier,
    .allgather = nccl_allgather,
    .reduce_scatter = nccl_reduce_scatter,
    .alloc = nccl_alloc,
    .abort = nccl_abort,
    .destroy = nccl_destroy,
};

/* ---- creating ---- */

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
    n->base = (struct pl_comm){.ops = &nccl_ops,
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
    int r = pthread_create(&n->thread, NULL, watchdog, n);

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

/* A library fits if it has the header's major version and is not older. */
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
    if (l / 10000 != h / 10000 || l < h)
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
    if (r < 0 || (r = lock_healthy(n, err)) < 0)
        return r;
    r = n->table->init(hellos[0].id, n->base.size, n->base.rank, n->compute, &n->comm, text);
    if (r < 0)
        note_nccl_error(n, r, text);
    pthread_mutex_unlock(&n->lock);
    if (r < 0)
        return lock_healthy(n, err);
    return 0;
}

/* Waits until init or split has connected all ranks. */
static int wait_connected(struct nccl *n, struct pl_error *err)
{
    int r = ask_until_done(n, n->table->state, n->limit_ms, "did not connect all ranks", err);

    return r < 0 ? r : nccl_alloc(&n->base, sizeof(float), &n->token, err);
}

static int done_or_destroy(struct nccl *n, int r, struct pl_comm **ret)
{
    if (r == 0)
        *ret = &n->base;
    else if (n)
        nccl_destroy(&n->base);
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
        r = lock_healthy(from, err);
    if (r < 0)
        return done_or_destroy(n, r, ret);
    r = from->table->split(from->comm, part ? color : -1, key, &made, text);
    if (r < 0)
        note_nccl_error(from, r, text);
    pthread_mutex_unlock(&from->lock);
    if (r < 0)
        return done_or_destroy(n, lock_healthy(from, err), ret);
    r = ask_until_done(from, from->table->state, from->limit_ms, "did not split the ranks", err);
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
