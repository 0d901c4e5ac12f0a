/* SPDX-License-Identifier: MIT */
/* Copies between the host's own memory and a device by way of pinned buffers, which the device can
 * read while the host goes on: an upload returns as soon as the bytes are in a buffer, and a
 * download copies one buffer out while the next is filled. For one stream and one thread at a time.
 * What fails is kept in the status and found at the next synchronisation. */
#ifndef PL_RUNTIME_ENGINE_CUDA_ALLOC_STAGING_H
#define PL_RUNTIME_ENGINE_CUDA_ALLOC_STAGING_H

#include "runtime/engine/cuda/util/cuda_status.h"

#include <stddef.h>

#define PL_CUDA_STAGING_CHUNKS 4
#define PL_CUDA_STAGING_BYTES ((size_t)4 << 20) /* each */

struct CUstream_st;
struct CUevent_st;

struct pl_cuda_chunk {
    char *memory; /* pinned; NULL until it is needed */
    size_t used;
    struct CUevent_st *event; /* behind the last copy from or to it */
};

/* Plain data; the members are the functions' own. */
struct pl_cuda_staging {
    struct CUstream_st *stream;
    struct pl_cuda_status *status;
    size_t chunk_bytes;
    unsigned at; /* the chunk that is being used up */
    struct pl_cuda_chunk chunks[PL_CUDA_STAGING_CHUNKS];
};

/* Makes no buffer yet. `chunk_bytes` is a multiple of 64. */
void pl_cuda_staging_init(struct pl_cuda_staging *staging,
                          struct CUstream_st *stream,
                          size_t chunk_bytes,
                          struct pl_cuda_status *status);

/* Waits for the copies that are under way. */
void pl_cuda_staging_finish(struct pl_cuda_staging *staging);

/* `from` may change when it has returned. Where there is no pinned memory it waits for the copy. */
void pl_cuda_staging_upload(struct pl_cuda_staging *staging,
                            void *to,
                            const void *from,
                            size_t bytes);

/* Behind all that the stream was asked before. Returns 0, or -EIO where a call has failed; `to` is
 * undefined then. */
int pl_cuda_staging_download(struct pl_cuda_staging *staging,
                             void *to,
                             const void *from,
                             size_t bytes);

#endif
