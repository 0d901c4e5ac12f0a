/* SPDX-License-Identifier: MIT */
/* How the ranks' GPUs add up: by NCCL (comm_nccl.h) where each rank has one of its own, else by way
 * of the host's memory. */
#ifndef PL_RUNTIME_ENGINE_COMM_COMM_GPU_H
#define PL_RUNTIME_ENGINE_COMM_COMM_GPU_H

#include "runtime/engine/comm/comm.h"

/* Sets comm->gpu for dev, of which each rank has opened one, or leaves it NULL; the same on all
 * ranks. With `must`, -ENOTSUP says why it cannot be, elsewhere a line of the log does; NCCLs of
 * different versions are an error anyway. Collective. */
int pl_comm_gpu_create(struct pl_comm *comm,
                       struct pl_device *dev,
                       bool must,
                       struct pl_error *err);

/* Before dev is closed and before comm. Waits for all ranks, unless `failed` says why this one
 * cannot. Without comm->gpu nothing happens. */
void pl_comm_gpu_destroy(struct pl_comm *comm, const char *failed);

#endif
