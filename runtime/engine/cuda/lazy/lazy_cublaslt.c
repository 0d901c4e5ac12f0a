/* SPDX-License-Identifier: MIT */
/* cublasLt's functions that the engine calls. */
#include "runtime/engine/cuda/lazy/lazy.h"

#include <cublasLt.h>

#define TEXT(x) #x
#define NAME(major) "libcublasLt.so." TEXT(major)

static struct pl_lazy lib = {.name = "cuBLAS",
                             .file = NAME(CUBLAS_VER_MAJOR),
                             .advice = "install CUDA's libraries (pip install nvidia-cublas)",
                             .lock = PTHREAD_MUTEX_INITIALIZER};

int pl_lazy_cublaslt(struct pl_error *err)
{
    return pl_lazy_open(&lib, err);
}

#define CALL(function, ...) PL_LAZY_CALL(&lib, function, CUBLAS_STATUS_NOT_INITIALIZED, __VA_ARGS__)

cublasStatus_t cublasLtCreate(cublasLtHandle_t *handle)
{
    CALL(cublasLtCreate, handle);
}

cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle)
{
    CALL(cublasLtDestroy, handle);
}

size_t cublasLtGetVersion(void)
{
    PL_LAZY_CALL(&lib, cublasLtGetVersion, 0);
}

const char *cublasLtGetStatusString(cublasStatus_t status)
{
    PL_LAZY_CALL(&lib, cublasLtGetStatusString, "cuBLAS is not there", status);
}

cublasStatus_t cublasLtMatrixLayoutInit_internal(cublasLtMatrixLayout_t layout,
                                                 size_t size,
                                                 cudaDataType type,
                                                 uint64_t rows,
                                                 uint64_t cols,
                                                 int64_t ld)
{
    CALL(cublasLtMatrixLayoutInit_internal, layout, size, type, rows, cols, ld);
}

cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t layout,
                                                cublasLtMatrixLayoutAttribute_t attr,
                                                const void *value,
                                                size_t size)
{
    CALL(cublasLtMatrixLayoutSetAttribute, layout, attr, value, size);
}

cublasStatus_t cublasLtMatmulDescInit_internal(cublasLtMatmulDesc_t desc,
                                               size_t size,
                                               cublasComputeType_t compute,
                                               cudaDataType_t scale)
{
    CALL(cublasLtMatmulDescInit_internal, desc, size, compute, scale);
}

cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t desc,
                                              cublasLtMatmulDescAttributes_t attr,
                                              const void *value,
                                              size_t size)
{
    CALL(cublasLtMatmulDescSetAttribute, desc, attr, value, size);
}

cublasStatus_t cublasLtMatmulPreferenceInit_internal(cublasLtMatmulPreference_t pref, size_t size)
{
    CALL(cublasLtMatmulPreferenceInit_internal, pref, size);
}

cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t pref,
                                                    cublasLtMatmulPreferenceAttributes_t attr,
                                                    const void *value,
                                                    size_t size)
{
    CALL(cublasLtMatmulPreferenceSetAttribute, pref, attr, value, size);
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle,
                                              cublasLtMatmulDesc_t desc,
                                              cublasLtMatrixLayout_t a,
                                              cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c,
                                              cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t preference,
                                              int requested,
                                              cublasLtMatmulHeuristicResult_t results[],
                                              int *count)
{
    CALL(cublasLtMatmulAlgoGetHeuristic, handle, desc, a, b, c, d, preference, requested, results,
         count);
}

cublasStatus_t cublasLtMatmulAlgoCheck(cublasLtHandle_t handle,
                                       cublasLtMatmulDesc_t desc,
                                       cublasLtMatrixLayout_t a,
                                       cublasLtMatrixLayout_t b,
                                       cublasLtMatrixLayout_t c,
                                       cublasLtMatrixLayout_t d,
                                       const cublasLtMatmulAlgo_t *algo,
                                       cublasLtMatmulHeuristicResult_t *result)
{
    CALL(cublasLtMatmulAlgoCheck, handle, desc, a, b, c, d, algo, result);
}

cublasStatus_t cublasLtMatmulAlgoConfigGetAttribute(const cublasLtMatmulAlgo_t *algo,
                                                    cublasLtMatmulAlgoConfigAttributes_t attr,
                                                    void *value,
                                                    size_t size,
                                                    size_t *written)
{
    CALL(cublasLtMatmulAlgoConfigGetAttribute, algo, attr, value, size, written);
}

cublasStatus_t cublasLtMatmulAlgoConfigSetAttribute(cublasLtMatmulAlgo_t *algo,
                                                    cublasLtMatmulAlgoConfigAttributes_t attr,
                                                    const void *value,
                                                    size_t size)
{
    CALL(cublasLtMatmulAlgoConfigSetAttribute, algo, attr, value, size);
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle,
                              cublasLtMatmulDesc_t desc,
                              const void *alpha,
                              const void *a,
                              cublasLtMatrixLayout_t a_layout,
                              const void *b,
                              cublasLtMatrixLayout_t b_layout,
                              const void *beta,
                              const void *c,
                              cublasLtMatrixLayout_t c_layout,
                              void *d,
                              cublasLtMatrixLayout_t d_layout,
                              const cublasLtMatmulAlgo_t *algo,
                              void *workspace,
                              size_t workspace_bytes,
                              cudaStream_t stream)
{
    CALL(cublasLtMatmul, handle, desc, alpha, a, a_layout, b, b_layout, beta, c, c_layout, d,
         d_layout, algo, workspace, workspace_bytes, stream);
}
