/* SPDX-License-Identifier: MIT */
/* Device memory that is cached after it is freed: cudaMalloc and cudaFree wait for the whole
 * device, so a step must not call them. Method: PyTorch's caching allocator
 * (c10/cuda/CUDACachingAllocator).
 *
 * Memory comes from the device in segments: 2 MiB for blocks of at most 1 MiB, 20 MiB for blocks
 * under 10 MiB, else of the block's size. Segments are split into blocks of multiples of 512 bytes,
 * and free neighbours are merged. Each stream has its own pool: later work of the same stream may
 * reuse a freed block at once, since a stream runs in order. A block that other streams have used
 * as well (pl_cuda_alloc_used_by) is free after their work has passed an event.
 *
 * If the device is full, the allocator first takes over whole free segments of other streams' pools
 * (the stream waits for an event of theirs), then returns free segments to the device, then fails.
 * Thread safe. Streams outlive the allocator. */
#ifndef PL_RUNTIME_ENGINE_CUDA_ALLOC_ALLOC_H
#define PL_RUNTIME_ENGINE_CUDA_ALLOC_ALLOC_H

#include "common/base/error.h"

#include <stddef.h>
#include <stdint.h>

struct CUstream_st; /* cudaStream_t is a pointer to it; NULL is the default stream */
struct pl_cuda_alloc;

struct pl_cuda_alloc_stats {
    size_t in_use_bytes, in_use_peak_bytes;     /* blocks handed out, or waiting for an event */
    size_t reserved_bytes, reserved_peak_bytes; /* allocated from the device */
    size_t cached_bytes;                        /* reserved and not in use */
    size_t limit_bytes;                         /* of reserved; 0: none but the device's */
    size_t blocks;                              /* handed out */
    uint64_t device_allocs, device_frees;       /* calls of cudaMalloc and cudaFree */
    uint64_t takeovers;                         /* segments that changed streams */
};

/* For the current device of this thread. `name` is for messages; it is copied. -ENOMEM of the host.
 */
int pl_cuda_alloc_create(const char *name,
                         size_t limit_bytes,
                         struct pl_cuda_alloc **ret,
                         struct pl_error *err);

/* Returns all memory to the device, also blocks in use: they must not be used any more. */
void pl_cuda_alloc_destroy(struct pl_cuda_alloc *alloc);

/* Allocates `bytes` (0 counts as 1) for work on `stream`: 512-byte aligned, uninitialised.
 * `holder`, a static text, names the owner in errors. -ENOMEM gives the size requested, the free
 * memory and the largest holders; -EIO if the device has failed. */
int pl_cuda_alloc_get(struct pl_cuda_alloc *alloc,
                      size_t bytes,
                      struct CUstream_st *stream,
                      const char *holder,
                      void **ret,
                      struct pl_error *err);

/* Records that queued work of `stream`, another than the block's own, uses the block. -ENOMEM,
 * -EIO. */
int pl_cuda_alloc_used_by(struct pl_cuda_alloc *alloc,
                          void *block,
                          struct CUstream_st *stream,
                          struct pl_error *err);

/* Frees a block. Queued work may still use it. NULL and addresses of no block are ignored. */
void pl_cuda_alloc_put(struct pl_cuda_alloc *alloc, void *block);

/* Returns free segments to the device. */
void pl_cuda_alloc_trim(struct pl_cuda_alloc *alloc);

void pl_cuda_alloc_stats(struct pl_cuda_alloc *alloc, struct pl_cuda_alloc_stats *ret);

#endif
