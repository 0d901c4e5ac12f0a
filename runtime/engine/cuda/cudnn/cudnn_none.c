/* SPDX-License-Identifier: MIT */
/* In place of dnn.c and its parts where Plume was built without cuDNN. */
#include "runtime/engine/cuda/cudnn/cudnn.h"

int pl_dnn_create(struct CUstream_st *stream,
                  struct pl_cuda_alloc *alloc,
                  const struct pl_device_options *options,
                  struct pl_cuda_status *status,
                  struct pl_dnn **ret,
                  struct pl_error *err)
{
    return pl_error_set(err, -ENOTSUP, "built without cuDNN");
}

void pl_dnn_destroy(struct pl_dnn *dnn) {}

uint64_t pl_dnn_moves(const struct pl_dnn *dnn)
{
    return 0;
}

/* Our own kernels stay. */
void pl_dnn_install(struct pl_kernels *table) {}
