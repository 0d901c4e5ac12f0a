/* SPDX-License-Identifier: MIT */
/* cuDNN's graphs: descriptors, and the plans that run them. For the files that include cudnn.h. */
#ifndef PL_RUNTIME_ENGINE_CUDA_CUDNN_CUDNN_PRIVATE_H
#define PL_RUNTIME_ENGINE_CUDA_CUDNN_CUDNN_PRIVATE_H

#include "runtime/engine/cuda/cudnn/cudnn.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define PL_DNN_PARTS 96

/* Descriptors that belong together. After the first failure all calls do nothing. */
struct pl_cudnn_parts {
    void *list[PL_DNN_PARTS]; /* cudnnBackendDescriptor_t */
    size_t n;
    bool failed;
};

/* Makes a descriptor of a type (cudnnBackendDescriptorType_t), which is destroyed with the parts;
 * NULL if failed. */
void *pl_cudnn_make(struct pl_cudnn_parts *parts, int type);
/* Attribute and type are cuDNN's numbers; n elements. */
void pl_cudnn_set(struct pl_cudnn_parts *parts,
                  void *desc,
                  int attribute,
                  int type,
                  int64_t n,
                  const void *values);
/* Sets one descriptor. */
void pl_cudnn_set_desc(struct pl_cudnn_parts *parts, void *desc, int attribute, void *value);
void pl_cudnn_finalize(struct pl_cudnn_parts *parts, void *desc);
void pl_cudnn_drop(struct pl_cudnn_parts *parts);

/* Finalizes the graph of these ops (cudnnBackendDescriptor_t) for `handle` (cudnnHandle_t). NULL:
 * parts->failed. */
void *pl_cudnn_graph(struct pl_cudnn_parts *parts, void *handle, int64_t n, void **ops);

/* The cudnnDataType_t of the key's arrays. */
int pl_cudnn_type(const struct pl_conv_key *key);

/* A family of plans whose keys have one type. */
enum pl_cudnn_kind { PL_DNN_CONV, PL_DNN_ATTENTION, PL_DNN_KINDS };

/* Makes a plan of the family. */
struct pl_cudnn_recipe {
    void *(*graph)(struct pl_cudnn_parts *parts, void *handle, const void *key);
    /* True if an engine with this cudnnBackendNumericalNote_t may be used. */
    bool (*may_take)(const void *key, int note);
    size_t workspace; /* limit of an engine's workspace, in bytes */
};

struct pl_cudnn_plan;

/* The plan for a key, made at the first request. NULL: cuDNN has no engine for it. */
struct pl_cudnn_plan *pl_cudnn_find_plan(struct pl_cudnn *dnn,
                                         enum pl_cudnn_kind kind,
                                         const struct pl_cudnn_recipe *recipe,
                                         const void *key);

#define PL_DNN_ARRAYS 16

/* An array of a graph, by its tensor's id; on the host if the tensor is passed by value. */
struct pl_cudnn_array {
    int64_t id;
    void *at;
};

/* Queues the plan; errors are kept in the status. Returns false, and queues nothing, if there is no
 * memory for its workspace. n: at most PL_DNN_ARRAYS. */
bool pl_cudnn_run(struct pl_cudnn *dnn,
                  const struct pl_cudnn_plan *plan,
                  const struct pl_cudnn_array *arrays,
                  size_t n);

void *pl_cudnn_handle(struct pl_cudnn *dnn); /* cudnnHandle_t */
struct pl_cuda_status *pl_cudnn_status(struct pl_cudnn *dnn);

#endif
