/* SPDX-License-Identifier: MIT */
/* SHA-256 (FIPS 180-4) and HMAC (RFC 2104): the engine links no crypto library. */
#ifndef PL_RUNTIME_ENGINE_UTIL_SHA256_H
#define PL_RUNTIME_ENGINE_UTIL_SHA256_H

#include "common/base/macros.h"

#include <stdbool.h>

#define PL_SHA256_BYTES 32

struct pl_sha256 {
    uint32_t h[8];
    uint64_t len;
    uint8_t block[64];
};

void pl_sha256_init(struct pl_sha256 *sha);
void pl_sha256_add(struct pl_sha256 *sha, const void *data, size_t len);
void pl_sha256_final(struct pl_sha256 *sha, uint8_t ret[PL_SHA256_BYTES]);

void pl_hmac_sha256(
    const void *key, size_t key_len, const void *data, size_t len, uint8_t ret[PL_SHA256_BYTES]);

/* Compares in constant time. */
bool pl_bytes_equal(const void *a, const void *b, size_t len);

#endif
