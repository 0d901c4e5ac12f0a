/* SPDX-License-Identifier: MIT */
/* Replaces cudnn.c and its parts if Plume is built without cuDNN. */
#include "runtime/engine/cuda/cudnn/cudnn.h"

int pl_cudnn_create(struct CUstream_st *stream,
                    struct pl_cuda_alloc *alloc,
                    const struct pl_device_options *options,
                    const struct pl_timing *timing,
                    struct pl_cuda_status *status,
                    struct pl_cudnn **ret,
                    struct pl_error *err)
{
    return pl_error_set(err, -ENOTSUP, "built without cuDNN");
}

size_t pl_cudnn_version(void)
{
    return 0;
}

void pl_cudnn_destroy(struct pl_cudnn *dnn) {}

uint64_t pl_cudnn_moves(const struct pl_cudnn *dnn)
{
    return 0;
}

/* The table keeps our own kernels. */
void pl_cudnn_install(struct pl_kernels *table) {}
