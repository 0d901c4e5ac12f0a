/* SPDX-License-Identifier: MIT */
#include "runtime/engine/cuda/alloc/alloc_private.h"

static size_t round_up(size_t n, size_t unit)
{
    return (n + unit - 1) / unit * unit;
}

size_t pl_cuda_block_size(size_t bytes)
{
    return round_up(PL_MAX(bytes, (size_t)1), PL_CUDA_ALIGN);
}

size_t pl_cuda_segment_size(size_t block_bytes)
{
    if (block_bytes <= PL_CUDA_SMALL)
        return PL_CUDA_SMALL_SEGMENT;
    if (block_bytes < PL_CUDA_MIDDLE)
        return PL_CUDA_MIDDLE_SEGMENT;
    return round_up(block_bytes, PL_CUDA_SMALL_SEGMENT);
}

unsigned pl_cuda_size_class(size_t bytes)
{
    size_t units = bytes / PL_CUDA_ALIGN;
    unsigned power = 63 - (unsigned)__builtin_clzll(units | 1), quarter;

    quarter = (unsigned)(power >= 2 ? units >> (power - 2) : units << (2 - power)) & 3;
    return PL_MIN(4 * power + quarter, PL_CUDA_CLASSES - 1u);
}

void pl_cuda_pool_add(struct pl_cuda_pool *pool, struct pl_cuda_block *block)
{
    unsigned class = pl_cuda_size_class(block->bytes);

    block->state = PL_CUDA_FREE;
    block->pool = pool;
    block->link_prev = NULL;
    block->link_next = pool->free[class];
    if (block->link_next)
        block->link_next->link_prev = block;
    pool->free[class] = block;
    pool->has[class / 64] |= UINT64_C(1) << class % 64;
}

void pl_cuda_pool_remove(struct pl_cuda_pool *pool, struct pl_cuda_block *block)
{
    unsigned class = pl_cuda_size_class(block->bytes);

    if (block->link_next)
        block->link_next->link_prev = block->link_prev;
    if (block->link_prev)
        block->link_prev->link_next = block->link_next;
    else
        pool->free[class] = block->link_next;
    if (!pool->free[class])
        pool->has[class / 64] &= ~(UINT64_C(1) << class % 64);
}

/* The first non-empty list from `class` on, or PL_CUDA_CLASSES. */
static unsigned next_class(const struct pl_cuda_pool *pool, unsigned class)
{
    while (class < PL_CUDA_CLASSES) {
        uint64_t has = pool->has[class / 64] >> class % 64;

        if (has)
            return class + (unsigned)__builtin_ctzll(has);
        class = (class / 64 + 1) * 64;
    }
    return class;
}

struct pl_cuda_block *pl_cuda_pool_find(struct pl_cuda_pool *pool, size_t bytes, bool whole)
{
    struct pl_cuda_block *best = NULL;

    for (unsigned c = next_class(pool, pl_cuda_size_class(bytes)); !best && c < PL_CUDA_CLASSES;
         c = next_class(pool, c + 1)) {
        for (struct pl_cuda_block *b = pool->free[c]; b; b = b->link_next) {
            if (b->bytes < bytes || (whole && (b->prev || b->next)))
                continue;
            if (!best || b->bytes < best->bytes || (b->bytes == best->bytes && b->at < best->at))
                best = b;
        }
    }
    return best;
}

/* Addresses of blocks differ by multiples of 512. Factor: Knuth's, TAOCP 3, 6.4. */
static size_t slot(const struct pl_cuda_alloc *alloc, const void *at)
{
    uint64_t hash = (uint64_t)((uintptr_t)at / PL_CUDA_ALIGN) * UINT64_C(0x9e3779b97f4a7c15);

    return (size_t)(hash >> 32) & (alloc->table_size - 1);
}

static void put(struct pl_cuda_alloc *alloc, struct pl_cuda_block *block)
{
    struct pl_cuda_block **list = &alloc->table[slot(alloc, block->at)];

    block->link_prev = NULL;
    block->link_next = *list;
    if (*list)
        (*list)->link_prev = block;
    *list = block;
}

int pl_cuda_table_reserve(struct pl_cuda_alloc *alloc)
{
    struct pl_cuda_block **old = alloc->table, **more;
    size_t n = alloc->table_size;

    if (n > alloc->stats.blocks)
        return 0;
    more = calloc(PL_MAX(2 * n, (size_t)64), sizeof(*more));
    if (!more)
        return -ENOMEM;
    alloc->table = more;
    alloc->table_size = PL_MAX(2 * n, (size_t)64);
    for (size_t i = 0; i < n; i++) {
        for (struct pl_cuda_block *b = old[i], *next; b; b = next) {
            next = b->link_next;
            put(alloc, b);
        }
    }
    free(old);
    return 0;
}

void pl_cuda_table_add(struct pl_cuda_alloc *alloc, struct pl_cuda_block *block)
{
    block->state = PL_CUDA_USED;
    alloc->stats.blocks++;
    put(alloc, block);
}

void pl_cuda_table_remove(struct pl_cuda_alloc *alloc, struct pl_cuda_block *block)
{
    alloc->stats.blocks--;
    if (block->link_next)
        block->link_next->link_prev = block->link_prev;
    if (block->link_prev)
        block->link_prev->link_next = block->link_next;
    else
        alloc->table[slot(alloc, block->at)] = block->link_next;
}

struct pl_cuda_block *pl_cuda_table_find(struct pl_cuda_alloc *alloc, const void *at)
{
    struct pl_cuda_block *b = alloc->table_size ? alloc->table[slot(alloc, at)] : NULL;

    while (b && b->at != at)
        b = b->link_next;
    return b;
}
