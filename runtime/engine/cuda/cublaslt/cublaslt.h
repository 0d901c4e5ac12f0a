/* SPDX-License-Identifier: MIT */
/* Matrix products by NVIDIA's cublasLt, with bias and activation in the same pass if possible. The
 * algorithm for a shape is looked up once and cached: the fastest of the heuristics' first answers,
 * which are timed, and of a long product also of that one's variants (cublaslt_vary.h); or the
 * first one where nothing may be timed. A choice stays (tuned.h), also that of a product that adds
 * and cannot be timed, so that results repeat bit for bit. Source: cuBLAS
 * documentation, "Using the cublasLt API" and cublasLtEpilogue_t.
 *
 * Types: f32 in f32 (or tf32 if allowed), f64 in f64, bf16 and f16 with sums in f32. If a product
 * is split over k, partial sums have the type of the sums, never 16 bits. The fused relu is max(x,
 * 0): it turns a NaN into 0, while ref and our kernels keep it. */
#ifndef PL_RUNTIME_ENGINE_CUDA_CUBLASLT_CUBLASLT_H
#define PL_RUNTIME_ENGINE_CUDA_CUBLASLT_CUBLASLT_H

#include "runtime/engine/cuda/cublaslt/cublaslt_key.h"
#include "runtime/engine/cuda/util/cuda_status.h"
#include "runtime/engine/cuda/util/tuned.h"

struct CUstream_st;
struct pl_cublaslt;

/* The advice of cuBLAS' documentation for H100-class devices; others need less. */
#define PL_CUBLASLT_WORKSPACE ((size_t)32 << 20)

/* For the current device. timing: NULL for the heuristics' first answers; borrowed. `workspace` is
 * the caller's device memory, 256-byte aligned, for products on one stream at a time. Errors of a
 * product are kept in status. -ENOENT: there is no cublasLt. -EIO, -ENOMEM. */
int pl_cublaslt_create(void *workspace,
                       size_t workspace_bytes,
                       bool tf32,
                       const struct pl_timing *timing,
                       struct pl_cuda_status *status,
                       struct pl_cublaslt **ret,
                       struct pl_error *err);
void pl_cublaslt_destroy(struct pl_cublaslt *lt);

bool pl_cublaslt_tf32(const struct pl_cublaslt *lt);

/* The library's, 130100 for 13.1.0; 0: there is none. */
size_t pl_cublaslt_version(void);

/* Queues the product. Returns false, and queues nothing, if cublasLt has no algorithm for it. */
bool pl_cublaslt_run(struct pl_cublaslt *lt,
                     const struct pl_cublaslt_key *key,
                     const struct pl_cublaslt_data *data,
                     struct CUstream_st *stream);

/* Tells, once for the same words, that cublasLt is not asked for an op of [m, k] and [k, n], and
 * why: our own kernels do it. */
void pl_cublaslt_unasked(struct pl_cublaslt *lt,
                         enum pl_real real,
                         const char *op,
                         size_t m,
                         size_t n,
                         size_t k,
                         const char *why);

/* True if an op with this epilogue in the product (fused) is faster than with a kernel of its own,
 * or if that is unknown and the epilogue usually is. Both are timed where a product's answers are,
 * and the choice is kept in the same way. run: does the op, returns false if it cannot. It is
 * called any number of times. */
bool pl_cublaslt_fuses(struct pl_cublaslt *lt,
                       const struct pl_cublaslt_key *key,
                       struct CUstream_st *stream,
                       bool (*run)(const void *ctx, bool fused),
                       const void *ctx);

/* Puts linear_forward, linear_backward and matmul into a type's table. The table's own kernels are
 * kept (per type, the same for all devices) and used if cublasLt cannot do an op, or if the current
 * stream has no struct pl_cublaslt (libs.h). */
void pl_cublaslt_install(struct pl_kernels *table);

#endif
