/* SPDX-License-Identifier: MIT */
/* Memory that things share which do not live at the same time: a step's tensors, and the gradients
 * of strategy sharded. */
#ifndef PL_RUNTIME_ENGINE_TAPE_TAPE_MEMORY_H
#define PL_RUNTIME_ENGINE_TAPE_TAPE_MEMORY_H

#include <stdbool.h>
#include <stddef.h>

/* A piece of the tape's memory. */
struct pl_lifetime {
    size_t bytes, from, to; /* alive at these positions, both included */
    size_t offset;
};

/* Zeroed memory is an empty list; `list` is freed by the owner. */
struct pl_lifetimes {
    struct pl_lifetime *list;
    size_t n, cap;
    bool bad; /* out of memory: the list is incomplete */
};

/* Returns the index; SIZE_MAX if bytes is 0 or memory ran out (then `bad` is set). The size is
 * rounded up to PL_BUMP_ALIGN. */
size_t pl_lifetimes_add(struct pl_lifetimes *p, size_t bytes, size_t from, size_t to);

/* Sets the offsets, so that no two that are alive at the same position overlap; `spread`: so that
 * none do. Returns the bytes needed, SIZE_MAX when out of memory. */
size_t pl_lifetimes_set(struct pl_lifetimes *p, bool spread);

#endif
