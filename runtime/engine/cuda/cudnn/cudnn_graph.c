/* SPDX-License-Identifier: MIT */
#include "runtime/engine/cuda/cudnn/cudnn_private.h"

#include <cudnn.h>
#include <stdio.h>
#include <stdlib.h>

/* Records cuDNN's words about a call that failed. */
static void check(struct pl_cudnn_parts *parts, const char *call, cudnnStatus_t status)
{
    char more[160] = "";

    if (status == CUDNN_STATUS_SUCCESS)
        return;
    cudnnGetLastErrorString(more, sizeof(more));
    snprintf(parts->why, sizeof(parts->why), "%s: %s%s%s", call, cudnnGetErrorString(status),
             *more ? ": " : "", more);
    parts->failed = true;
}

static bool grow(struct pl_cudnn_parts *parts)
{
    size_t cap = parts->cap ? 2 * parts->cap : 16;
    void **list;

    if (parts->n < parts->cap)
        return true;
    list = reallocarray(parts->list, cap, sizeof(*list));
    if (!list) {
        snprintf(parts->why, sizeof(parts->why), "out of memory");
        parts->failed = true;
        return false;
    }
    parts->list = list;
    parts->cap = cap;
    return true;
}

void *pl_cudnn_make(struct pl_cudnn_parts *parts, int type)
{
    cudnnBackendDescriptor_t desc = NULL;

    if (parts->failed || !grow(parts))
        return NULL;
    check(parts, "cudnnBackendCreateDescriptor",
          cudnnBackendCreateDescriptor((cudnnBackendDescriptorType_t)type, &desc));
    if (parts->failed)
        return NULL;
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
        check(parts, "cudnnBackendSetAttribute",
              cudnnBackendSetAttribute(desc, (cudnnBackendAttributeName_t)attribute,
                                       (cudnnBackendAttributeType_t)type, n, values));
}

void pl_cudnn_set_desc(struct pl_cudnn_parts *parts, void *desc, int attribute, void *value)
{
    pl_cudnn_set(parts, desc, attribute, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &value);
}

void pl_cudnn_finalize(struct pl_cudnn_parts *parts, void *desc)
{
    if (!parts->failed)
        check(parts, "cudnnBackendFinalize", cudnnBackendFinalize(desc));
}

void pl_cudnn_drop(struct pl_cudnn_parts *parts)
{
    while (parts->n)
        cudnnBackendDestroyDescriptor(parts->list[--parts->n]);
    free(parts->list);
    *parts = (struct pl_cudnn_parts){.n = 0};
}

void *pl_cudnn_take(struct pl_cudnn_parts *parts, void *desc)
{
    for (size_t i = 0; i < parts->n; i++)
        if (parts->list[i] == desc) {
            parts->list[i] = parts->list[--parts->n];
            return desc;
        }
    return NULL;
}

void *pl_cudnn_graph(struct pl_cudnn_parts *parts, void *handle, int64_t n, void **ops)
{
    void *graph = pl_cudnn_make(parts, CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);

    if (handle)
        pl_cudnn_set(parts, graph, CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, 1, &handle);
    pl_cudnn_set(parts, graph, CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR, n,
                 ops);
    pl_cudnn_finalize(parts, graph);
    return parts->failed ? NULL : graph;
}

void pl_cudnn_drop_plan(void *value)
{
    struct pl_cudnn_plan *plan = value;

    if (plan->desc)
        cudnnBackendDestroyDescriptor(plan->desc);
    if (plan->config)
        cudnnBackendDestroyDescriptor(plan->config);
    pl_cudnn_drop(&plan->graph);
}
