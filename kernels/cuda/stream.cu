/* SPDX-License-Identifier: MIT */
#include "kernels/cuda/stream.h"

#include <cuda_runtime.h>

static thread_local struct pl_cuda_stream own;
static thread_local struct pl_cuda_stream *current;

struct pl_cuda_stream *pl_cuda_stream_current(void)
{
    return current ? current : &own;
}

void pl_cuda_stream_set(struct pl_cuda_stream *stream)
{
    current = stream;
}

void pl_cuda_stream_note(struct pl_cuda_stream *stream, int error)
{
    if (!stream->error)
        stream->error = error;
}

void pl_cuda_stream_refuse(struct pl_cuda_stream *stream, const char *why)
{
    if (stream->error)
        return;
    stream->error = cudaErrorInvalidConfiguration;
    stream->why = why;
}

void *pl_cuda_stream_scratch(struct pl_cuda_stream *stream, size_t bytes)
{
    cudaError_t r;

    if (bytes <= stream->scratch_bytes)
        return stream->scratch;
    if (stream->fixed) {
        pl_cuda_stream_note(stream, cudaErrorStreamCaptureUnsupported);
        return NULL;
    }
    bytes += bytes / 2;
    stream->moves++;
    pl_cuda_stream_finish(stream);
    r = cudaErrorMemoryAllocation;
    if (!stream->get)
        r = cudaMalloc(&stream->scratch, bytes);
    else if ((stream->scratch = stream->get(stream, bytes)))
        r = cudaSuccess;
    if (r != cudaSuccess) {
        stream->scratch = NULL;
        pl_cuda_stream_note(stream, r);
        return NULL;
    }
    stream->scratch_bytes = bytes;
    return stream->scratch;
}

void pl_cuda_stream_finish(struct pl_cuda_stream *stream)
{
    if (stream->scratch && stream->put)
        stream->put(stream, stream->scratch);
    else if (stream->scratch)
        pl_cuda_stream_note(stream, cudaFree(stream->scratch));
    stream->scratch = NULL;
    stream->scratch_bytes = 0;
}
