/* SPDX-License-Identifier: MIT */
#include "runtime/engine/comm/comm_nccl.h"
#include "common/base/fs.h"
#include "runtime/engine/comm/comm_nccl_private.h"

#include <string.h>
#include <time.h>

#define CHECK_MS 20       /* interval of the watchdog */
#define RANK_NAME_MS 2000 /* limit for learning which rank NCCL has lost */
#define POLL_NS 50000     /* polling interval of a waiting call */
/* Limit for starting a collective, in units of limit_ms. The first collectives connect ranks, and
 * one rank may come late because of its data. Half an hour, as in PyTorch. The loss of a rank ends
 * the wait at once. */
#define START_LIMITS 15

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
void pl_comm_nccl_note(struct nccl *n, int code, const char *text)
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
            pl_comm_nccl_note(n, r, text);
    }
    if (n->broken[0] && !n->failed[0] && pl_now_ns() >= n->name_until_ns) {
        snprintf(full, sizeof(full), "rank %u: %.140s", n->base.world_ranks[n->base.rank],
                 n->broken);
        fail_comm(n, full);
    }
}

void *pl_comm_nccl_watchdog(void *arg)
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
int pl_comm_nccl_lock(struct nccl *n, struct pl_error *err)
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

/* Polls until done; called without the lock. limit_ms 0: no limit; the watchdog ends the wait when
 * a rank is lost. */
int pl_comm_nccl_ask(struct nccl *n,
                     pl_comm_nccl_ask_fn *ask,
                     unsigned limit_ms,
                     const char *what,
                     struct pl_error *err)
{
    const struct timespec nap = {.tv_nsec = POLL_NS};
    uint64_t end = pl_now_ns() + limit_ms * 1000000ull;
    char text[PL_NCCL_TEXT], full[PL_COMM_TEXT_MAX];
    int done = 0, r;

    while ((r = pl_comm_nccl_lock(n, err)) == 0) {
        r = ask(n->comm, &done, text);
        if (r < 0) {
            pl_comm_nccl_note(n, r, text);
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
        pl_comm_nccl_note(n, started, text);
    pthread_mutex_unlock(&n->lock);
    r = pl_comm_nccl_ask(n, n->table->state, START_LIMITS * n->limit_ms,
                         "did not start a collective", err);
    if (r < 0 || (r = pl_comm_nccl_lock(n, err)) < 0)
        return r;
    started = n->table->mark(n->comm, text);
    if (started < 0)
        pl_comm_nccl_note(n, started, text);
    pthread_mutex_unlock(&n->lock);
    return started < 0 ? pl_comm_nccl_lock(n, err) : 0;
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
    int r = pl_comm_nccl_lock(n, err);

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
    int r = pl_comm_nccl_lock(n, err);

    if (r < 0)
        return r;
    return finish_launch(n, n->table->reduce_scatter(n->comm, buf, offset, type, scale, text), text,
                         err);
}

int pl_comm_nccl_join(struct pl_comm *comm, struct pl_error *err)
{
    struct nccl *n = (struct nccl *)comm;
    char text[PL_NCCL_TEXT];
    int r = pl_comm_nccl_lock(n, err);

    if (r < 0)
        return r;
    r = n->table->join(n->comm, text);
    if (r < 0)
        pl_comm_nccl_note(n, r, text);
    pthread_mutex_unlock(&n->lock);
    return r < 0 ? pl_comm_nccl_lock(n, err) : 0;
}

int pl_comm_nccl_check(struct pl_comm *comm, struct pl_error *err)
{
    struct nccl *n = (struct nccl *)comm;
    int r = pl_comm_nccl_lock(n, err);

    if (r == 0)
        pthread_mutex_unlock(&n->lock);
    return r;
}

int pl_comm_nccl_wait(struct pl_comm *comm, struct pl_error *err)
{
    struct nccl *n = (struct nccl *)comm;

    return pl_comm_nccl_ask(n, n->table->finished, 0, "", err);
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
    int r = pl_comm_nccl_lock(n, err);

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
    int r = pl_comm_nccl_lock(n, err);

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
    int r = pl_comm_nccl_lock(n, err);

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

const struct pl_comm_ops pl_comm_nccl_ops = {
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
