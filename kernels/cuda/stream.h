/* SPDX-License-Identifier: MIT */
/* The stream of a thread's kernels, and its scratch memory. For files that include CUDA. */
#ifndef PL_KERNELS_CUDA_STREAM_H
#define PL_KERNELS_CUDA_STREAM_H

#include <stdbool.h>
#include <stddef.h>

/* The declarations of cuda_runtime.h. */
struct CUstream_st;

#ifdef __cplusplus
extern "C" {
#endif

struct pl_cuda_stream {
    struct CUstream_st *stream; /* cudaStream_t; NULL = the default stream */
    void *scratch;              /* device memory */
    size_t scratch_bytes;
    int error;                /* cudaError_t: the first one since the last report */
    const char *why;          /* our own words of it, a static text; NULL: CUDA's */
    unsigned long long moves; /* number of times that scratch has moved */
    bool fixed;               /* the stream is capturing: scratch must not move */
    /* These allocate and free scratch; NULL: cudaMalloc and cudaFree do. get returns NULL if no
     * memory is left. Earlier work of the stream may still use memory that put takes back. */
    void *(*get)(struct pl_cuda_stream *stream, size_t bytes);
    void (*put)(struct pl_cuda_stream *stream, void *memory);
};

/* The calling thread's stream: the last one set, at first a default of its own. The device is the
 * one of cudaSetDevice(). Never NULL. */
struct pl_cuda_stream *pl_cuda_stream_current(void);

/* Sets the calling thread's stream, borrowed; NULL: its own default. */
void pl_cuda_stream_set(struct pl_cuda_stream *stream);

/* Records an error (a cudaError_t other than cudaSuccess) if none is recorded yet. */
void pl_cuda_stream_note(struct pl_cuda_stream *stream, int error);

/* Records that an op cannot be done, if no error is recorded yet. why: a static text. */
void pl_cuda_stream_refuse(struct pl_cuda_stream *stream, const char *why);

/* At least this much device memory, valid until the next call. Earlier kernels keep theirs. NULL:
 * the error is recorded (cudaErrorStreamCaptureUnsupported if it would have to move while fixed).
 */
void *pl_cuda_stream_scratch(struct pl_cuda_stream *stream, size_t bytes);

/* Frees the scratch; the stream itself is the caller's. */
void pl_cuda_stream_finish(struct pl_cuda_stream *stream);

#ifdef __cplusplus
}
#endif

#endif
