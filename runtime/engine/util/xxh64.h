/* SPDX-License-Identifier: MIT */
/* The 64-bit checksum XXH64 (github.com/Cyan4973/xxHash, doc/xxhash_spec.md), seed 0: finds damage
 * at some GB/s. Not for secrets. */
#ifndef PL_RUNTIME_ENGINE_UTIL_XXH64_H
#define PL_RUNTIME_ENGINE_UTIL_XXH64_H

#include <stddef.h>
#include <stdint.h>

struct pl_xxh64 {
    uint64_t lane[4], total;
    unsigned char rest[32]; /* total % 32 bytes that wait for more */
};

void pl_xxh64_init(struct pl_xxh64 *x);
void pl_xxh64_add(struct pl_xxh64 *x, const void *data, size_t len);
uint64_t pl_xxh64_final(const struct pl_xxh64 *x);

/* All at once. */
uint64_t pl_xxh64(const void *data, size_t len);

#endif
