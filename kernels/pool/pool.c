/* SPDX-License-Identifier: MIT */
/* A job of a group is one word: its number and the number of chunks not taken. A thread takes a
 * chunk by decrementing the latter; only then may it read the job's other fields. The owner changes
 * them only while the count is 0 and all taken chunks are done. So a worker that sleeps through a
 * job delays nobody.
 *
 * Devices are a job of the root group: its first chunks lead one group each until their devices are
 * done; the other chunks serve one of these groups as workers until its leader closes it. */
#include "kernels/pool/pool.h"
#include "common/base/signals.h"
#include "kernels/kernels.h"

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define SPIN_NS 20000 /* longer than the gap between two ops of a step, shorter than a wake-up */
#define DEVICES_MAX 64

struct group {
    _Alignas(64) _Atomic uint64_t job; /* number << 32 | chunks not taken */
    atomic_uint wake;                  /* changes when sleepers must look again */
    atomic_uint sleepers;
    atomic_bool closed;
    _Alignas(64) atomic_uint done; /* chunks */
    atomic_bool owner_sleeps;
    atomic_bool busy;
    /* Fields of the job: see the top of the file. */
    uint32_t chunks;
    size_t n, grain;
    void (*body)(void *ctx, size_t begin, size_t end);
    void *ctx;
    unsigned threads;
};

struct devices {
    unsigned k, lanes;
    int (*body)(void *ctx, unsigned device);
    void *ctx;
    pthread_mutex_t lock;
    unsigned failed; /* lowest device that failed; k = none */
    int result;
};

static struct {
    struct group root;
    struct group lanes[DEVICES_MAX];
    pthread_mutex_t lock; /* protects the following */
    pthread_t workers[PL_POOL_MAX];
    unsigned n_workers;
    atomic_uint threads; /* 0 = unknown yet */
    atomic_bool started, lanes_busy;
    bool spin;
} pool = {.lock = PTHREAD_MUTEX_INITIALIZER};

static _Thread_local struct group *my_group; /* NULL = the root */
static _Thread_local bool inside;            /* in a body of pl_pool_parallel() */

static void futex_wait(atomic_uint *word, unsigned seen)
{
    syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, seen, NULL, NULL, 0);
}

static void futex_wake(atomic_uint *word, unsigned n)
{
    syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, n, NULL, NULL, 0);
}

static void relax(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

static uint64_t now_ns(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* Takes and runs chunks until none is left. */
static void work(struct group *g)
{
    bool was_inside = inside;
    uint64_t job = atomic_load(&g->job);

    inside = true;
    while ((uint32_t)job > 0) {
        size_t begin, chunk;
        uint32_t chunks;

        if (!atomic_compare_exchange_weak(&g->job, &job, job - 1))
            continue;
        chunks = g->chunks;
        chunk = chunks - (uint32_t)job;
        begin = chunk * g->grain;
        g->body(g->ctx, begin, PL_MIN(g->n - begin, g->grain) + begin);
        if (atomic_fetch_add(&g->done, 1) + 1 == chunks && atomic_load(&g->owner_sleeps))
            futex_wake(&g->done, 1);
        job = atomic_load(&g->job);
    }
    inside = was_inside;
}

/* Works for a group until it is closed. */
static void serve(struct group *g)
{
    uint64_t idle_since = 0;

    while (!atomic_load(&g->closed)) {
        unsigned seen;

        if ((uint32_t)atomic_load(&g->job) > 0) {
            work(g);
            idle_since = 0;
            continue;
        }
        if (pool.spin) {
            uint64_t now = now_ns();

            idle_since = idle_since ? idle_since : now;
            if (now - idle_since < SPIN_NS) {
                for (int i = 0; i < 16; i++)
                    relax();
                continue;
            }
        }
        atomic_fetch_add(&g->sleepers, 1);
        seen = atomic_load(&g->wake);
        if ((uint32_t)atomic_load(&g->job) == 0 && !atomic_load(&g->closed))
            futex_wait(&g->wake, seen);
        atomic_fetch_sub(&g->sleepers, 1);
        idle_since = 0;
    }
}

static void wake_some(struct group *g, unsigned n)
{
    if (atomic_load(&g->sleepers) > 0) {
        atomic_fetch_add(&g->wake, 1);
        futex_wake(&g->wake, n);
    }
}

static void close_group(struct group *g)
{
    atomic_store(&g->closed, true);
    wake_some(g, INT_MAX);
}

static void wait_done(struct group *g, uint32_t chunks)
{
    uint64_t begin = pool.spin ? now_ns() : 0;
    unsigned done;

    while ((done = atomic_load(&g->done)) != chunks) {
        if (begin && now_ns() - begin < SPIN_NS) {
            relax();
            continue;
        }
        atomic_store(&g->owner_sleeps, true);
        done = atomic_load(&g->done);
        if (done != chunks)
            futex_wait(&g->done, done);
        atomic_store(&g->owner_sleeps, false);
    }
}

static void *worker_main(void *arg)
{
    serve(&pool.root);
    return NULL;
}

/* The child has none of the parent's threads, and fork() may have come in the middle of a job. */
static void after_fork(void)
{
    unsigned threads = atomic_load(&pool.threads);

    pool.root = (struct group){.threads = threads};
    for (size_t i = 0; i < DEVICES_MAX; i++)
        pool.lanes[i] = (struct group){0};
    atomic_store(&pool.lanes_busy, false);
    pool.n_workers = 0;
    atomic_store(&pool.started, false);
    pthread_mutex_init(&pool.lock, NULL);
    my_group = NULL;
    inside = false;
}

static void register_fork(void)
{
    pthread_atfork(NULL, NULL, after_fork);
}

static unsigned pool_size(void)
{
    unsigned n = atomic_load(&pool.threads);

    if (n == 0) {
        n = PL_MIN(pl_threads_available(), (unsigned)PL_POOL_MAX);
        atomic_store(&pool.threads, n);
    }
    return n;
}

static void start_workers(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    sigset_t all, old;
    cpu_set_t cpus;

    if (atomic_load(&pool.started))
        return;
    pthread_once(&once, register_fork);
    pthread_mutex_lock(&pool.lock);
    if (!atomic_load(&pool.started)) {
        unsigned n = pool_size();

        /* Only the program's own threads handle signals. */
        pl_signals_of_threads(&all);
        pthread_sigmask(SIG_SETMASK, &all, &old);
        pool.spin =
            sched_getaffinity(0, sizeof(cpus), &cpus) == 0 && (unsigned)CPU_COUNT(&cpus) >= n;
        atomic_store(&pool.root.closed, false);
        while (pool.n_workers < n - 1 &&
               pthread_create(&pool.workers[pool.n_workers], NULL, worker_main, NULL) == 0) {
            pthread_setname_np(pool.workers[pool.n_workers], "plume-cpu");
            pool.n_workers++;
        }
        pthread_sigmask(SIG_SETMASK, &old, NULL);
        atomic_store(&pool.started, true);
    }
    pthread_mutex_unlock(&pool.lock);
}

void pl_pool_resize(unsigned threads)
{
    pthread_mutex_lock(&pool.lock);
    close_group(&pool.root);
    for (unsigned i = 0; i < pool.n_workers; i++)
        pthread_join(pool.workers[i], NULL);
    pool.n_workers = 0;
    atomic_store(&pool.threads, PL_MIN(threads, (unsigned)PL_POOL_MAX));
    atomic_store(&pool.started, false);
    pthread_mutex_unlock(&pool.lock);
}

unsigned pl_pool_threads(void)
{
    if (inside)
        return 1;
    return my_group ? my_group->threads : pool_size();
}

static void
inline_chunks(size_t n, size_t grain, void (*body)(void *ctx, size_t begin, size_t end), void *ctx)
{
    bool was_inside = inside;

    inside = true;
    for (size_t begin = 0; begin < n; begin += grain)
        body(ctx, begin, PL_MIN(n - begin, grain) + begin);
    inside = was_inside;
}

void pl_pool_parallel(size_t n,
                      size_t grain,
                      void (*body)(void *ctx, size_t begin, size_t end),
                      void *ctx)
{
    struct group *g = my_group ? my_group : &pool.root;
    size_t chunks = n / grain + (n % grain > 0);
    unsigned threads = pl_pool_threads();
    bool was_busy = false;

    if (threads == 1 || chunks < 2 || chunks >= UINT32_MAX ||
        !atomic_compare_exchange_strong(&g->busy, &was_busy, true)) {
        inline_chunks(n, grain, body, ctx);
        return;
    }
    if (g == &pool.root)
        start_workers();
    g->chunks = (uint32_t)chunks;
    g->n = n;
    g->grain = grain;
    g->body = body;
    g->ctx = ctx;
    atomic_store(&g->done, 0);
    atomic_store(&g->job, ((atomic_load(&g->job) >> 32) + 1) << 32 | chunks);
    wake_some(g, (unsigned)PL_MIN(chunks - 1, (size_t)threads - 1));
    work(g);
    wait_done(g, (uint32_t)chunks);
    atomic_store(&g->busy, false);
}

static void lead(struct devices *d, unsigned lane)
{
    for (unsigned device = lane; device < d->k; device += d->lanes) {
        int r = d->body(d->ctx, device);

        if (r != 0) {
            pthread_mutex_lock(&d->lock);
            if (device < d->failed) {
                d->failed = device;
                d->result = r;
            }
            pthread_mutex_unlock(&d->lock);
        }
    }
}

/* Chunk i is thread i of the job. */
static void device_thread(void *ctx, size_t begin, size_t end)
{
    struct devices *d = ctx;
    struct group *before = my_group, *mine = &pool.lanes[begin % d->lanes];
    bool was_inside = inside;

    if (begin < d->lanes) {
        my_group = mine;
        inside = false;
        lead(d, (unsigned)begin);
        close_group(mine);
        my_group = before;
        inside = was_inside;
    } else {
        serve(mine);
    }
}

int pl_pool_devices(unsigned k, int (*body)(void *ctx, unsigned device), void *ctx)
{
    unsigned threads = pl_pool_threads();
    struct devices d = {.k = k,
                        .lanes = PL_MIN(PL_MIN(k, threads), (unsigned)DEVICES_MAX),
                        .body = body,
                        .ctx = ctx,
                        .failed = k};

    if (k == 0)
        return 0;
    pthread_mutex_init(&d.lock, NULL);
    if (d.lanes > 1 && !my_group && !atomic_exchange(&pool.lanes_busy, true)) {
        for (unsigned lane = 0; lane < d.lanes; lane++) {
            struct group *g = &pool.lanes[lane];

            atomic_store(&g->closed, false);
            g->threads = threads / d.lanes + (lane < threads % d.lanes);
        }
        pl_pool_parallel(threads, 1, device_thread, &d);
        atomic_store(&pool.lanes_busy, false);
    } else {
        d.lanes = 1;
        lead(&d, 0);
    }
    pthread_mutex_destroy(&d.lock);
    return d.failed < k ? d.result : 0;
}
