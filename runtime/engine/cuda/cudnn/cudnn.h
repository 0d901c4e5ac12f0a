/* SPDX-License-Identifier: MIT */
/* Convolutions and attention by NVIDIA's cuDNN, through its graph interface ("backend"). The engine
 * for a shape is chosen once and cached with its plan: of its heuristics' whole list the first that
 * the shape, the types and the workspace allow, or for a convolution the fastest of the first eight
 * of these, which are timed on the arrays of the first call. Choices are kept (tuned.h). If there
 * is none, it is the first that is allowed of cuDNN's fallbacks. That, and a refusal, is logged,
 * once per key. Source: cuDNN documentation, "Graph API".
 *
 * Convolutions: f32, f64, bf16 and f16, computed in f32 (f64 in f64), by deterministic engines. f32
 * is not narrowed and does not use tensor cores, unless tf32 is allowed. A fused relu is max(x, 0):
 * a NaN may become 0 there.
 *
 * Attention: bf16 and f16. The gradient of queries is summed in an order that changes from run to
 * run, unless the device was opened as deterministic; that needs 2 batch heads time keys more
 * bytes. Probabilities are rounded to 16 bits before they are multiplied with values. */
#ifndef PL_RUNTIME_ENGINE_CUDA_CUDNN_CUDNN_H
#define PL_RUNTIME_ENGINE_CUDA_CUDNN_CUDNN_H

#include "runtime/engine/cuda/alloc/alloc.h"
#include "runtime/engine/cuda/cudnn/attention_key.h"
#include "runtime/engine/cuda/cudnn/conv_key.h"
#include "runtime/engine/cuda/util/cuda_status.h"
#include "runtime/engine/cuda/util/tuned.h"
#include "runtime/engine/device/device.h"

struct CUstream_st;
struct pl_cudnn;

/* The limit of an engine's workspace in bytes. */
#define PL_DNN_WORKSPACE ((size_t)512 << 20)
#define PL_DNN_ATTENTION_WORKSPACE ((size_t)4 << 30)

/* For the current device; everything runs on this stream. The workspace, as large as the largest
 * plan's, comes from its pool of `alloc` and is kept. timing: NULL for the heuristics' first
 * engines. Errors of a run are kept in status. -ENOENT: there is no cuDNN. -EIO, -ENOMEM. */
int pl_cudnn_create(struct CUstream_st *stream,
                    struct pl_cuda_alloc *alloc,
                    const struct pl_device_options *options,
                    const struct pl_timing *timing,
                    struct pl_cuda_status *status,
                    struct pl_cudnn **ret,
                    struct pl_error *err);
/* Queued work may still use the workspace; it is returned to the allocator. */
void pl_cudnn_destroy(struct pl_cudnn *dnn);

/* The library's, 91900 for 9.19.0; 0: there is none. */
size_t pl_cudnn_version(void);

struct pl_device_options pl_cudnn_options(const struct pl_cudnn *dnn);

/* The number of times that the workspace or the memory of pl_cudnn_scratch() has moved. Neither
 * moves while the stream is capturing. */
uint64_t pl_cudnn_moves(const struct pl_cudnn *dnn);

/* Memory for one op between its kernels, valid until the next call; NULL if out of memory. */
void *pl_cudnn_scratch(struct pl_cudnn *dnn, size_t bytes);

/* The arrays, by enum pl_conv_tensor; NULL if the pass has none. */
struct pl_conv_data {
    void *of[PL_CONV_B + 1];
};

/* Queues the convolution. Returns false, and queues nothing, if cuDNN has no engine for it. */
bool pl_cudnn_conv(struct pl_cudnn *dnn,
                   const struct pl_conv_key *key,
                   const struct pl_conv_data *data);

/* Queues y = y + b (if key->bias), then relu (if key->relu; a NaN stays NaN), in place. Errors are
 * kept in the status. */
void pl_cudnn_add_bias(struct pl_cudnn *dnn, const struct pl_conv_key *key, const void *b, void *y);

/* The arrays, by enum pl_att_tensor; NULL if the pass has none. */
struct pl_att_data {
    void *of[PL_ATT_DV + 1];
};

/* Queues attention. Returns false, and queues nothing, if cuDNN has no engine for it. */
bool pl_cudnn_attention(struct pl_cudnn *dnn,
                        const struct pl_att_key *key,
                        const struct pl_att_data *data);

/* Puts convolutions and attention, forward and backward, into a type's table, like
 * pl_cublaslt_install(). */
void pl_cudnn_install(struct pl_kernels *table);

#endif
