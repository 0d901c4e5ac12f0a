/* SPDX-License-Identifier: MIT */
#include "common/base/env.h"
#include "runtime/engine/cuda/device/cuda_device.h"
#include "runtime/engine/cuda/util/cuda_status.h"

#include <cuda_runtime_api.h>

/* The first driver for a CUDA. Source: CUDA's release notes, "Minor Version Compatibility". */
static const char *driver_for(int runtime)
{
    static const struct {
        int major;
        const char *text;
    } list[] = {{13, " to 580 or later"}, {12, " to 525 or later"}, {11, " to 450 or later"}};

    for (size_t i = 0; i < sizeof(list) / sizeof(*list); i++)
        if (runtime / 1000 == list[i].major)
            return list[i].text;
    return "";
}

int pl_cuda_explain(int code, int driver, int runtime, bool module, struct pl_error *err)
{
    const char *visible = pl_env(PL_ENV_CUDA_VISIBLE_DEVICES);

    if (code == cudaErrorInsufficientDriver && driver == 0 && module)
        return pl_error_set(err, -ENODEV,
                            "this machine has an NVIDIA driver, but its libcuda.so.1 is not found; "
                            "a container must take it from the host (apptainer --nv, docker --gpus "
                            "all, NVIDIA_DRIVER_CAPABILITIES=compute,utility)");
    if (code == cudaErrorInsufficientDriver && driver == 0)
        return pl_error_set(err, -ENODEV,
                            "no NVIDIA driver is loaded on this machine; use a node with GPUs");
    if (code == cudaErrorInsufficientDriver)
        return pl_error_set(err, -ENODEV,
                            "the NVIDIA driver is for CUDA %d.%d, and plume-cuda.so for %d.%d; "
                            "update the driver%s, or build with an older CUDA",
                            driver / 1000, driver % 1000 / 10, runtime / 1000, runtime % 1000 / 10,
                            driver_for(runtime));
    if (code == cudaErrorNoDevice && visible)
        return pl_error_set(err, -ENODEV,
                            "no GPU is visible, CUDA_VISIBLE_DEVICES is '%s'; ask Slurm for GPUs "
                            "(--gpus-per-node)",
                            visible);
    if (code == cudaErrorNoDevice)
        return pl_error_set(err, -ENODEV,
                            "there is no GPU on this machine, or none that it lets us use");
    return pl_error_set(err, -ENODEV, "cannot use the GPUs of this machine: %s",
                        pl_cuda_words(code));
}
