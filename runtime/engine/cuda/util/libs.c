/* SPDX-License-Identifier: MIT */
#include "runtime/engine/cuda/util/libs.h"
#include "kernels/cuda/stream.h"

static _Thread_local const struct pl_cuda_libs *current;

void pl_cuda_libs_set(const struct pl_cuda_libs *libs)
{
    current = libs;
}

struct pl_cuda_libs pl_cuda_libs_current(struct CUstream_st **ret_stream)
{
    struct pl_cuda_stream *stream = pl_cuda_stream_current();

    *ret_stream = stream->stream;
    return current && current->stream == stream ? *current : (struct pl_cuda_libs){.lt = NULL};
}
