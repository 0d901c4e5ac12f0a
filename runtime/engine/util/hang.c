/* SPDX-License-Identifier: MIT */
#include "runtime/engine/util/hang.h"
#include "common/base/fs.h"
#include "common/base/log.h"
#include "common/base/signals.h"
#include "common/proto/rank/place.h"

#include <pthread.h>
#include <stdatomic.h>
#include <time.h>

#define TICK_MS 500

static struct {
    const char *_Atomic name;
    _Atomic uint64_t since_ns;
} running[PL_HANG_PLACES];

static struct {
    pthread_mutex_t lock;
    pthread_cond_t stop;
    pthread_t thread;
    bool started, stopping;
    double seconds;
    unsigned rank;
} watch = {.lock = PTHREAD_MUTEX_INITIALIZER, .stop = PTHREAD_COND_INITIALIZER};

void pl_hang_hook(enum pl_hang_place place, const char *name)
{
    if (name)
        atomic_store_explicit(&running[place].since_ns, pl_now_ns(), memory_order_relaxed);
    atomic_store_explicit(&running[place].name, name, memory_order_release);
    pl_place_hook(place, name);
}

static void look(uint64_t *told)
{
    for (int i = 0; i < PL_HANG_PLACES; i++) {
        uint64_t since = atomic_load(&running[i].since_ns), now = pl_now_ns();
        const char *name = atomic_load(&running[i].name);

        if (!name || since == told[i] || now < since ||
            (double)(now - since) * 1e-9 < watch.seconds)
            continue;
        /* It may have returned, and another one begun, in between. */
        if (atomic_load(&running[i].since_ns) != since || atomic_load(&running[i].name) != name)
            continue;
        told[i] = since;
        pl_log_warn("train", "rank %u: hook %s has not returned for %.0f s", watch.rank, name,
                    (double)(now - since) * 1e-9);
    }
}

static void *watch_main(void *arg)
{
    uint64_t told[PL_HANG_PLACES] = {0};

    (void)arg;
    pthread_mutex_lock(&watch.lock);
    while (!watch.stopping) {
        struct timespec at;

        clock_gettime(CLOCK_REALTIME, &at);
        at.tv_nsec += TICK_MS * 1000000l;
        at.tv_sec += at.tv_nsec / 1000000000;
        at.tv_nsec %= 1000000000;
        pthread_cond_timedwait(&watch.stop, &watch.lock, &at);
        look(told);
    }
    pthread_mutex_unlock(&watch.lock);
    return NULL;
}

void pl_hang_watch(double seconds, unsigned rank)
{
    sigset_t all, before;

    if (!(seconds > 0) || watch.started)
        return;
    watch.seconds = seconds;
    watch.rank = rank;
    watch.stopping = false;
    pl_signals_of_threads(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    watch.started = pthread_create(&watch.thread, NULL, watch_main, NULL) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
}

void pl_hang_stop(void)
{
    if (!watch.started)
        return;
    pthread_mutex_lock(&watch.lock);
    watch.stopping = true;
    pthread_cond_signal(&watch.stop);
    pthread_mutex_unlock(&watch.lock);
    pthread_join(watch.thread, NULL);
    watch.started = false;
}
