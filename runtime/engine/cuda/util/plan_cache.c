/* SPDX-License-Identifier: MIT */
#include "runtime/engine/cuda/util/plan_cache.h"

#include <stdlib.h>
#include <string.h>

struct entry {
    uint64_t hash;
    /* The value is first because it needs alignment; the key follows. */
    _Alignas(16) unsigned char bytes[];
};

uint64_t pl_plan_hash(const void *data, size_t bytes)
{
    const unsigned char *p = data;
    uint64_t hash = UINT64_C(0xcbf29ce484222325);

    for (size_t i = 0; i < bytes; i++)
        hash = (hash ^ p[i]) * UINT64_C(0x100000001b3);
    return hash ^ hash >> 32;
}

static unsigned char *key_of(const struct pl_plan_cache *cache, struct entry *e)
{
    return e->bytes + cache->value_bytes;
}

void pl_plan_cache_init(struct pl_plan_cache *cache, size_t key_bytes, size_t value_bytes)
{
    *cache = (struct pl_plan_cache){.key_bytes = key_bytes, .value_bytes = value_bytes};
}

void pl_plan_cache_finish(struct pl_plan_cache *cache, void (*drop)(void *value))
{
    for (size_t i = 0; i < cache->size; i++) {
        struct entry *e = cache->slots[i];

        if (e && drop)
            drop(e->bytes);
        free(e);
    }
    free(cache->slots);
    pl_plan_cache_init(cache, cache->key_bytes, cache->value_bytes);
}

/* The slot of the key, or the free slot for it. */
static size_t place(const struct pl_plan_cache *cache, uint64_t hash, const void *key)
{
    size_t at = (size_t)hash & (cache->size - 1);

    for (;; at = (at + 1) & (cache->size - 1)) {
        struct entry *e = cache->slots[at];

        if (!e || (e->hash == hash && memcmp(key_of(cache, e), key, cache->key_bytes) == 0))
            return at;
    }
}

void *pl_plan_cache_find(struct pl_plan_cache *cache, const void *key)
{
    struct entry *e =
        cache->size ? cache->slots[place(cache, pl_plan_hash(key, cache->key_bytes), key)] : NULL;

    cache->hits += e != NULL;
    cache->misses += e == NULL;
    return e ? e->bytes : NULL;
}

/* At most half full, which keeps searches short. */
static int reserve(struct pl_plan_cache *cache)
{
    struct pl_plan_cache more = *cache;

    if (2 * (cache->count + 1) <= cache->size)
        return 0;
    more.size = cache->size ? 2 * cache->size : 64;
    more.slots = calloc(more.size, sizeof(*more.slots));
    if (!more.slots)
        return -1;
    for (size_t i = 0; i < cache->size; i++) {
        struct entry *e = cache->slots[i];

        if (e)
            more.slots[place(&more, e->hash, key_of(cache, e))] = e;
    }
    free(cache->slots);
    *cache = more;
    return 0;
}

void *pl_plan_cache_add(struct pl_plan_cache *cache, const void *key)
{
    struct entry *e;

    if (reserve(cache) < 0)
        return NULL;
    e = calloc(1, sizeof(*e) + cache->value_bytes + cache->key_bytes);
    if (!e)
        return NULL;
    e->hash = pl_plan_hash(key, cache->key_bytes);
    memcpy(key_of(cache, e), key, cache->key_bytes);
    cache->slots[place(cache, e->hash, key)] = e;
    cache->count++;
    return e->bytes;
}
