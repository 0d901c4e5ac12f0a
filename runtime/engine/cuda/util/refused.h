/* SPDX-License-Identifier: MIT */
/* Says what a library cannot do, so that no run is slow in silence. */
#ifndef PL_RUNTIME_ENGINE_CUDA_UTIL_REFUSED_H
#define PL_RUNTIME_ENGINE_CUDA_UTIL_REFUSED_H

#include "kernels/kernels.h"

#include <stdbool.h>
#include <stdint.h>

/* Logs that `library` refuses `what`, with its own words `why`. Call once per key. It is a warning:
 * our own kernels, which are slower, do it; at level info if the library is asked in another way
 * next. way: the one that it refuses, such as "in one pass"; NULL: no other is left. */
void pl_cuda_refused(const char *library, const char *what, const char *why, const char *way);

/* Logs a warning that `library` does `what` by an engine that it names only where it recommends
 * none, and why that is. Call once per key. */
void pl_cuda_fell_back(const char *library, const char *what, const char *why);

/* The messages about a library that were logged, as hashes of their texts. Zeroed memory is an
 * empty list. */
struct pl_cuda_said {
    uint64_t hash[64];
    size_t n;
};

/* As pl_cuda_refused(), but once for the same words. For calls that the library is not asked for,
 * and that so have no key: `why` are our own words. After 64 refusals later ones are not logged. */
void pl_cuda_refused_once(struct pl_cuda_said *said,
                          const char *library,
                          const char *what,
                          const char *why,
                          const char *way);

/* "f32", "bf16" ... */
const char *pl_cuda_real_name(enum pl_real real);

#endif
