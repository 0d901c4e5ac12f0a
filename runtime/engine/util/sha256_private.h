/* SPDX-License-Identifier: MIT */
/* Private to sha256.c and its test. */
#ifndef PL_RUNTIME_ENGINE_UTIL_SHA256_PRIVATE_H
#define PL_RUNTIME_ENGINE_UTIL_SHA256_PRIVATE_H

#include "runtime/engine/util/sha256.h"

/* The compression function of FIPS 180-4 over 64-byte blocks, for any processor. */
void pl_sha256_compress_any(uint32_t state[8], const uint8_t *p, size_t blocks);

#endif
