/* SPDX-License-Identifier: MIT */
/* A product in cublasLt's descriptors. Includes cublasLt's header: for this folder only. */
#ifndef PL_RUNTIME_ENGINE_CUDA_CUBLASLT_CUBLASLT_CALL_H
#define PL_RUNTIME_ENGINE_CUDA_CUBLASLT_CUBLASLT_CALL_H

#include "runtime/engine/cuda/cublaslt/cublaslt_key.h"

#include <cublasLt.h>

/* The descriptors of one call; cheap to make, and not referenced after it. */
struct pl_cublaslt_call {
    cublasLtMatmulDescOpaque_t desc;
    cublasLtMatrixLayoutOpaque_t a, b, d;
    cublasStatus_t status; /* of what could not be described */
};

/* False where cublasLt does not take a descriptor: ret->status says why. */
bool pl_cublaslt_make_call(const struct pl_cublaslt_key *key,
                           const struct pl_cublaslt_data *data,
                           struct pl_cublaslt_call *ret);

#endif
