/* SPDX-License-Identifier: MIT */
/* The threads of this process: one pool. Each computing thread sees its own group.
 *
 * At first all threads are one group, which the calling thread leads; pl_pool_devices() splits it
 * into "CPU devices" while it runs. The pool has pl_threads_available() threads, including the
 * caller; the others are created at the first use that has work for more than one. If one is the
 * maximum, none is created. After fork() the child starts with a new pool. */
#ifndef PL_KERNELS_POOL_POOL_H
#define PL_KERNELS_POOL_POOL_H

#include <stddef.h>

#define PL_POOL_MAX 1024 /* threads */

/* Runs body over [0, n) in chunks [i * grain, (i + 1) * grain), the last one cut at n, on the
 * caller's group; returns when all are done. Chunk borders depend on n and grain only, so partial
 * results kept by chunk (begin / grain) and combined in order have the same bits for any number of
 * threads. Any thread may run a chunk. From inside a body, and while another thread uses the group,
 * the chunks run on the calling thread, in order. grain >= 1. */
void pl_pool_parallel(size_t n,
                      size_t grain,
                      void (*body)(void *ctx, size_t begin, size_t end),
                      void *ctx);

/* Runs body once for each device in [0, k), in parallel on disjoint parts of the caller's group; in
 * it, pl_pool_parallel() uses that device's threads. With fewer threads than devices some run one
 * after another, so bodies must not wait for each other. Returns 0, or the error of the lowest
 * device that failed; all are run in any case. */
int pl_pool_devices(unsigned k, int (*body)(void *ctx, unsigned device), void *ctx);

/* Threads of the caller's group: 1 inside a body of pl_pool_parallel(). */
unsigned pl_pool_threads(void);

/* Sets the number of threads of the pool; 0 = pl_threads_available(), at most PL_POOL_MAX. Ends the
 * existing threads. Call only while the pool is not in use. */
void pl_pool_resize(unsigned threads);

#endif
