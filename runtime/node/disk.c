/* SPDX-License-Identifier: MIT */
#include "runtime/node/disk.h"
#include "common/base/fs.h"
#include "common/base/macros.h"
#include "runtime/node/thread.h"

#include <errno.h>
#include <stdlib.h>
#include <time.h>

#define CLOSE_MS 1000

struct list {
    struct pl_disk_job *first, **end;
};

struct pl_disk {
    pthread_t thread;
    bool threaded;
    uv_async_t finished_some;
    pthread_mutex_t lock;
    /* below: under the lock */
    pthread_cond_t wake, idle;
    struct list waiting, finished;
    uint64_t since_ns; /* when the work under way began; 0 = none is */
    bool stop, left;   /* left: nobody in the loop is there any more */
};

static void list_init(struct list *l)
{
    *l = (struct list){.end = &l->first};
}

static void list_add(struct list *l, struct pl_disk_job *job)
{
    job->next = NULL;
    *l->end = job;
    l->end = &job->next;
}

static struct pl_disk_job *list_take(struct list *l)
{
    struct pl_disk_job *job = l->first;

    l->first = job->next;
    if (!l->first)
        l->end = &l->first;
    return job;
}

static void *run(void *ctx)
{
    struct pl_disk *d = ctx;

    pthread_mutex_lock(&d->lock);
    for (;;) {
        struct pl_disk_job *job;

        while (!d->waiting.first && !d->stop)
            pthread_cond_wait(&d->wake, &d->lock);
        if (!d->waiting.first || d->left)
            break;
        job = list_take(&d->waiting);
        d->since_ns = pl_now_ns();
        pthread_mutex_unlock(&d->lock);
        job->work(job);
        pthread_mutex_lock(&d->lock);
        d->since_ns = 0;
        list_add(&d->finished, job);
        if (!d->waiting.first)
            pthread_cond_broadcast(&d->idle);
        if (!d->left)
            uv_async_send(&d->finished_some);
    }
    pthread_mutex_unlock(&d->lock);
    return NULL;
}

static void tell_finished(struct pl_disk *d)
{
    for (;;) {
        struct pl_disk_job *job;

        pthread_mutex_lock(&d->lock);
        job = d->finished.first ? list_take(&d->finished) : NULL;
        pthread_mutex_unlock(&d->lock);
        if (!job)
            return;
        job->done(job);
    }
}

static void on_finished_some(uv_async_t *async)
{
    tell_finished(async->data);
}

static void destroy(struct pl_disk *d)
{
    pthread_cond_destroy(&d->wake);
    pthread_cond_destroy(&d->idle);
    pthread_mutex_destroy(&d->lock);
    free(d);
}

static void on_closed(uv_handle_t *async)
{
    destroy(async->data);
}

int pl_disk_create(uv_loop_t *loop, struct pl_disk **ret)
{
    struct pl_disk *d = calloc(1, sizeof(*d));
    pthread_condattr_t attr;
    int r;

    if (!d)
        return -ENOMEM;
    list_init(&d->waiting);
    list_init(&d->finished);
    pthread_mutex_init(&d->lock, NULL);
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&d->wake, &attr);
    pthread_cond_init(&d->idle, &attr);
    pthread_condattr_destroy(&attr);
    r = uv_async_init(loop, &d->finished_some, on_finished_some);
    if (r < 0) {
        destroy(d);
        return r;
    }
    d->finished_some.data = d;
    uv_unref((uv_handle_t *)&d->finished_some);
    d->threaded = pl_thread_start(&d->thread, run, d) == 0;
    *ret = d;
    return 0;
}

void pl_disk_add(struct pl_disk *d, struct pl_disk_job *job)
{
    if (!d || !d->threaded) {
        job->work(job);
        job->done(job);
        return;
    }
    pthread_mutex_lock(&d->lock);
    list_add(&d->waiting, job);
    pthread_cond_signal(&d->wake);
    pthread_mutex_unlock(&d->lock);
}

bool pl_disk_has_thread(const struct pl_disk *d)
{
    return d && d->threaded;
}

bool pl_disk_wait(struct pl_disk *d, unsigned ms)
{
    struct timespec until;
    bool idle;

    if (!d || !d->threaded)
        return true;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_nsec += (long)(ms % 1000) * 1000000;
    until.tv_sec += (time_t)(ms / 1000) + until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    pthread_mutex_lock(&d->lock);
    while (!(idle = !d->waiting.first && !d->since_ns))
        if (pthread_cond_timedwait(&d->idle, &d->lock, &until) == ETIMEDOUT)
            break;
    pthread_mutex_unlock(&d->lock);
    return idle;
}

uint64_t pl_disk_busy_ms(struct pl_disk *d)
{
    uint64_t since_ns, now = pl_now_ns();

    if (!d || !d->threaded)
        return 0;
    pthread_mutex_lock(&d->lock);
    since_ns = d->since_ns;
    pthread_mutex_unlock(&d->lock);
    return since_ns && now > since_ns ? (now - since_ns) / 1000000 : 0;
}

void pl_disk_answered(struct pl_disk *d)
{
    if (!d || !d->threaded)
        return;
    pthread_mutex_lock(&d->lock);
    d->since_ns = pl_now_ns();
    pthread_mutex_unlock(&d->lock);
}

void pl_disk_tell(struct pl_disk *d)
{
    if (d && d->threaded)
        tell_finished(d);
}

void pl_disk_close(struct pl_disk *d)
{
    bool idle;

    if (!d)
        return;
    idle = pl_disk_wait(d, CLOSE_MS);
    pthread_mutex_lock(&d->lock);
    d->stop = true;
    d->left = !idle;
    pthread_cond_signal(&d->wake);
    pthread_mutex_unlock(&d->lock);
    if (!idle) {
        pl_thread_leave(d->thread);
        return;
    }
    if (d->threaded)
        pthread_join(d->thread, NULL);
    d->threaded = false; /* what done() adds is done at once */
    tell_finished(d);
    uv_close((uv_handle_t *)&d->finished_some, on_closed);
}
