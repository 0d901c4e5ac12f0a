/* SPDX-License-Identifier: MIT */
/* A plume-cuda.so without GPUs: of this release, or (-DFAKE_AGE=1) of the next one. */
#include "runtime/engine/device/device.h"

static int count(unsigned *ret, struct pl_error *err)
{
    return -ENODEV;
}

static const struct pl_device_ops ops = {
    .version = PL_DEVICE_VERSION + FAKE_AGE,
    .name = "fake",
    .count = count,
};

const struct pl_device_ops *plume_cuda_device(void);

const struct pl_device_ops *plume_cuda_device(void)
{
    return &ops;
}
