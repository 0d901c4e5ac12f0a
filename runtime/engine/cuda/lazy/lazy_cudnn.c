/* SPDX-License-Identifier: MIT */
/* cuDNN's functions that the engine calls. */
#include "runtime/engine/cuda/lazy/lazy.h"

#include <cublasLt.h>
#include <cuda_runtime_api.h>
#include <cudnn.h>

#define TEXT(x) #x
#define NAME(start, major) start TEXT(major)

/* Its engines open NVRTC and cublasLt by these names. */
#if CUDART_VERSION >= 13000
#define NVRTC "libnvrtc.so.13"
#else
#define NVRTC "libnvrtc.so.12"
#endif
static const char *const before[] = {NAME("libcublasLt.so.", CUBLAS_VER_MAJOR), NVRTC, NULL};

static struct pl_lazy lib = {.name = "cuDNN",
                             .file = NAME("libcudnn.so.", CUDNN_MAJOR),
                             .before = before,
                             .advice = "install it (pip install nvidia-cudnn-cu13, or -cu12)",
                             .lock = PTHREAD_MUTEX_INITIALIZER};

int pl_lazy_cudnn(struct pl_error *err)
{
    return pl_lazy_open(&lib, err);
}

#define CALL(function, ...) PL_LAZY_CALL(&lib, function, CUDNN_STATUS_NOT_INITIALIZED, __VA_ARGS__)

size_t cudnnGetVersion(void)
{
    PL_LAZY_CALL(&lib, cudnnGetVersion, 0);
}

const char *cudnnGetErrorString(cudnnStatus_t status)
{
    PL_LAZY_CALL(&lib, cudnnGetErrorString, "cuDNN is not there", status);
}

void cudnnGetLastErrorString(char *message, size_t max_size)
{
    PL_LAZY_CALL(&lib, cudnnGetLastErrorString, , message, max_size);
}

cudnnStatus_t cudnnCreate(cudnnHandle_t *handle)
{
    CALL(cudnnCreate, handle);
}

cudnnStatus_t cudnnDestroy(cudnnHandle_t handle)
{
    CALL(cudnnDestroy, handle);
}

cudnnStatus_t cudnnSetStream(cudnnHandle_t handle, cudaStream_t stream)
{
    CALL(cudnnSetStream, handle, stream);
}

cudnnStatus_t cudnnBackendCreateDescriptor(cudnnBackendDescriptorType_t type,
                                           cudnnBackendDescriptor_t *desc)
{
    CALL(cudnnBackendCreateDescriptor, type, desc);
}

cudnnStatus_t cudnnBackendDestroyDescriptor(cudnnBackendDescriptor_t desc)
{
    CALL(cudnnBackendDestroyDescriptor, desc);
}

cudnnStatus_t cudnnBackendFinalize(cudnnBackendDescriptor_t desc)
{
    CALL(cudnnBackendFinalize, desc);
}

cudnnStatus_t cudnnBackendSetAttribute(cudnnBackendDescriptor_t desc,
                                       cudnnBackendAttributeName_t name,
                                       cudnnBackendAttributeType_t type,
                                       int64_t count,
                                       const void *values)
{
    CALL(cudnnBackendSetAttribute, desc, name, type, count, values);
}

cudnnStatus_t cudnnBackendGetAttribute(cudnnBackendDescriptor_t const desc,
                                       cudnnBackendAttributeName_t name,
                                       cudnnBackendAttributeType_t type,
                                       int64_t requested,
                                       int64_t *count,
                                       void *values)
{
    CALL(cudnnBackendGetAttribute, desc, name, type, requested, count, values);
}

cudnnStatus_t cudnnBackendExecute(cudnnHandle_t handle,
                                  cudnnBackendDescriptor_t plan,
                                  cudnnBackendDescriptor_t pack)
{
    CALL(cudnnBackendExecute, handle, plan, pack);
}

cudnnStatus_t cudnnCreateTensorDescriptor(cudnnTensorDescriptor_t *desc)
{
    CALL(cudnnCreateTensorDescriptor, desc);
}

cudnnStatus_t cudnnDestroyTensorDescriptor(cudnnTensorDescriptor_t desc)
{
    CALL(cudnnDestroyTensorDescriptor, desc);
}

cudnnStatus_t cudnnSetTensor4dDescriptor(cudnnTensorDescriptor_t desc,
                                         cudnnTensorFormat_t format,
                                         cudnnDataType_t type,
                                         int n,
                                         int c,
                                         int h,
                                         int w)
{
    CALL(cudnnSetTensor4dDescriptor, desc, format, type, n, c, h, w);
}

cudnnStatus_t cudnnAddTensor(cudnnHandle_t handle,
                             const void *alpha,
                             const cudnnTensorDescriptor_t a_desc,
                             const void *a,
                             const void *beta,
                             const cudnnTensorDescriptor_t c_desc,
                             void *c)
{
    CALL(cudnnAddTensor, handle, alpha, a_desc, a, beta, c_desc, c);
}

cudnnStatus_t cudnnCreateActivationDescriptor(cudnnActivationDescriptor_t *desc)
{
    CALL(cudnnCreateActivationDescriptor, desc);
}

cudnnStatus_t cudnnDestroyActivationDescriptor(cudnnActivationDescriptor_t desc)
{
    CALL(cudnnDestroyActivationDescriptor, desc);
}

cudnnStatus_t cudnnSetActivationDescriptor(cudnnActivationDescriptor_t desc,
                                           cudnnActivationMode_t mode,
                                           cudnnNanPropagation_t nan,
                                           double coefficient)
{
    CALL(cudnnSetActivationDescriptor, desc, mode, nan, coefficient);
}

cudnnStatus_t cudnnActivationForward(cudnnHandle_t handle,
                                     cudnnActivationDescriptor_t desc,
                                     const void *alpha,
                                     const cudnnTensorDescriptor_t x_desc,
                                     const void *x,
                                     const void *beta,
                                     const cudnnTensorDescriptor_t y_desc,
                                     void *y)
{
    CALL(cudnnActivationForward, handle, desc, alpha, x_desc, x, beta, y_desc, y);
}
