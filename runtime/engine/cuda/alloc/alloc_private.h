/* SPDX-License-Identifier: MIT */
/* The allocator's parts: blocks, lists of free blocks, the table of used ones. */
#ifndef PL_RUNTIME_ENGINE_CUDA_ALLOC_ALLOC_PRIVATE_H
#define PL_RUNTIME_ENGINE_CUDA_ALLOC_ALLOC_PRIVATE_H

#include "runtime/engine/cuda/alloc/alloc.h"

#include <pthread.h>
#include <stdbool.h>

#define PL_CUDA_ALIGN ((size_t)512)
#define PL_CUDA_SMALL ((size_t)1 << 20) /* up to this size: from small segments */
#define PL_CUDA_SMALL_SEGMENT                                                                      \
    ((size_t)2 << 20)                     /* large sizes are rounded to multiples of it, too */
#define PL_CUDA_MIDDLE ((size_t)10 << 20) /* below this size: several share a segment */
#define PL_CUDA_MIDDLE_SEGMENT ((size_t)20 << 20)
#define PL_CUDA_CLASSES 128 /* four per power of two, from 512 bytes on */

struct CUevent_st;

enum pl_cuda_state {
    PL_CUDA_FREE,   /* in its pool's lists */
    PL_CUDA_USED,   /* in the table of addresses */
    PL_CUDA_PASSING /* freed, but other streams' events are not complete */
};

/* A part of a segment. prev and next are its neighbours in the segment, NULL at the ends. */
struct pl_cuda_block {
    char *at;
    size_t bytes;
    enum pl_cuda_state state;
    struct pl_cuda_pool *pool;
    struct pl_cuda_block *prev, *next;
    struct pl_cuda_block *link_prev, *link_next; /* neighbours in its list */
    const char *holder;
    struct CUstream_st **users; /* other streams that use it, while used */
    struct CUevent_st **events; /* the same number, while passing; NULL if complete */
    size_t n_users;
};

/* The free blocks of a stream, in small or in large segments. */
struct pl_cuda_pool {
    struct pl_cuda_pool *next;
    struct CUstream_st *stream;
    bool small;
    uint64_t has[PL_CUDA_CLASSES / 64]; /* bit i: list i is not empty */
    struct pl_cuda_block *free[PL_CUDA_CLASSES];
};

struct pl_cuda_alloc {
    pthread_mutex_t lock;
    char *name;
    struct pl_cuda_pool *pools;
    struct pl_cuda_block **table; /* lists of used blocks, by a hash of the address */
    size_t table_size;            /* a power of two */
    struct pl_cuda_block *passing;
    struct CUevent_st **spare; /* events for reuse */
    size_t n_spare, max_spare;
    struct pl_cuda_alloc_stats stats;
};

/* Round bytes, in [1, SIZE_MAX / 2], up to the size of a block, and of its segment. */
size_t pl_cuda_block_size(size_t bytes);
size_t pl_cuda_segment_size(size_t block_bytes);

/* The list of a free block of this size; lists are ordered by size. */
unsigned pl_cuda_size_class(size_t bytes);

/* The lists of free blocks. find returns the smallest block with `bytes`, or NULL; with `whole`,
 * only a block that is a whole segment. */
void pl_cuda_pool_add(struct pl_cuda_pool *pool, struct pl_cuda_block *block);
void pl_cuda_pool_remove(struct pl_cuda_pool *pool, struct pl_cuda_block *block);
struct pl_cuda_block *pl_cuda_pool_find(struct pl_cuda_pool *pool, size_t bytes, bool whole);

/* The table of used blocks. After a successful pl_cuda_table_reserve, adding cannot fail. find
 * returns NULL for an address of no block. */
int pl_cuda_table_reserve(struct pl_cuda_alloc *alloc);
void pl_cuda_table_add(struct pl_cuda_alloc *alloc, struct pl_cuda_block *block);
void pl_cuda_table_remove(struct pl_cuda_alloc *alloc, struct pl_cuda_block *block);
struct pl_cuda_block *pl_cuda_table_find(struct pl_cuda_alloc *alloc, const void *at);

/* Returns -ENOMEM with the text of pl_cuda_alloc_get. `free_bytes` and `total_bytes` are the
 * device's. */
int pl_cuda_alloc_exhausted(struct pl_cuda_alloc *alloc,
                            size_t bytes,
                            const char *holder,
                            size_t free_bytes,
                            size_t total_bytes,
                            struct pl_error *err);

#endif
