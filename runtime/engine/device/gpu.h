/* SPDX-License-Identifier: MIT */
/* The contents of plume-cuda.so: NVIDIA GPUs as devices, and collectives between them. The first
 * successful call loads it; it stays loaded. Not thread safe. */
#ifndef PL_RUNTIME_ENGINE_DEVICE_GPU_H
#define PL_RUNTIME_ENGINE_DEVICE_GPU_H

#include "runtime/engine/device/device.h"
#include "runtime/engine/device/nccl_table.h"

/* The devices; ret->count() says if there is one. -ENOTSUP: plume-cuda.so is missing, cannot be
 * loaded (a library that it needs is missing) or is of another release. The text gives the reason
 * and the remedy. */
int pl_gpu_devices(const struct pl_device_ops **ret, struct pl_error *err);

/* The same, and the number of GPUs that this process sees. Outside of Slurm they are numbered in
 * PCI bus order as by nvidia-smi (CUDA_DEVICE_ORDER, unless it is set). -ENODEV: none. */
int pl_gpu_look(const struct pl_device_ops **ret, unsigned *ret_n, struct pl_error *err);

/* The collectives. -ENOTSUP as above, and if built without NCCL. */
int pl_gpu_nccl(const struct pl_nccl_table **ret, struct pl_error *err);

/* The choice of a rank's GPU. */
struct pl_gpu_choice {
    const unsigned *list; /* the node's GPUs, by local rank; NULL: all visible ones */
    size_t n;             /* of the list */
    bool asked;           /* the user named or counted the node's devices */
    unsigned local_rank;
    struct pl_device_options options;
};

/* Opens the GPU of a rank: list[local_rank], or without a list the visible GPU of number
 * local_rank. If only one GPU is visible, the rank takes it, provided that nothing was asked for
 * (ranks share it) or that Slurm gave each rank its own. Close *ret with its ops->close().
 * -ENOTSUP, -ENODEV: the text says how many GPUs exist and what to do. */
int pl_gpu_open(const struct pl_gpu_choice *choice, struct pl_device **ret, struct pl_error *err);

/* Opens the n GPUs of a process that has several: those of the list, or without one (NULL) the
 * first n visible ones. If one GPU is visible and there is no list, all of ret[] are that one. Else
 * as pl_gpu_open(). Close them with pl_gpu_close_all(). */
int pl_gpu_open_all(const unsigned *list,
                    unsigned n,
                    const struct pl_device_options *options,
                    struct pl_device **ret,
                    struct pl_error *err);

/* Closes each once; NULLs are ignored. */
void pl_gpu_close_all(struct pl_device **devices, unsigned n);

#endif
