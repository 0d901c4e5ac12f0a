/* SPDX-License-Identifier: MIT */
/* Collectives between the ranks' GPUs: by NCCL (comm_nccl.h) if each rank has a GPU of its own,
 * else through the host's memory. */
#ifndef PL_RUNTIME_ENGINE_COMM_COMM_GPU_H
#define PL_RUNTIME_ENGINE_COMM_COMM_GPU_H

#include "runtime/engine/comm/comm.h"

/* Sets comm->gpu for dev, the GPU of this rank, or leaves it NULL; the same on all ranks. If NCCL
 * cannot be used, `must` makes that an error (-ENOTSUP with the reason); otherwise it is logged.
 * Different versions of NCCL are always an error. Collective. */
int pl_comm_gpu_create(struct pl_comm *comm,
                       struct pl_device *dev,
                       bool must,
                       struct pl_error *err);

/* Call before dev is closed and before comm is destroyed. Waits for all ranks, unless `failed` says
 * why this one cannot. Does nothing without comm->gpu. */
void pl_comm_gpu_destroy(struct pl_comm *comm, const char *failed);

#endif
