/* SPDX-License-Identifier: MIT */
/* Choices that were timed, kept in ~/.plume/gpu-KIND for the next process on a card of the same
 * model with the same driver and libraries: a file per model. A line is a key, a value and their
 * hash. A file that others may write, or of something else, counts for nothing; a damaged line is
 * left out. One thread at a time. */
#ifndef PL_RUNTIME_ENGINE_CUDA_UTIL_TUNED_H
#define PL_RUNTIME_ENGINE_CUDA_UTIL_TUNED_H

#include "common/base/error.h"

#include <stddef.h>
#include <stdint.h>

struct pl_tuned;

/* The way choices are timed. */
struct pl_timing {
    const char *what;         /* the card, its driver and libraries: see pl_tuned_open() */
    uint64_t (*now_ns)(void); /* a clock */
};

/* kind: "products", "convolutions"; static. what: all that the choices depend on beside the keys,
 * one line. Keys and values are of these sizes. What cannot be read costs only that it is timed
 * again; the reason is logged. -ENOMEM. */
int pl_tuned_open(const char *kind,
                  const char *what,
                  size_t key_bytes,
                  size_t value_bytes,
                  struct pl_tuned **ret,
                  struct pl_error *err);

/* NULL is ignored. */
void pl_tuned_close(struct pl_tuned *tuned);

/* The value, or NULL. Valid until the next call. */
const void *pl_tuned_find(struct pl_tuned *tuned, const void *key);

/* Adds a choice, and writes the file, with what others have added to it meanwhile: if another
 * process was first, its choice for the key is the one that pl_tuned_find() returns from now on, so
 * that all have the same bits, now and in the next run. instead: NULL, or the choice that was found
 * and is of no use any more, which is replaced. A file that has no room loses the oldest choices,
 * but for those that this process has found. Without memory or a file a choice is known to this
 * process only, or not even to it. */
void pl_tuned_add(struct pl_tuned *tuned, const void *key, const void *value, const void *instead);

#endif
