/* SPDX-License-Identifier: MIT */
/* GPUs as devices of the engine: what plume-cuda.so exports. Each device has one stream for its
 * kernels, copies and memory, so that all is done in the order in which it was asked.
 *
 * Which GPUs there are is CUDA_VISIBLE_DEVICES' business (Slurm's, that is), which is never changed
 * here; indices are among the visible ones. Environment: PLUME_GPU_MEMORY_LIMIT, the most that a
 * process takes of each device (K, M, G; a plain number is MiB; gradients that NCCL adds up are
 * beside it). */
#ifndef PL_RUNTIME_ENGINE_CUDA_DEVICE_CUDA_DEVICE_H
#define PL_RUNTIME_ENGINE_CUDA_DEVICE_CUDA_DEVICE_H

#include "kernels/cuda/stream.h"
#include "runtime/engine/cuda/alloc/alloc.h"
#include "runtime/engine/cuda/alloc/staging.h"
#include "runtime/engine/cuda/util/libs.h"
#include "runtime/engine/device/device.h"

struct pl_cuda_device {
    struct pl_device base;
    uint64_t number;              /* of all that this process has opened */
    struct pl_cuda_stream stream; /* the kernels'; its errors go over to `status` */
    struct pl_cuda_status status;
    struct pl_cuda_alloc *alloc;
    struct pl_cuda_staging staging;
    struct pl_cuda_libs libs;
    struct CUevent_st *event;        /* for other devices to wait for; NULL until there is one */
    void *peek;                      /* PL_DEVICE_PEEK pinned bytes, */
    struct CUevent_st *peek_event;   /* and when they are there; NULL until they are needed */
    uint64_t peer_mask;              /* bit i: GPU i's memory was asked for (cuda_copy_from) */
    int multiprocessors, capability; /* 90 is 9.0 */
};

/* The one symbol that is exported. Never NULL. */
const struct pl_device_ops *plume_cuda_device(void);

/* What the runtime's answer to "how many devices" means for a person, as -ENODEV. `code` is a
 * cudaError_t, `driver` and `runtime` versions as CUDA writes them (13000 is 13.0; driver 0: there
 * is none). */
int pl_cuda_explain(int code, int driver, int runtime, struct pl_error *err);

/* The kernels of a type with the libraries' ops among them, NULL where there are none. */
const struct pl_kernels *pl_cuda_kernels(enum pl_real real);

#endif
