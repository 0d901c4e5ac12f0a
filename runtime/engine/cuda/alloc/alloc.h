/* SPDX-License-Identifier: MIT */
/* Device memory, kept after it is freed: cudaMalloc and cudaFree wait for the whole device, so that
 * a step must not call them. Method: PyTorch's caching allocator (c10/cuda/CUDACachingAllocator).
 *
 * Memory comes from the device in segments (2 MiB for what is at most 1 MiB, 20 MiB for what is
 * under 10 MiB, else its own size) that are split into blocks of multiples of 512 bytes and merged
 * again. Each stream has a pool of its own: what was freed may be used again by later work of the
 * same stream at once, since a stream runs in order. A block that other streams have used as well
 * (pl_cuda_alloc_used_by) is only free when an event behind their work has passed.
 *
 * Where the device has no more: whole segments of other streams' pools are taken over, the stream
 * waiting for an event of theirs; then free segments go back to the device; then it is out of
 * memory. Thread safe. Streams outlive the allocator. */
#ifndef PL_RUNTIME_ENGINE_CUDA_ALLOC_ALLOC_H
#define PL_RUNTIME_ENGINE_CUDA_ALLOC_ALLOC_H

#include "common/base/error.h"

#include <stddef.h>
#include <stdint.h>

struct CUstream_st; /* a cudaStream_t points to it; NULL is the default stream */
struct pl_cuda_alloc;

struct pl_cuda_alloc_stats {
    size_t in_use_bytes, in_use_peak_bytes;     /* blocks handed out, and waiting for an event */
    size_t reserved_bytes, reserved_peak_bytes; /* what the device has given */
    size_t cached_bytes;                        /* reserved and not in use */
    size_t limit_bytes;                         /* of reserved; 0: the device's own */
    size_t blocks;                              /* handed out */
    uint64_t device_allocs, device_frees;       /* calls of cudaMalloc and cudaFree */
    uint64_t takeovers;                         /* segments that changed their stream */
};

/* For the device that is current on this thread. `name` says which, in messages; it is copied.
 * -ENOMEM where the host has no memory. */
int pl_cuda_alloc_create(const char *name,
                         size_t limit_bytes,
                         struct pl_cuda_alloc **ret,
                         struct pl_error *err);

/* Gives everything back to the device, blocks in use included: nothing may use them any more. */
void pl_cuda_alloc_destroy(struct pl_cuda_alloc *alloc);

/* `bytes` (0 counts as 1) for work on `stream`, 512-byte aligned, contents undefined. `holder` says
 * in an error who has it: a static text. -ENOMEM says what was asked for, what is free and who
 * holds the most; -EIO where the device has failed. */
int pl_cuda_alloc_get(struct pl_cuda_alloc *alloc,
                      size_t bytes,
                      struct CUstream_st *stream,
                      const char *holder,
                      void **ret,
                      struct pl_error *err);

/* Work already queued on `stream`, not the block's own, uses the block. -ENOMEM, -EIO. */
int pl_cuda_alloc_used_by(struct pl_cuda_alloc *alloc,
                          void *block,
                          struct CUstream_st *stream,
                          struct pl_error *err);

/* Work already queued may still use it. NULL is ignored; so is an address that is no block. */
void pl_cuda_alloc_put(struct pl_cuda_alloc *alloc, void *block);

/* Gives free segments back to the device. */
void pl_cuda_alloc_trim(struct pl_cuda_alloc *alloc);

void pl_cuda_alloc_stats(struct pl_cuda_alloc *alloc, struct pl_cuda_alloc_stats *ret);

#endif
