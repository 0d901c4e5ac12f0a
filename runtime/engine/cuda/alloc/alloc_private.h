/* SPDX-License-Identifier: MIT */
/* The allocator's parts: blocks and where they are found. */
#ifndef PL_RUNTIME_ENGINE_CUDA_ALLOC_ALLOC_PRIVATE_H
#define PL_RUNTIME_ENGINE_CUDA_ALLOC_ALLOC_PRIVATE_H

#include "runtime/engine/cuda/alloc/alloc.h"

#include <pthread.h>
#include <stdbool.h>

#define PL_CUDA_ALIGN ((size_t)512)
#define PL_CUDA_SMALL ((size_t)1 << 20)         /* at most: from segments of their own */
#define PL_CUDA_SMALL_SEGMENT ((size_t)2 << 20) /* also what large sizes are rounded to */
#define PL_CUDA_MIDDLE ((size_t)10 << 20)       /* less: several share a segment */
#define PL_CUDA_MIDDLE_SEGMENT ((size_t)20 << 20)
#define PL_CUDA_CLASSES 128 /* four for each power of two from 512 bytes on */

struct CUevent_st;

enum pl_cuda_state {
    PL_CUDA_FREE,   /* in its pool's lists */
    PL_CUDA_USED,   /* in the table of addresses */
    PL_CUDA_PASSING /* freed, but other streams' events have not passed */
};

/* A part of a segment. prev and next are its neighbours there; NULL at the segment's ends. */
struct pl_cuda_block {
    char *at;
    size_t bytes;
    enum pl_cuda_state state;
    struct pl_cuda_pool *pool;
    struct pl_cuda_block *prev, *next;
    struct pl_cuda_block *link_prev, *link_next; /* the list that it is in */
    const char *holder;
    struct CUstream_st **users; /* other streams, while used */
    struct CUevent_st **events; /* as many, while passing; those that passed are NULL */
    size_t n_users;
};

/* The free blocks of a stream, of small or of large segments. */
struct pl_cuda_pool {
    struct pl_cuda_pool *next;
    struct CUstream_st *stream;
    bool small;
    uint64_t has[PL_CUDA_CLASSES / 64]; /* which lists are not empty */
    struct pl_cuda_block *free[PL_CUDA_CLASSES];
};

struct pl_cuda_alloc {
    pthread_mutex_t lock;
    char *name;
    struct pl_cuda_pool *pools;
    struct pl_cuda_block **table; /* lists of used blocks, by a hash of their address */
    size_t table_size;            /* a power of two */
    struct pl_cuda_block *passing;
    struct CUevent_st **spare; /* events to use again */
    size_t n_spare, max_spare;
    struct pl_cuda_alloc_stats stats;
};

/* bytes, in [1, SIZE_MAX / 2], rounded to what a block or its segment has. */
size_t pl_cuda_block_size(size_t bytes);
size_t pl_cuda_segment_size(size_t block_bytes);

/* Which list a free block of this size is in; larger sizes have the same or a higher one. */
unsigned pl_cuda_size_class(size_t bytes);

/* The lists of free blocks. The smallest that has `bytes`, or NULL; `whole` asks for one that is
 * its segment. */
void pl_cuda_pool_add(struct pl_cuda_pool *pool, struct pl_cuda_block *block);
void pl_cuda_pool_remove(struct pl_cuda_pool *pool, struct pl_cuda_block *block);
struct pl_cuda_block *pl_cuda_pool_find(struct pl_cuda_pool *pool, size_t bytes, bool whole);

/* The table of used blocks. Adding cannot fail where pl_cuda_table_reserve has returned 0; find
 * gives NULL for an address that is no block's. */
int pl_cuda_table_reserve(struct pl_cuda_alloc *alloc);
void pl_cuda_table_add(struct pl_cuda_alloc *alloc, struct pl_cuda_block *block);
void pl_cuda_table_remove(struct pl_cuda_alloc *alloc, struct pl_cuda_block *block);
struct pl_cuda_block *pl_cuda_table_find(struct pl_cuda_alloc *alloc, const void *at);

/* -ENOMEM with the text of pl_cuda_alloc_get. `free_bytes` and `total_bytes` are the device's. */
int pl_cuda_alloc_exhausted(struct pl_cuda_alloc *alloc,
                            size_t bytes,
                            const char *holder,
                            size_t free_bytes,
                            size_t total_bytes,
                            struct pl_error *err);

#endif
