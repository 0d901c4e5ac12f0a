/* SPDX-License-Identifier: MIT */
/* A bump allocator: memory is handed out upwards, and freed by going back to a mark. Blocks never
 * move. A zeroed struct is an empty allocator. */
#ifndef PL_RUNTIME_ENGINE_UTIL_BUMP_H
#define PL_RUNTIME_ENGINE_UTIL_BUMP_H

#include "common/base/macros.h"

#define PL_BUMP_ALIGN 64
#define PL_BUMP_ALIGNED(bytes) (((bytes) + PL_BUMP_ALIGN - 1) & ~(size_t)(PL_BUMP_ALIGN - 1))

struct pl_bump_chunk;

struct pl_bump {
    struct pl_bump_chunk *chunks; /* in order of use */
    struct pl_bump_chunk *current;
    size_t used; /* of current */
};

struct pl_bump_mark {
    struct pl_bump_chunk *chunk;
    size_t used;
};

/* Zeroed memory aligned to PL_BUMP_ALIGN; NULL when out of memory. */
void *pl_bump_alloc(struct pl_bump *bump, size_t size);
struct pl_bump_mark pl_bump_mark(const struct pl_bump *bump);
void pl_bump_reset(struct pl_bump *bump, struct pl_bump_mark mark);
void pl_bump_finish(struct pl_bump *bump);

#endif
