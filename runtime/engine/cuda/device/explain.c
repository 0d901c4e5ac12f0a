/* SPDX-License-Identifier: MIT */
#include "common/base/env.h"
#include "runtime/engine/cuda/device/cuda_device.h"

#include <cuda_runtime_api.h>

int pl_cuda_explain(int code, int driver, int runtime, struct pl_error *err)
{
    const char *visible = pl_env(PL_ENV_CUDA_VISIBLE_DEVICES);

    if (code == cudaErrorInsufficientDriver && driver == 0)
        return pl_error_set(err, -ENODEV,
                            "no NVIDIA driver is loaded on this machine; use a node with GPUs");
    if (code == cudaErrorInsufficientDriver)
        return pl_error_set(err, -ENODEV,
                            "the NVIDIA driver is for CUDA %d.%d, and plume-cuda.so for %d.%d; "
                            "update the driver, or build with an older CUDA",
                            driver / 1000, driver % 1000 / 10, runtime / 1000, runtime % 1000 / 10);
    if (code == cudaErrorNoDevice && visible)
        return pl_error_set(err, -ENODEV,
                            "no GPU is visible, CUDA_VISIBLE_DEVICES is '%s'; ask Slurm for GPUs "
                            "(--gpus-per-node)",
                            visible);
    if (code == cudaErrorNoDevice)
        return pl_error_set(err, -ENODEV,
                            "there is no GPU on this machine, or none that it lets us use");
    return pl_error_set(err, -ENODEV, "cannot use the GPUs of this machine: %s",
                        cudaGetErrorString((cudaError_t)code));
}
