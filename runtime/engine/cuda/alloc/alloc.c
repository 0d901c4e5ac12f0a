/* SPDX-License-Identifier: MIT */
#include "runtime/engine/cuda/alloc/alloc_private.h"
#include "runtime/engine/cuda/util/cuda_status.h"

#include <cuda_runtime_api.h>
#include <string.h>

#define FULL (-ENOSPC) /* the device has no segment of this size */

static cudaEvent_t take_event(struct pl_cuda_alloc *a)
{
    cudaEvent_t event = NULL;

    if (a->n_spare)
        return a->spare[--a->n_spare];
    if (cudaEventCreateWithFlags(&event, cudaEventDisableTiming) != cudaSuccess) {
        (void)cudaGetLastError();
        return NULL;
    }
    return event;
}

static void spare_event(struct pl_cuda_alloc *a, cudaEvent_t event)
{
    if (a->n_spare == a->max_spare) {
        size_t max = PL_MAX(2 * a->max_spare, (size_t)16);
        cudaEvent_t *more = realloc(a->spare, max * sizeof(cudaEvent_t));

        if (!more) {
            cudaEventDestroy(event);
            return;
        }
        a->spare = more;
        a->max_spare = max;
    }
    a->spare[a->n_spare++] = event;
}

static struct pl_cuda_pool *pool_of(struct pl_cuda_alloc *a, cudaStream_t stream, bool small)
{
    struct pl_cuda_pool *p = a->pools;

    while (p && (p->stream != stream || p->small != small))
        p = p->next;
    if (p)
        return p;
    p = calloc(1, sizeof(*p));
    if (p) {
        *p = (struct pl_cuda_pool){.next = a->pools, .stream = stream, .small = small};
        a->pools = p;
    }
    return p;
}

/* Merges a free block into the free block before it. */
static struct pl_cuda_block *merge(struct pl_cuda_block *first, struct pl_cuda_block *second)
{
    first->bytes += second->bytes;
    first->next = second->next;
    if (first->next)
        first->next->prev = first;
    free(second);
    return first;
}

/* Frees the block for its pool's stream. */
static void make_free(struct pl_cuda_alloc *a, struct pl_cuda_block *b)
{
    struct pl_cuda_pool *pool = b->pool;

    a->stats.in_use_bytes -= b->bytes;
    a->stats.cached_bytes += b->bytes;
    free(b->users);
    free(b->events);
    b->users = NULL;
    b->events = NULL;
    b->n_users = 0;
    if (b->prev && b->prev->state == PL_CUDA_FREE) {
        pl_cuda_pool_remove(pool, b->prev);
        b = merge(b->prev, b);
    }
    if (b->next && b->next->state == PL_CUDA_FREE) {
        pl_cuda_pool_remove(pool, b->next);
        b = merge(b, b->next);
    }
    pl_cuda_pool_add(pool, b);
}

/* True if all events of the block have completed. */
static bool passed(struct pl_cuda_alloc *a, struct pl_cuda_block *b, bool wait)
{
    bool all = true;

    for (size_t i = 0; i < b->n_users; i++) {
        if (!b->events[i])
            continue;
        if ((wait ? cudaEventSynchronize(b->events[i]) : cudaEventQuery(b->events[i])) !=
            cudaSuccess) {
            (void)cudaGetLastError(); /* "not ready" sets the last error, too */
            all = false;
            continue;
        }
        spare_event(a, b->events[i]);
        b->events[i] = NULL;
    }
    return all;
}

static void sweep(struct pl_cuda_alloc *a, bool wait)
{
    struct pl_cuda_block **at = &a->passing;

    while (*at) {
        struct pl_cuda_block *b = *at;

        if (passed(a, b, wait)) {
            *at = b->link_next;
            make_free(a, b);
        } else {
            at = &b->link_next;
        }
    }
}

/* Allocates a segment of this size as a free block of the pool. FULL, -ENOMEM (of the host), -EIO.
 */
static int
add_segment(struct pl_cuda_alloc *a, struct pl_cuda_pool *pool, size_t bytes, struct pl_error *err)
{
    struct pl_cuda_block *b;
    void *at = NULL;
    cudaError_t code;

    if (a->stats.limit_bytes && (a->stats.reserved_bytes > a->stats.limit_bytes ||
                                 bytes > a->stats.limit_bytes - a->stats.reserved_bytes))
        return FULL;
    b = calloc(1, sizeof(*b));
    if (!b)
        return pl_error_nomem(err);
    code = cudaMalloc(&at, bytes);
    if (code != cudaSuccess) {
        free(b);
        if (code != cudaErrorMemoryAllocation)
            return pl_cuda_error(err, a->name, "cudaMalloc", code);
        (void)cudaGetLastError();
        return FULL;
    }
    *b = (struct pl_cuda_block){.at = at, .bytes = bytes};
    a->stats.device_allocs++;
    a->stats.reserved_bytes += bytes;
    a->stats.reserved_peak_bytes = PL_MAX(a->stats.reserved_peak_bytes, a->stats.reserved_bytes);
    a->stats.cached_bytes += bytes;
    pl_cuda_pool_add(pool, b);
    return 0;
}

/* Adds a segment of the usual size to the pool, or one of the exact size. */
static int
grow(struct pl_cuda_alloc *a, struct pl_cuda_pool *pool, size_t bytes, struct pl_error *err)
{
    size_t usual = pl_cuda_segment_size(bytes);
    size_t least =
        (bytes + PL_CUDA_SMALL_SEGMENT - 1) / PL_CUDA_SMALL_SEGMENT * PL_CUDA_SMALL_SEGMENT;
    int r = add_segment(a, pool, usual, err);

    return r == FULL && least < usual ? add_segment(a, pool, least, err) : r;
}

/* Takes over the smallest sufficient segment of another stream's pool. The pool's stream waits for
 * the other stream's queued work. */
static bool take_over(struct pl_cuda_alloc *a, struct pl_cuda_pool *pool, size_t bytes)
{
    struct pl_cuda_block *best = NULL;
    cudaEvent_t event;
    bool done;

    for (struct pl_cuda_pool *p = a->pools; p; p = p->next) {
        struct pl_cuda_block *b =
            p->small == pool->small && p != pool ? pl_cuda_pool_find(p, bytes, true) : NULL;

        if (b && (!best || b->bytes < best->bytes))
            best = b;
    }
    event = best ? take_event(a) : NULL;
    if (!event)
        return false;
    done = cudaEventRecord(event, best->pool->stream) == cudaSuccess &&
           cudaStreamWaitEvent(pool->stream, event, 0) == cudaSuccess;
    spare_event(a, event); /* the wait keeps what was recorded, so the event is free */
    if (!done) {
        (void)cudaGetLastError();
        return false;
    }
    pl_cuda_pool_remove(best->pool, best);
    pl_cuda_pool_add(pool, best);
    a->stats.takeovers++;
    return true;
}

static void release(struct pl_cuda_alloc *a)
{
    bool waited = false;

    for (struct pl_cuda_pool *p = a->pools; p; p = p->next) {
        struct pl_cuda_block *b;

        while ((b = pl_cuda_pool_find(p, PL_CUDA_ALIGN, true))) {
            if (!waited && cudaDeviceSynchronize() != cudaSuccess)
                (void)cudaGetLastError(); /* kept in the status: the next sync returns it */
            waited = true;
            pl_cuda_pool_remove(p, b);
            if (cudaFree(b->at) != cudaSuccess)
                (void)cudaGetLastError();
            a->stats.device_frees++;
            a->stats.reserved_bytes -= b->bytes;
            a->stats.cached_bytes -= b->bytes;
            free(b);
        }
    }
}

/* Finds a free block for the pool: its own, else in the order of the header. */
static int find(struct pl_cuda_alloc *a,
                struct pl_cuda_pool *pool,
                size_t bytes,
                struct pl_cuda_block **ret,
                struct pl_error *err)
{
    struct pl_cuda_block *b = pl_cuda_pool_find(pool, bytes, false);
    int r = 0;

    if (!b) {
        r = grow(a, pool, bytes, err);
        if (r == FULL && take_over(a, pool, bytes))
            r = 0;
        if (r == FULL && a->passing) {
            sweep(a, true);
            r = pl_cuda_pool_find(pool, bytes, false) || take_over(a, pool, bytes) ? 0 : FULL;
        }
        if (r == FULL) {
            release(a);
            r = grow(a, pool, bytes, err);
        }
        b = r == 0 ? pl_cuda_pool_find(pool, bytes, false) : NULL;
    }
    *ret = b;
    return r;
}

/* Splits off the unused rest, if it is worth a block. */
static void split(struct pl_cuda_block *b, size_t bytes)
{
    size_t rest = b->bytes - bytes;
    struct pl_cuda_block *second;

    if (rest == 0 || (!b->pool->small && rest <= PL_CUDA_SMALL))
        return;
    second = calloc(1, sizeof(*second));
    if (!second)
        return; /* no memory for the rest: use the whole block */
    *second =
        (struct pl_cuda_block){.at = b->at + bytes, .bytes = rest, .prev = b, .next = b->next};
    if (b->next)
        b->next->prev = second;
    b->next = second;
    b->bytes = bytes;
    pl_cuda_pool_add(b->pool, second);
}

static int get_locked(struct pl_cuda_alloc *a,
                      size_t bytes,
                      cudaStream_t stream,
                      const char *holder,
                      void **ret,
                      struct pl_error *err)
{
    size_t size = bytes < SIZE_MAX / 2 ? pl_cuda_block_size(bytes) : 0;
    struct pl_cuda_pool *pool = pool_of(a, stream, size <= PL_CUDA_SMALL);
    struct pl_cuda_block *b = NULL;
    int r;

    if (!pool || pl_cuda_table_reserve(a) < 0)
        return pl_error_nomem(err);
    sweep(a, false);
    r = size ? find(a, pool, size, &b, err) : FULL;
    if (r == FULL) {
        size_t left = 0, all = 0;

        if (cudaMemGetInfo(&left, &all) != cudaSuccess)
            (void)cudaGetLastError();
        return pl_cuda_alloc_exhausted(a, bytes, holder, left, all, err);
    }
    if (r < 0)
        return r;
    pl_cuda_pool_remove(pool, b);
    split(b, size);
    b->holder = holder;
    pl_cuda_table_add(a, b);
    a->stats.cached_bytes -= b->bytes;
    a->stats.in_use_bytes += b->bytes;
    a->stats.in_use_peak_bytes = PL_MAX(a->stats.in_use_peak_bytes, a->stats.in_use_bytes);
    *ret = b->at;
    return 0;
}

int pl_cuda_alloc_get(struct pl_cuda_alloc *alloc,
                      size_t bytes,
                      struct CUstream_st *stream,
                      const char *holder,
                      void **ret,
                      struct pl_error *err)
{
    int r;

    pthread_mutex_lock(&alloc->lock);
    r = get_locked(alloc, bytes, stream, holder, ret, err);
    pthread_mutex_unlock(&alloc->lock);
    return r;
}

int pl_cuda_alloc_used_by(struct pl_cuda_alloc *alloc,
                          void *block,
                          struct CUstream_st *stream,
                          struct pl_error *err)
{
    struct pl_cuda_block *b;
    bool known = true;
    int r = 0;

    pthread_mutex_lock(&alloc->lock);
    b = pl_cuda_table_find(alloc, block);
    if (b && b->pool->stream != stream) {
        known = false;
        for (size_t i = 0; !known && i < b->n_users; i++)
            known = b->users[i] == stream;
    }
    if (!known) {
        cudaStream_t *users = realloc(b->users, (b->n_users + 1) * sizeof(cudaStream_t));
        cudaEvent_t *events;

        b->users = users ? users : b->users;
        events = realloc(b->events, (b->n_users + 1) * sizeof(cudaEvent_t));
        b->events = events ? events : b->events;
        if (users && events) {
            users[b->n_users] = stream;
            events[b->n_users++] = NULL;
        } else {
            r = pl_error_nomem(err);
        }
    }
    pthread_mutex_unlock(&alloc->lock);
    return r;
}

/* Records an event in each other stream; without an event, waits for that stream. */
static void mark_users(struct pl_cuda_alloc *a, struct pl_cuda_block *b)
{
    for (size_t i = 0; i < b->n_users; i++) {
        cudaEvent_t event = take_event(a);

        if (event && cudaEventRecord(event, b->users[i]) == cudaSuccess) {
            b->events[i] = event;
            continue;
        }
        if (event)
            spare_event(a, event);
        (void)cudaStreamSynchronize(b->users[i]);
        (void)cudaGetLastError();
    }
}

void pl_cuda_alloc_put(struct pl_cuda_alloc *alloc, void *block)
{
    struct pl_cuda_block *b;

    if (!block)
        return;
    pthread_mutex_lock(&alloc->lock);
    b = pl_cuda_table_find(alloc, block);
    if (b) {
        pl_cuda_table_remove(alloc, b);
        if (b->n_users) {
            mark_users(alloc, b);
            b->state = PL_CUDA_PASSING;
            b->link_next = alloc->passing;
            alloc->passing = b;
        } else {
            make_free(alloc, b);
        }
    }
    pthread_mutex_unlock(&alloc->lock);
}

void pl_cuda_alloc_trim(struct pl_cuda_alloc *alloc)
{
    pthread_mutex_lock(&alloc->lock);
    sweep(alloc, false);
    release(alloc);
    pthread_mutex_unlock(&alloc->lock);
}

void pl_cuda_alloc_stats(struct pl_cuda_alloc *alloc, struct pl_cuda_alloc_stats *ret)
{
    pthread_mutex_lock(&alloc->lock);
    *ret = alloc->stats;
    pthread_mutex_unlock(&alloc->lock);
}

int pl_cuda_alloc_create(const char *name,
                         size_t limit_bytes,
                         struct pl_cuda_alloc **ret,
                         struct pl_error *err)
{
    struct pl_cuda_alloc *a = calloc(1, sizeof(*a));

    if (!a || !(a->name = strdup(name))) {
        free(a);
        return pl_error_nomem(err);
    }
    pthread_mutex_init(&a->lock, NULL);
    a->stats.limit_bytes = limit_bytes;
    *ret = a;
    return 0;
}

void pl_cuda_alloc_destroy(struct pl_cuda_alloc *alloc)
{
    if (!alloc)
        return;
    for (size_t i = 0; i < alloc->table_size; i++) {
        struct pl_cuda_block *b;

        while ((b = alloc->table[i])) {
            pl_cuda_table_remove(alloc, b);
            make_free(alloc, b);
        }
    }
    for (struct pl_cuda_block *b = alloc->passing, *next; b; b = next) {
        next = b->link_next;
        for (size_t i = 0; i < b->n_users; i++)
            if (b->events[i])
                spare_event(alloc, b->events[i]);
        make_free(alloc, b);
    }
    release(alloc);
    while (alloc->n_spare)
        cudaEventDestroy(alloc->spare[--alloc->n_spare]);
    while (alloc->pools) {
        struct pl_cuda_pool *p = alloc->pools;

        alloc->pools = p->next;
        free(p);
    }
    pthread_mutex_destroy(&alloc->lock);
    free(alloc->spare);
    free(alloc->table);
    free(alloc->name);
    free(alloc);
}
