/* SPDX-License-Identifier: MIT */
#include "runtime/engine/cuda/util/cuda_status.h"

#include <cuda_runtime_api.h>

const char *pl_cuda_words(int code)
{
    switch (code) {
    case cudaErrorDevicesUnavailable:
        return "the GPU is busy or unavailable; another process has it in exclusive mode, or its "
               "mode is 'prohibited' (nvidia-smi -q -d COMPUTE)";
    case cudaErrorECCUncorrectable:
        return "uncorrectable ECC error encountered; the GPU's memory is faulty: drain the node "
               "(nvidia-smi -q -d ECC)";
    case cudaErrorSystemNotReady:
        return "system not yet initialized; NVIDIA's fabric manager does not run, or has not "
               "finished, on this machine (systemctl status nvidia-fabricmanager)";
    case cudaErrorNoKernelImageForDevice:
        return "no kernel image is available for execution on the device; plume-cuda.so was not "
               "built for this kind of GPU (-Dgpu_archs)";
    case cudaErrorUnsupportedPtxVersion:
        return "the provided PTX was compiled with an unsupported toolchain; plume-cuda.so was not "
               "built for this kind of GPU (-Dgpu_archs), and the driver is older than its CUDA";
    default:
        return cudaGetErrorString((cudaError_t)code);
    }
}

void pl_cuda_status_hold(struct pl_cuda_status *status)
{
    status->held_call = status->held_why = NULL;
    atomic_store(&status->held, true);
}

bool pl_cuda_status_is_held(const struct pl_cuda_status *status)
{
    return atomic_load(&status->held);
}

bool pl_cuda_status_release(struct pl_cuda_status *status,
                            const char **ret_call,
                            const char **ret_why)
{
    atomic_store(&status->held, false);
    if (!status->held_call)
        return false;
    *ret_call = status->held_call;
    *ret_why = status->held_why;
    return true;
}

int pl_cuda_fail(struct pl_cuda_status *status, const char *call, const char *why)
{
    if (atomic_load(&status->held)) {
        if (!status->held_call) {
            status->held_call = call;
            status->held_why = why;
        }
        return -EIO;
    }
    if (!atomic_exchange(&status->taken, true)) {
        status->call = call;
        status->why = why;
        atomic_store(&status->failed, true);
    }
    return -EIO;
}

int pl_cuda_check(struct pl_cuda_status *status, const char *call, int code)
{
    if (code == cudaSuccess)
        return 0;
    (void)cudaGetLastError();
    return pl_cuda_fail(status, call, pl_cuda_words(code));
}

int pl_cuda_check_launches(struct pl_cuda_status *status, const char *call)
{
    return pl_cuda_check(status, call, cudaGetLastError());
}

int pl_cuda_report(const struct pl_cuda_status *status, const char *device, struct pl_error *err)
{
    if (!atomic_load(&status->failed))
        return 0;
    return pl_error_set(err, -EIO, "%s failed on %s: %s", status->call, device, status->why);
}

int pl_cuda_error(struct pl_error *err, const char *device, const char *call, int code)
{
    (void)cudaGetLastError();
    return pl_error_set(err, -EIO, "%s failed on %s: %s", call, device, pl_cuda_words(code));
}
