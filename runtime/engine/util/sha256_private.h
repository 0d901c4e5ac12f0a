/* SPDX-License-Identifier: MIT */
/* For the test of sha256.c. */
#ifndef PL_RUNTIME_ENGINE_UTIL_SHA256_PRIVATE_H
#define PL_RUNTIME_ENGINE_UTIL_SHA256_PRIVATE_H

#include "runtime/engine/util/sha256.h"

/* The function of FIPS 180-4 on blocks of 64 bytes, for any processor. */
void pl_sha256_compress_any(uint32_t state[8], const uint8_t *p, size_t blocks);

#endif
