/* SPDX-License-Identifier: MIT */
/* cuDNN's graphs: their descriptors, and the plans that run them. For files that include cudnn.h.
 */
#ifndef PL_RUNTIME_ENGINE_CUDA_CUDNN_CUDNN_PRIVATE_H
#define PL_RUNTIME_ENGINE_CUDA_CUDNN_CUDNN_PRIVATE_H

#include "runtime/engine/cuda/cudnn/cudnn.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define PL_DNN_PARTS 96

/* Descriptors that are made for one another and go together. The first failure makes all later
 * calls do nothing. */
struct pl_cudnn_parts {
    void *list[PL_DNN_PARTS]; /* cudnnBackendDescriptor_t */
    size_t n;
    bool failed;
};

/* A descriptor of a type (cudnnBackendDescriptorType_t), destroyed with the parts; NULL if failed.
 */
void *pl_cudnn_make(struct pl_cudnn_parts *parts, int type);
/* Attribute and its type by cuDNN's numbers; n elements. */
void pl_cudnn_set(struct pl_cudnn_parts *parts,
                  void *desc,
                  int attribute,
                  int type,
                  int64_t n,
                  const void *values);
/* Short for one descriptor. */
void pl_cudnn_set_desc(struct pl_cudnn_parts *parts, void *desc, int attribute, void *value);
void pl_cudnn_finalize(struct pl_cudnn_parts *parts, void *desc);
void pl_cudnn_drop(struct pl_cudnn_parts *parts);

/* The graph of these ops (cudnnBackendDescriptor_t), finalized, for `handle` (cudnnHandle_t). NULL:
 * parts->failed. */
void *pl_cudnn_graph(struct pl_cudnn_parts *parts, void *handle, int64_t n, void **ops);

/* The type of the key's arrays: a cudnnDataType_t. */
int pl_cudnn_type(const struct pl_conv_key *key);

/* Whose keys are of one type. */
enum pl_cudnn_kind { PL_DNN_CONV, PL_DNN_ATTENTION, PL_DNN_KINDS };

/* How a kind's plans are made. */
struct pl_cudnn_recipe {
    void *(*graph)(struct pl_cudnn_parts *parts, void *handle, const void *key);
    /* Whether an engine may be taken that has this cudnnBackendNumericalNote_t. */
    bool (*may_take)(const void *key, int note);
    size_t workspace; /* bytes; more than this no engine may ask for */
};

struct pl_cudnn_plan;

/* The plan for a key, made when it is first asked for. NULL: cuDNN has no engine for it. */
struct pl_cudnn_plan *pl_cudnn_find_plan(struct pl_cudnn *dnn,
                                         enum pl_cudnn_kind kind,
                                         const struct pl_cudnn_recipe *recipe,
                                         const void *key);

#define PL_DNN_ARRAYS 16

/* An array of a graph by its tensor's number; on the host where the tensor is passed by value. */
struct pl_cudnn_array {
    int64_t id;
    void *at;
};

/* Queues it; what fails is kept in the status. False where there is no memory for its workspace:
 * nothing was queued. n: at most PL_DNN_ARRAYS. */
bool pl_cudnn_run(struct pl_cudnn *dnn,
                  const struct pl_cudnn_plan *plan,
                  const struct pl_cudnn_array *arrays,
                  size_t n);

void *pl_cudnn_handle(struct pl_cudnn *dnn); /* cudnnHandle_t */
struct pl_cuda_status *pl_cudnn_status(struct pl_cudnn *dnn);

#endif
