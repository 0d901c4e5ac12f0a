/* SPDX-License-Identifier: MIT */
/* Copies between pageable host memory and a device through pinned buffers, which the device reads
 * while the host goes on. An upload returns when the bytes are in a buffer; a download copies one
 * buffer out while the next is filled. For one stream, and one thread at a time. Errors are kept in
 * the status and returned by the next synchronisation. */
#ifndef PL_RUNTIME_ENGINE_CUDA_ALLOC_STAGING_H
#define PL_RUNTIME_ENGINE_CUDA_ALLOC_STAGING_H

#include "runtime/engine/cuda/util/cuda_status.h"

#include <stddef.h>

#define PL_CUDA_STAGING_CHUNKS 4
#define PL_CUDA_STAGING_BYTES ((size_t)4 << 20) /* each */

struct CUstream_st;
struct CUevent_st;

struct pl_cuda_chunk {
    char *memory; /* pinned; NULL until needed */
    size_t used;
    struct CUevent_st *event; /* after the last copy from or to it */
};

/* Private to the functions below. */
struct pl_cuda_staging {
    struct CUstream_st *stream;
    struct pl_cuda_status *status;
    size_t chunk_bytes;
    unsigned at; /* index of the chunk in use */
    struct pl_cuda_chunk chunks[PL_CUDA_STAGING_CHUNKS];
};

/* Allocates no buffer yet. `chunk_bytes` is a multiple of 64. */
void pl_cuda_staging_init(struct pl_cuda_staging *staging,
                          struct CUstream_st *stream,
                          size_t chunk_bytes,
                          struct pl_cuda_status *status);

/* Waits for copies in progress. */
void pl_cuda_staging_finish(struct pl_cuda_staging *staging);

/* The caller may change `from` after the call. Without pinned memory it waits for the copy. */
void pl_cuda_staging_upload(struct pl_cuda_staging *staging,
                            void *to,
                            const void *from,
                            size_t bytes);

/* Runs after the stream's earlier work, and waits. Returns 0, or -EIO if a call has failed; `to` is
 * undefined then. */
int pl_cuda_staging_download(struct pl_cuda_staging *staging,
                             void *to,
                             const void *from,
                             size_t bytes);

#endif
