/* SPDX-License-Identifier: MIT */
#include "runtime/engine/util/bump.h"

#include <string.h>

#define CHUNK_MIN ((size_t)64 * 1024)

struct pl_bump_chunk {
    struct pl_bump_chunk *next;
    char *data;
    size_t size;
};

static struct pl_bump_chunk *chunk_new(size_t size)
{
    struct pl_bump_chunk *chunk = calloc(1, sizeof(*chunk));

    if (!chunk)
        return NULL;
    chunk->size = size;
    if (posix_memalign((void **)&chunk->data, PL_BUMP_ALIGN, size) != 0) {
        free(chunk);
        return NULL;
    }
    return chunk;
}

void *pl_bump_alloc(struct pl_bump *bump, size_t size)
{
    struct pl_bump_chunk *chunk = bump->current;
    void *p;

    if (size > SIZE_MAX / 2)
        return NULL;
    size = (size + PL_BUMP_ALIGN - 1) & ~(size_t)(PL_BUMP_ALIGN - 1);
    if (!chunk || chunk->size - bump->used < size) {
        struct pl_bump_chunk **link = chunk ? &chunk->next : &bump->chunks;

        /* Chunks after the current one are empty. One that is too small is freed. */
        while (*link && (*link)->size < size) {
            struct pl_bump_chunk *small = *link;

            *link = small->next;
            free(small->data);
            free(small);
        }
        if (!*link) {
            size_t twice = chunk ? chunk->size * 2 : CHUNK_MIN;

            *link = chunk_new(PL_MAX(size, twice));
            if (!*link)
                return NULL;
        }
        bump->current = chunk = *link;
        bump->used = 0;
    }
    p = chunk->data + bump->used;
    bump->used += size;
    memset(p, 0, size);
    return p;
}

struct pl_bump_mark pl_bump_mark(const struct pl_bump *bump)
{
    return (struct pl_bump_mark){bump->current, bump->used};
}

void pl_bump_reset(struct pl_bump *bump, struct pl_bump_mark mark)
{
    bump->current = mark.chunk ? mark.chunk : bump->chunks;
    bump->used = mark.chunk ? mark.used : 0;
}

void pl_bump_finish(struct pl_bump *bump)
{
    for (struct pl_bump_chunk *c = bump->chunks, *next; c; c = next) {
        next = c->next;
        free(c->data);
        free(c);
    }
    *bump = (struct pl_bump){0};
}
