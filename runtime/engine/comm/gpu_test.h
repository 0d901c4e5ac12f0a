/* SPDX-License-Identifier: MIT */
/* A short test of a GPU before a run trusts it: matrix products, a linear layer and attention in
 * f32, bf16 and f16, forward and backward, and an all-reduce of one rank by NCCL, each compared
 * with the reference kernels on the CPU. It finds kernels and libraries that are wrong on this GPU.
 * It does not find what fails now and then, nor what is slow. */
#ifndef PL_RUNTIME_ENGINE_COMM_GPU_TEST_H
#define PL_RUNTIME_ENGINE_COMM_GPU_TEST_H

#include "runtime/engine/device/device.h"
#include "runtime/engine/device/nccl_table.h"

/* Tests the GPU of number `index` among those of ops. nccl: NULL leaves the all-reduce out.
 * -EDOM: a result is not the reference's. -ENOTSUP: our own kernels did an op in 16 bits, or a part
 * of it, that NVIDIA's libraries are there for (the libraries' own reason is logged). Other errors
 * are the device's. It waits for the device without a limit. */
int pl_gpu_test_run(const struct pl_device_ops *ops,
                    unsigned index,
                    const struct pl_nccl_table *nccl,
                    struct pl_error *err);

#endif
