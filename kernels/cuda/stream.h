/* SPDX-License-Identifier: MIT */
/* The stream that a thread's kernels go to, and what belongs to it. For files that include CUDA. */
#ifndef PL_KERNELS_CUDA_STREAM_H
#define PL_KERNELS_CUDA_STREAM_H

#include <stdbool.h>
#include <stddef.h>

/* As cuda_runtime.h has them. */
struct CUstream_st;

#ifdef __cplusplus
extern "C" {
#endif

struct pl_cuda_stream {
    struct CUstream_st *stream; /* cudaStream_t; NULL = the default stream */
    void *scratch;              /* device memory */
    size_t scratch_bytes;
    int error;                /* cudaError_t: the first one since it was last told */
    unsigned long long moves; /* how often scratch came to lie elsewhere */
    bool fixed;               /* the stream is captured: scratch may not move */
};

/* The calling thread's stream: what it has set last, at first one of its own that means the default
 * stream. The device is the one that cudaSetDevice() was called with. Never NULL. */
struct pl_cuda_stream *pl_cuda_stream_current(void);

/* stream, borrowed: from now on the calling thread's; NULL: its own default one again. */
void pl_cuda_stream_set(struct pl_cuda_stream *stream);

/* Keeps an error (a cudaError_t but cudaSuccess) where there is none yet. */
void pl_cuda_stream_note(struct pl_cuda_stream *stream, int error);

/* At least this much device memory, good until the next call; it is made new behind what the stream
 * has been given, so that earlier kernels keep theirs. NULL: the error is noted
 * (cudaErrorStreamCaptureUnsupported where it would have to move and is fixed). */
void *pl_cuda_stream_scratch(struct pl_cuda_stream *stream, size_t bytes);

/* Frees the scratch; the stream itself is the caller's. */
void pl_cuda_stream_finish(struct pl_cuda_stream *stream);

#ifdef __cplusplus
}
#endif

#endif
