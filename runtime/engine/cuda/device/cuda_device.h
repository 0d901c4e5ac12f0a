/* SPDX-License-Identifier: MIT */
/* GPUs as devices of the engine: the exports of plume-cuda.so. Each device has one stream for
 * kernels, copies and memory, so that all work runs in the order of the calls.
 *
 * CUDA_VISIBLE_DEVICES (set by Slurm) decides which GPUs exist and is never changed here; indices
 * count the visible ones. Environment: PLUME_GPU_MEMORY_LIMIT, the maximum that a process allocates
 * on each device (K, M, G; a plain number is MiB), without the gradients that NCCL sums. */
#ifndef PL_RUNTIME_ENGINE_CUDA_DEVICE_CUDA_DEVICE_H
#define PL_RUNTIME_ENGINE_CUDA_DEVICE_CUDA_DEVICE_H

#include "kernels/cuda/stream.h"
#include "runtime/engine/cuda/alloc/alloc.h"
#include "runtime/engine/cuda/alloc/staging.h"
#include "runtime/engine/cuda/util/libs.h"
#include "runtime/engine/device/device.h"

struct pl_cuda_device {
    struct pl_device base;
    uint64_t number;              /* counts all devices that this process has opened */
    struct pl_cuda_stream stream; /* of the kernels; its errors are copied to `status` */
    struct pl_cuda_status status;
    struct pl_cuda_alloc *alloc;
    struct pl_cuda_staging staging;
    struct pl_cuda_libs libs;
    struct pl_cuda_calls calls;      /* of the libraries' ops */
    struct CUevent_st *event;        /* other devices wait for it; NULL until needed */
    void *peek;                      /* PL_DEVICE_PEEK pinned bytes; NULL until needed */
    struct CUevent_st *peek_event;   /* after the copy to them; NULL until needed */
    uint64_t peer_mask;              /* bit i: peer access to GPU i was tried (cuda_copy_from) */
    int multiprocessors, capability; /* capability: 90 is 9.0 */
};

/* Records the error of kernels' launches: CUDA's, or that an op was refused. */
static inline void pl_cuda_check_ops(struct pl_cuda_device *d)
{
    if (d->stream.why)
        pl_cuda_fail(&d->status, "an op", d->stream.why);
    else
        pl_cuda_check(&d->status, "a kernel's launch", d->stream.error);
}

/* The only exported symbol. Never NULL. */
const struct pl_device_ops *plume_cuda_device(void);

/* count and about of struct pl_device_ops. */
int pl_cuda_count(unsigned *ret, struct pl_error *err);
int pl_cuda_about(unsigned index, struct pl_device_about *ret, struct pl_error *err);

/* Fills the device's limits; its name, multiprocessors and capability are known. tf32: products of
 * f32 may use it. */
void pl_cuda_limits(struct pl_cuda_device *d, bool tf32);

/* Translates the error of cudaGetDeviceCount() into a text for the user, as -ENODEV. `code` is a
 * cudaError_t; `driver` and `runtime` are CUDA's version numbers (13000 is 13.0; driver 0: there is
 * no libcuda.so.1). module: the driver's part in the kernel is loaded. */
int pl_cuda_explain(int code, int driver, int runtime, bool module, struct pl_error *err);

/* The kernels of a type, including the libraries' ops; NULL if the type has none. */
const struct pl_kernels *pl_cuda_kernels(enum pl_real real);

#endif
