/* SPDX-License-Identifier: MIT */
/* What plume-cuda.so has: NVIDIA's GPUs as devices, and collectives between them. It is loaded by
 * the first call that succeeds, and stays. Not thread safe. */
#ifndef PL_RUNTIME_ENGINE_DEVICE_GPU_H
#define PL_RUNTIME_ENGINE_DEVICE_GPU_H

#include "runtime/engine/device/device.h"
#include "runtime/engine/device/nccl_table.h"

/* The devices; whether there is one, ret->count() says. -ENOTSUP where plume-cuda.so is not there,
 * cannot be loaded (a library that it needs is missing) or is of another release; the text says so
 * and what to do. */
int pl_gpu_devices(const struct pl_device_ops **ret, struct pl_error *err);

/* The collectives. -ENOTSUP as above, and where it was built without NCCL. */
int pl_gpu_nccl(const struct pl_nccl_table **ret, struct pl_error *err);

/* Which GPU a rank takes. */
struct pl_gpu_choice {
    const unsigned *list; /* those of its node, by local rank; NULL: all that are visible */
    size_t n;             /* of the list */
    bool asked;           /* devices that a node is to have were named or counted */
    unsigned local_rank;
    struct pl_device_options options;
};

/* Opens the GPU of a rank: list[local_rank], or without a list that of the number local_rank among
 * those that are visible. Where one is visible it is that, if nothing was asked for (ranks share
 * it) or Slurm gave each rank its own. Outside of Slurm they are numbered as on the bus, as
 * nvidia-smi does (CUDA_DEVICE_ORDER, unless it is set). *ret is closed with its ops->close().
 * -ENOTSUP, -ENODEV: the text says how many there are and what to do. */
int pl_gpu_open(const struct pl_gpu_choice *choice, struct pl_device **ret, struct pl_error *err);

/* Opens the GPUs of a process that has n devices itself: those of the list, of n, or without one
 * (NULL) the first n that are visible. Where one is visible and there is no list, all of ret[] are
 * that one. Else as pl_gpu_open(). Closed with pl_gpu_close_all(). */
int pl_gpu_open_all(const unsigned *list,
                    unsigned n,
                    const struct pl_device_options *options,
                    struct pl_device **ret,
                    struct pl_error *err);

/* Closes each once; NULLs are fine. */
void pl_gpu_close_all(struct pl_device **devices, unsigned n);

#endif
