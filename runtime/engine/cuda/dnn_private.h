/* SPDX-License-Identifier: MIT */
/* Descriptors of cuDNN's graphs. For files that include cudnn.h. */
#ifndef PL_RUNTIME_ENGINE_CUDA_DNN_PRIVATE_H
#define PL_RUNTIME_ENGINE_CUDA_DNN_PRIVATE_H

#include "runtime/engine/cuda/conv_key.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define PL_DNN_PARTS 32

/* Descriptors that are made for one another and go together. The first failure makes all later
 * calls do nothing. */
struct pl_dnn_parts {
    void *list[PL_DNN_PARTS]; /* cudnnBackendDescriptor_t */
    size_t n;
    bool failed;
};

/* A descriptor of a type (cudnnBackendDescriptorType_t), destroyed with the parts; NULL if failed.
 */
void *pl_dnn_make(struct pl_dnn_parts *parts, int type);
/* Attribute and its type by cuDNN's numbers; n elements. */
void pl_dnn_set(
    struct pl_dnn_parts *parts, void *desc, int attribute, int type, int64_t n, const void *values);
/* Short for one descriptor. */
void pl_dnn_set_desc(struct pl_dnn_parts *parts, void *desc, int attribute, void *value);
void pl_dnn_finalize(struct pl_dnn_parts *parts, void *desc);
void pl_dnn_drop(struct pl_dnn_parts *parts);

/* The type of the key's arrays: a cudnnDataType_t. */
int pl_dnn_type(const struct pl_conv_key *key);

/* The graph of a convolution, finalized, for `handle` (cudnnHandle_t). NULL: parts->failed. */
void *pl_dnn_conv_graph(struct pl_dnn_parts *parts, void *handle, const struct pl_conv_key *key);

#endif
