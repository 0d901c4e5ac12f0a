/* SPDX-License-Identifier: MIT */
/* Plans by the bytes of their keys: a cached answer about a shape (an algorithm, or that none
 * exists). Keys and values have fixed sizes and are copied. One thread at a time. */
#ifndef PL_RUNTIME_ENGINE_CUDA_UTIL_PLAN_CACHE_H
#define PL_RUNTIME_ENGINE_CUDA_UTIL_PLAN_CACHE_H

#include <stddef.h>
#include <stdint.h>

/* Private to the functions below. */
struct pl_plan_cache {
    size_t key_bytes, value_bytes;
    size_t count, size; /* size: a power of two, or 0 */
    void **slots;       /* each points to a hash, a key and a value, or is NULL */
    uint64_t hits, misses;
};

/* FNV-1a (Fowler, Noll, Vo), over 64 bits, and folded. */
uint64_t pl_plan_hash(const void *data, size_t bytes);

void pl_plan_cache_init(struct pl_plan_cache *cache, size_t key_bytes, size_t value_bytes);

/* Calls `drop` (may be NULL) for each value. */
void pl_plan_cache_finish(struct pl_plan_cache *cache, void (*drop)(void *value));

/* The value of the key, or NULL. Valid until the cache is finished. */
void *pl_plan_cache_find(struct pl_plan_cache *cache, const void *key);

/* A new, zeroed value for a new key. NULL if out of memory. */
void *pl_plan_cache_add(struct pl_plan_cache *cache, const void *key);

#endif
