/* SPDX-License-Identifier: MIT */
/* A device of the emulated CUDA kernels: its memory is the host's, but the engine does not know
 * that. */
#ifndef PL_TESTS_CUDA_FAKE_DEVICE_H
#define PL_TESTS_CUDA_FAKE_DEVICE_H

#include "kernels/cuda/cuda.h"
#include "runtime/engine/device/device.h"

static const struct pl_kernels *fake_kernels(struct pl_device *dev, enum pl_real real)
{
    return pl_kernels_cuda(real);
}

static inline struct pl_device *fake_device(void)
{
    static struct pl_device_ops ops;
    static struct pl_device dev = {.ops = &ops, .name = "fake"};

    ops = *pl_device_cpu()->ops;
    ops.host = false;
    ops.kernels = fake_kernels;
    return &dev;
}

#endif
