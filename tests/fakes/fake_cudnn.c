/* SPDX-License-Identifier: MIT */
#include "common/base/macros.h"
#include "runtime/engine/cuda/lazy/lazy.h"
#include "tests/fakes/fake_cudart.h"
#include "tests/fakes/fake_cudnn_private.h"

#include <stdio.h>
#include <string.h>

struct fake_dnn fake_dnn;

static size_t size_of(int type)
{
    switch (type) {
    case CUDNN_TYPE_BOOLEAN:
        return sizeof(bool);
    case CUDNN_TYPE_INT64:
    case CUDNN_TYPE_DOUBLE:
    case CUDNN_TYPE_VOID_PTR:
    case CUDNN_TYPE_HANDLE:
    case CUDNN_TYPE_BACKEND_DESCRIPTOR:
        return 8;
    default:
        return 4;
    }
}

int pl_lazy_cudnn(struct pl_error *err)
{
    return fake_dnn.missing ? pl_error_set(err, -ENOENT, "no cuDNN") : 0;
}

cudnnStatus_t cudnnBackendCreateDescriptor(cudnnBackendDescriptorType_t type,
                                           cudnnBackendDescriptor_t *ret)
{
    struct desc *d = calloc(1, sizeof(*d));

    assert_non_null(d);
    d->type = (int)type;
    fake_dnn.descriptors++;
    *ret = d;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendDestroyDescriptor(cudnnBackendDescriptor_t desc)
{
    assert_non_null(desc);
    free(desc);
    fake_dnn.descriptors--;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendSetAttribute(cudnnBackendDescriptor_t desc,
                                       cudnnBackendAttributeName_t name,
                                       cudnnBackendAttributeType_t type,
                                       int64_t n,
                                       const void *values)
{
    struct desc *d = desc;
    struct attribute *a = &d->list[d->n];

    assert_false(d->final);
    assert_in_range(d->n, 0, PL_COUNT(d->list) - 1);
    assert_null(find(d, (int)name));
    d->n++;
    a->name = (int)name;
    a->type = (int)type;
    a->n = n;
    assert_in_range((size_t)n * size_of(a->type), 1, sizeof(a->bytes));
    memcpy(a->bytes, values, (size_t)n * size_of(a->type));
    return CUDNN_STATUS_SUCCESS;
}

void cudnnGetLastErrorString(char *text, size_t size)
{
    snprintf(text, size, "%s", fake_dnn.unmade ? "no NVRTC" : "");
}

cudnnStatus_t cudnnBackendFinalize(cudnnBackendDescriptor_t desc)
{
    struct desc *d = desc;

    assert_false(d->final);
    if (d->type == CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR &&
        child(d, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, 0)->engine < fake_dnn.unmade)
        return CUDNN_STATUS_NOT_SUPPORTED;
    d->final = true;
    if (d->type == CUDNN_BACKEND_TENSOR_DESCRIPTOR)
        assert_true(number(d, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, 0) > 0);
    return CUDNN_STATUS_SUCCESS;
}

/* True if the graph begins with a convolution of 16 channels. */
static bool has_squares(const struct attribute *ops)
{
    static const int inputs[] = {CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X,
                                 CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_X};
    const struct desc *op = *(struct desc *const *)ops->bytes;

    for (size_t i = 0; i < PL_COUNT(inputs); i++)
        if (find(op, inputs[i]))
            return number(child(op, inputs[i], 0), CUDNN_ATTR_TENSOR_DIMENSIONS, 1) == 16;
    return false;
}

static void give_configs(const struct desc *d, int64_t asked, int64_t *n, struct desc **to)
{
    struct desc *graph = child(d, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, 0);
    const struct attribute *ops =
        need(graph, CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR, 0);
    int mode = word(d, CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE);

    *n = fake_dnn.fallbacks && mode != CUDNN_HEUR_MODE_FALLBACK ? 0 : (int64_t)fake_dnn.engines;
    if ((fake_dnn.no_fusion && ops->n > 1) || (fake_dnn.no_squares && has_squares(ops)))
        *n = 0;
    fake_dnn.asked += asked == 0;
    for (int64_t i = 0; i < PL_MIN(*n, asked); i++) {
        to[i]->graph = graph;
        to[i]->engine = (unsigned)i;
    }
}

cudnnStatus_t cudnnBackendGetAttribute(cudnnBackendDescriptor_t const desc,
                                       cudnnBackendAttributeName_t name,
                                       cudnnBackendAttributeType_t type,
                                       int64_t asked,
                                       int64_t *n,
                                       void *to)
{
    struct desc *d = desc;

    *n = 1;
    switch (name) {
    case CUDNN_ATTR_ENGINEHEUR_RESULTS:
        give_configs(d, asked, n, to);
        break;
    case CUDNN_ATTR_ENGINECFG_ENGINE:
        (*(struct desc **)to)->engine = d->engine;
        break;
    case CUDNN_ATTR_ENGINE_GLOBAL_INDEX:
        *(int64_t *)to = (fake_dnn.first_engine ? fake_dnn.first_engine : 100) + d->engine;
        break;
    case CUDNN_ATTR_ENGINE_NUMERICAL_NOTE:
        *n = fake_dnn.note[d->engine] >= 0;
        *(int *)to = fake_dnn.note[d->engine];
        break;
    case CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE:
        fake_dnn.taken = child(d, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, 0)->engine;
        *(int64_t *)to = fake_dnn.workspace[fake_dnn.taken];
        break;
    default:
        fail_msg("attribute %d is asked for", (int)name);
    }
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendExecute(cudnnHandle_t handle,
                                  cudnnBackendDescriptor_t plan,
                                  cudnnBackendDescriptor_t variant_pack)
{
    const struct desc *config = child(plan, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, 0);
    const struct desc *pack = variant_pack;
    const struct attribute *ops =
        need(config->graph, CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR, 0);
    size_t workspace = (size_t)fake_dnn.workspace[config->engine];

    if (fake_dnn.broken || fake_dnn.fails[config->engine])
        return CUDNN_STATUS_EXECUTION_FAILED;
    assert_true(pack->final);
    assert_true(!workspace ||
                fake_cuda_owns(*(void *const *)need(pack, CUDNN_ATTR_VARIANT_PACK_WORKSPACE,
                                                    CUDNN_TYPE_VOID_PTR, 1)
                                    ->bytes,
                               workspace));
    fake_dnn.runs++;
    fake_dnn.last = config->engine;
    fake_dnn.now += fake_dnn.ns[config->engine];
    fake_cudnn_run_graph(ops, pack);
    return CUDNN_STATUS_SUCCESS;
}
