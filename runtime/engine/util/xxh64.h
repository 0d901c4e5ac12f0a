/* SPDX-License-Identifier: MIT */
/* The 64-bit checksum XXH64 (github.com/Cyan4973/xxHash, doc/xxhash_spec.md), seed 0. It finds
 * damage at several GB/s and is not cryptographic. */
#ifndef PL_RUNTIME_ENGINE_UTIL_XXH64_H
#define PL_RUNTIME_ENGINE_UTIL_XXH64_H

#include <stddef.h>
#include <stdint.h>

struct pl_xxh64 {
    uint64_t lane[4], total;
    unsigned char rest[32]; /* the last total % 32 bytes */
};

void pl_xxh64_init(struct pl_xxh64 *x);
void pl_xxh64_add(struct pl_xxh64 *x, const void *data, size_t len);
uint64_t pl_xxh64_final(const struct pl_xxh64 *x);

/* Hashes one buffer. */
uint64_t pl_xxh64(const void *data, size_t len);

#endif
