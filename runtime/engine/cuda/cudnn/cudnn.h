/* SPDX-License-Identifier: MIT */
/* Convolutions and attention by NVIDIA's cuDNN, through its graph interface ("backend"). Which
 * engine it takes for a shape is asked once and kept with its plan: the first of its heuristics'
 * list that the shape, the types and the workspace allow. Source: cuDNN documentation, "Graph API".
 *
 * Convolutions: f32, f64, bf16 and f16, calculated in f32 (f64 in f64), by engines that are
 * deterministic; f32 is neither narrowed nor sent through tensor cores unless tf32 is allowed. Its
 * relu, where it is fused, is max(x, 0): a NaN may become 0 there.
 *
 * Attention: bf16 and f16. The gradient of queries is added up in an order that changes from run to
 * run, unless the device was opened to be deterministic; that takes 2 batch heads time keys bytes
 * more. Probabilities are rounded to 16 bits before they meet values. */
#ifndef PL_RUNTIME_ENGINE_CUDA_CUDNN_CUDNN_H
#define PL_RUNTIME_ENGINE_CUDA_CUDNN_CUDNN_H

#include "runtime/engine/cuda/alloc/alloc.h"
#include "runtime/engine/cuda/cudnn/attention_key.h"
#include "runtime/engine/cuda/cudnn/conv_key.h"
#include "runtime/engine/cuda/util/cuda_status.h"
#include "runtime/engine/device/device.h"

struct CUstream_st;
struct pl_cudnn;

/* Bytes that no engine may ask for more than. */
#define PL_DNN_WORKSPACE ((size_t)512 << 20)
#define PL_DNN_ATTENTION_WORKSPACE ((size_t)4 << 30)

/* For the device that is current; everything runs on this stream, from whose pool of `alloc` the
 * workspace comes (as large as the largest plan's; it is kept). Failures of a run are kept in
 * status. -EIO, -ENOMEM. */
int pl_cudnn_create(struct CUstream_st *stream,
                    struct pl_cuda_alloc *alloc,
                    const struct pl_device_options *options,
                    struct pl_cuda_status *status,
                    struct pl_cudnn **ret,
                    struct pl_error *err);
/* Work that was queued may still use the workspace; it is given back to the allocator. */
void pl_cudnn_destroy(struct pl_cudnn *dnn);

struct pl_device_options pl_cudnn_options(const struct pl_cudnn *dnn);

/* How often the workspace or what pl_cudnn_scratch() gives came to lie elsewhere: not while the
 * stream is captured. */
uint64_t pl_cudnn_moves(const struct pl_cudnn *dnn);

/* Memory for one op between its kernels, good until the next call; NULL where there is none. */
void *pl_cudnn_scratch(struct pl_cudnn *dnn, size_t bytes);

/* The arrays, by enum pl_conv_tensor; NULL where the pass has none. */
struct pl_conv_data {
    void *of[PL_CONV_B + 1];
};

/* Queues the convolution. False where cuDNN has no engine for it: nothing was queued. */
bool pl_cudnn_conv(struct pl_cudnn *dnn,
                   const struct pl_conv_key *key,
                   const struct pl_conv_data *data);

/* Queues y = y + b (where key->bias), then relu (where key->relu; a NaN stays one), in place. What
 * fails is kept in the status. */
void pl_cudnn_add_bias(struct pl_cudnn *dnn, const struct pl_conv_key *key, const void *b, void *y);

/* The arrays, by enum pl_att_tensor; NULL where the pass has none. */
struct pl_att_data {
    void *of[PL_ATT_DV + 1];
};

/* Queues attention. False where cuDNN has no engine for it: nothing was queued. */
bool pl_cudnn_attention(struct pl_cudnn *dnn,
                        const struct pl_att_key *key,
                        const struct pl_att_data *data);

/* Puts convolutions and attention, forward and backward, into the table of its type; as
 * pl_cublaslt_install(). */
void pl_cudnn_install(struct pl_kernels *table);

#endif
