/* SPDX-License-Identifier: MIT */
#include "runtime/engine/cuda/cudnn/cudnn_private.h"

#include <cudnn.h>

void *pl_cudnn_make(struct pl_cudnn_parts *parts, int type)
{
    cudnnBackendDescriptor_t desc = NULL;

    if (parts->failed || parts->n == PL_DNN_PARTS ||
        cudnnBackendCreateDescriptor((cudnnBackendDescriptorType_t)type, &desc) !=
            CUDNN_STATUS_SUCCESS) {
        parts->failed = true;
        return NULL;
    }
    return parts->list[parts->n++] = desc;
}

void pl_cudnn_set(struct pl_cudnn_parts *parts,
                  void *desc,
                  int attribute,
                  int type,
                  int64_t n,
                  const void *values)
{
    if (!parts->failed)
        parts->failed = cudnnBackendSetAttribute(desc, (cudnnBackendAttributeName_t)attribute,
                                                 (cudnnBackendAttributeType_t)type, n,
                                                 values) != CUDNN_STATUS_SUCCESS;
}

void pl_cudnn_set_desc(struct pl_cudnn_parts *parts, void *desc, int attribute, void *value)
{
    pl_cudnn_set(parts, desc, attribute, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &value);
}

void pl_cudnn_finalize(struct pl_cudnn_parts *parts, void *desc)
{
    if (!parts->failed)
        parts->failed = cudnnBackendFinalize(desc) != CUDNN_STATUS_SUCCESS;
}

void pl_cudnn_drop(struct pl_cudnn_parts *parts)
{
    while (parts->n)
        cudnnBackendDestroyDescriptor(parts->list[--parts->n]);
}

void *pl_cudnn_graph(struct pl_cudnn_parts *parts, void *handle, int64_t n, void **ops)
{
    void *graph = pl_cudnn_make(parts, CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);

    pl_cudnn_set(parts, graph, CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, 1, &handle);
    pl_cudnn_set(parts, graph, CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR, n,
                 ops);
    pl_cudnn_finalize(parts, graph);
    return parts->failed ? NULL : graph;
}
