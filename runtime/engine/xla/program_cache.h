/* SPDX-License-Identifier: MIT */
/* Compiled programs in ~/.plume/programs, one file each, by the hash of all that they depend on.
 * The folder is the user's alone (0700). A file says what it is of and has its contents' hash, so
 * that one that is cut off, or of something else, counts as missing. The newest
 * files stay, of limited number and size. */
#ifndef PL_RUNTIME_ENGINE_XLA_PROGRAM_CACHE_H
#define PL_RUNTIME_ENGINE_XLA_PROGRAM_CACHE_H

#include "common/base/error.h"
#include "runtime/engine/util/sha256.h"

#include <stddef.h>

#define PL_PROGRAMS_MAX 64
#define PL_PROGRAMS_BYTES_MAX ((size_t)4 << 30) /* of all */
#define PL_PROGRAM_BYTES_MAX ((size_t)1 << 30)  /* of a file; larger ones are not kept */

/* The program of a key; caller frees *ret, and *data points into it. -ENOENT: there is none;
 * -EBADMSG: the file is damaged; others: it cannot be read. */
int pl_program_cache_get(const uint8_t key[PL_SHA256_BYTES],
                         char **ret,
                         const char **data,
                         size_t *len,
                         struct pl_error *err);

/* Keeps a program, whole or not at all, and drops the oldest ones. -errno. */
int pl_program_cache_put(const uint8_t key[PL_SHA256_BYTES],
                         const char *data,
                         size_t len,
                         struct pl_error *err);

#endif
