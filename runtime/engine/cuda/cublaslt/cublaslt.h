/* SPDX-License-Identifier: MIT */
/* Products by NVIDIA's cublasLt, with bias and activation in the same pass where it can. Which
 * algorithm it takes for a shape is asked once (its heuristics' first answer) and kept.
 * Source: cuBLAS documentation, "Using the cublasLt API" and cublasLtEpilogue_t.
 *
 * Types: f32 in f32 (or tf32 where allowed), f64 in f64, bf16 and f16 with sums in f32; sums of a
 * product that is split over k are kept in the type of its sums, never in 16 bits.
 * Its relu is max(x, 0): a NaN becomes 0 there, where ref and our kernels keep it. */
#ifndef PL_RUNTIME_ENGINE_CUDA_CUBLASLT_CUBLASLT_H
#define PL_RUNTIME_ENGINE_CUDA_CUBLASLT_CUBLASLT_H

#include "runtime/engine/cuda/cublaslt/cublaslt_key.h"
#include "runtime/engine/cuda/util/cuda_status.h"

struct CUstream_st;
struct pl_cublaslt;

/* What cuBLAS' documentation advises for H100-class devices; more than others need. */
#define PL_CUBLASLT_WORKSPACE ((size_t)32 << 20)

/* For the device that is current. `workspace` is device memory of the caller's, for products on one
 * stream at a time; 256-byte aligned. Failures of a product are kept in status. -EIO, -ENOMEM. */
int pl_cublaslt_create(void *workspace,
                       size_t workspace_bytes,
                       bool tf32,
                       struct pl_cuda_status *status,
                       struct pl_cublaslt **ret,
                       struct pl_error *err);
void pl_cublaslt_destroy(struct pl_cublaslt *lt);

bool pl_cublaslt_tf32(const struct pl_cublaslt *lt);

/* Queues the product. False where cublasLt has no algorithm for it: nothing was queued. */
bool pl_cublaslt_run(struct pl_cublaslt *lt,
                     const struct pl_cublaslt_key *key,
                     const struct pl_cublaslt_data *data,
                     struct CUstream_st *stream);

/* Puts linear_forward, linear_backward and matmul into the table of its type, which has our own
 * kernels before: these are kept (per type, the same for all devices) and used for what cublasLt
 * cannot do, and where the current stream has no struct pl_cublaslt (libs.h). */
void pl_cublaslt_install(struct pl_kernels *table);

#endif
