/* SPDX-License-Identifier: MIT */
#include "runtime/node/resolve.h"
#include "common/base/fs.h"
#include "runtime/node/thread.h"

#include <string.h>
#include <sys/socket.h>

struct pl_resolve {
    uv_async_t wake;
    pl_resolve_fn *done;
    void *ctx;
    pthread_mutex_t lock; /* of what follows */
    unsigned refs;        /* the loop's, until `wake` is closed, and the thread's */
    bool cancelled;
    struct addrinfo *list;
    char host[];
};

static void unref(struct pl_resolve *r)
{
    bool last;

    pthread_mutex_lock(&r->lock);
    last = --r->refs == 0;
    pthread_mutex_unlock(&r->lock);
    if (!last)
        return;
    if (r->list)
        freeaddrinfo(r->list);
    pthread_mutex_destroy(&r->lock);
    free(r);
}

static void *work(void *ctx)
{
    struct pl_resolve *r = ctx;
    const struct addrinfo hints = {.ai_socktype = SOCK_STREAM};
    struct addrinfo *list = NULL;

    if (getaddrinfo(r->host, NULL, &hints, &list) != 0)
        list = NULL;
    pthread_mutex_lock(&r->lock);
    r->list = list;
    if (!r->cancelled)
        uv_async_send(&r->wake);
    pthread_mutex_unlock(&r->lock);
    unref(r);
    return NULL;
}

static void on_closed(uv_handle_t *wake)
{
    unref(wake->data);
}

static void on_wake(uv_async_t *wake)
{
    struct pl_resolve *r = wake->data;
    struct addrinfo *list;

    pthread_mutex_lock(&r->lock);
    list = PL_TAKE(r->list);
    pthread_mutex_unlock(&r->lock);
    uv_close((uv_handle_t *)wake, on_closed);
    r->done(r->ctx, list);
}

int pl_resolve_start(
    uv_loop_t *loop, const char *host, pl_resolve_fn *done, void *ctx, struct pl_resolve **ret)
{
    size_t len = strlen(host) + 1;
    struct pl_resolve *r = calloc(1, sizeof(*r) + len);
    pthread_t thread;
    int error;

    if (!r)
        return -ENOMEM;
    memcpy(r->host, host, len);
    r->done = done;
    r->ctx = ctx;
    r->refs = 2;
    pthread_mutex_init(&r->lock, NULL);
    error = uv_async_init(loop, &r->wake, on_wake);
    if (error < 0) {
        r->refs = 1;
        unref(r);
        return error;
    }
    r->wake.data = r;
    error = pl_thread_start(&thread, work, r);
    if (error < 0) {
        r->refs = 1;
        uv_close((uv_handle_t *)&r->wake, on_closed);
        return error;
    }
    pthread_detach(thread);
    *ret = r;
    return 0;
}

void pl_resolve_cancel(struct pl_resolve *r)
{
    if (!r)
        return;
    pthread_mutex_lock(&r->lock);
    r->cancelled = true;
    pthread_mutex_unlock(&r->lock);
    uv_close((uv_handle_t *)&r->wake, on_closed);
}
