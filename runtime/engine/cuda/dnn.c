/* SPDX-License-Identifier: MIT */
#include "runtime/engine/cuda/dnn.h"
#include "runtime/engine/cuda/dnn_private.h"
#include "runtime/engine/cuda/plan_cache.h"

#include <cudnn.h>

#define CONFIGS 12 /* of a heuristics' list that are tried */

struct pl_dnn {
    cudnnHandle_t handle;
    struct CUstream_st *stream;
    struct pl_cuda_alloc *alloc;
    struct pl_cuda_status *status;
    bool tf32;
    void *workspace, *scratch;
    size_t workspace_bytes, scratch_bytes;
    uint64_t moves; /* of these two */
    struct pl_plan_cache plans;
};

/* What a plan was made of lives as long as it does. */
struct plan {
    cudnnBackendDescriptor_t desc; /* NULL: there is no engine */
    size_t workspace_bytes;
    struct pl_dnn_parts graph, engines;
};

static void drop_plan(void *value)
{
    struct plan *plan = value;

    if (plan->desc)
        cudnnBackendDestroyDescriptor(plan->desc);
    pl_dnn_drop(&plan->engines);
    pl_dnn_drop(&plan->graph);
}

/* Whether an engine that notes this about its numbers may be taken. */
static bool may_take(const struct pl_conv_key *key, cudnnBackendNumericalNote_t note)
{
    bool full = key->real == PL_REAL_F64 || (key->real == PL_REAL_F32 && !key->tf32);

    switch (note) {
    case CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC:
        return false;
    case CUDNN_NUMERICAL_NOTE_TENSOR_CORE:
        return key->real != PL_REAL_F32 || key->tf32;
    case CUDNN_NUMERICAL_NOTE_DOWN_CONVERT_INPUTS:
        return !full;
    case CUDNN_NUMERICAL_NOTE_REDUCED_PRECISION_REDUCTION:
        return false;
    default:
        return true;
    }
}

static bool config_is_fine(const struct pl_conv_key *key, cudnnBackendDescriptor_t config)
{
    struct pl_dnn_parts parts = {.n = 0};
    cudnnBackendDescriptor_t engine = pl_dnn_make(&parts, CUDNN_BACKEND_ENGINE_DESCRIPTOR);
    cudnnBackendNumericalNote_t notes[CUDNN_NUMERICAL_NOTE_TYPE_COUNT];
    int64_t n = 0;
    bool fine =
        engine &&
        cudnnBackendGetAttribute(config, CUDNN_ATTR_ENGINECFG_ENGINE, CUDNN_TYPE_BACKEND_DESCRIPTOR,
                                 1, &n, &engine) == CUDNN_STATUS_SUCCESS &&
        cudnnBackendGetAttribute(engine, CUDNN_ATTR_ENGINE_NUMERICAL_NOTE,
                                 CUDNN_TYPE_NUMERICAL_NOTE, CUDNN_NUMERICAL_NOTE_TYPE_COUNT, &n,
                                 notes) == CUDNN_STATUS_SUCCESS;

    for (int64_t i = 0; fine && i < n; i++)
        fine = may_take(key, notes[i]);
    pl_dnn_drop(&parts);
    return fine;
}

/* A plan of this configuration, within the workspace there may be. */
static bool try_config(struct pl_dnn *dnn, cudnnBackendDescriptor_t config, struct plan *plan)
{
    struct pl_dnn_parts parts = {.n = 0};
    cudnnBackendDescriptor_t desc = pl_dnn_make(&parts, CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
    int64_t bytes = 0, n = 0;

    pl_dnn_set(&parts, desc, CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, 1, &dnn->handle);
    pl_dnn_set_desc(&parts, desc, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, config);
    pl_dnn_finalize(&parts, desc);
    if (parts.failed ||
        cudnnBackendGetAttribute(desc, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, CUDNN_TYPE_INT64,
                                 1, &n, &bytes) != CUDNN_STATUS_SUCCESS ||
        bytes < 0 || (uint64_t)bytes > PL_DNN_WORKSPACE) {
        pl_dnn_drop(&parts);
        return false;
    }
    plan->desc = desc;
    plan->workspace_bytes = (size_t)bytes;
    return true;
}

static void find_in(struct pl_dnn *dnn,
                    const struct pl_conv_key *key,
                    void *graph,
                    cudnnBackendHeurMode_t mode,
                    struct plan *plan)
{
    struct pl_dnn_parts *p = &plan->engines;
    void *heuristics = pl_dnn_make(p, CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
    cudnnBackendDescriptor_t configs[CONFIGS];
    int64_t n = 0;

    pl_dnn_set_desc(p, heuristics, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, graph);
    pl_dnn_set(p, heuristics, CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, 1, &mode);
    pl_dnn_finalize(p, heuristics);
    for (size_t i = 0; i < CONFIGS; i++)
        configs[i] = pl_dnn_make(p, CUDNN_BACKEND_ENGINECFG_DESCRIPTOR);
    if (!p->failed && cudnnBackendGetAttribute(heuristics, CUDNN_ATTR_ENGINEHEUR_RESULTS,
                                               CUDNN_TYPE_BACKEND_DESCRIPTOR, CONFIGS, &n,
                                               configs) == CUDNN_STATUS_SUCCESS)
        for (int64_t i = 0; !plan->desc && i < n; i++)
            if (config_is_fine(key, configs[i]))
                (void)try_config(dnn, configs[i], plan);
    if (!plan->desc) {
        pl_dnn_drop(p);
        p->failed = false;
    }
}

static void find_plan(struct pl_dnn *dnn, const struct pl_conv_key *key, struct plan *plan)
{
    void *graph = pl_dnn_conv_graph(&plan->graph, dnn->handle, key);

    if (graph)
        find_in(dnn, key, graph, CUDNN_HEUR_MODE_A, plan);
    if (graph && !plan->desc)
        find_in(dnn, key, graph, CUDNN_HEUR_MODE_FALLBACK, plan);
    if (!plan->desc)
        pl_dnn_drop(&plan->graph);
}

/* Whether the stream is captured: then nothing can be made for it, and the capture has failed. */
static bool is_captured(struct pl_dnn *dnn)
{
    if (!pl_cuda_status_is_held(dnn->status))
        return false;
    (void)pl_cuda_fail(dnn->status, "cuDNN", "what it needs is not there yet");
    return true;
}

uint64_t pl_dnn_moves(const struct pl_dnn *dnn)
{
    return dnn->moves;
}

/* Larger memory, the older one going back behind what uses it. */
static bool grow(struct pl_dnn *dnn, size_t bytes, const char *what, void **at, size_t *size)
{
    void *more = NULL;

    if (bytes <= *size)
        return true;
    if (is_captured(dnn))
        return false;
    if (pl_cuda_alloc_get(dnn->alloc, bytes, dnn->stream, what, &more, NULL) < 0)
        return false;
    pl_cuda_alloc_put(dnn->alloc, *at);
    *at = more;
    *size = bytes;
    dnn->moves++;
    return true;
}

void *pl_dnn_scratch(struct pl_dnn *dnn, size_t bytes)
{
    return grow(dnn, bytes, "gradients of convolutions", &dnn->scratch, &dnn->scratch_bytes)
               ? dnn->scratch
               : NULL;
}

static cudnnStatus_t
execute(struct pl_dnn *dnn, const struct plan *plan, const struct pl_conv_data *data)
{
    struct pl_dnn_parts parts = {.n = 0};
    void *pack = pl_dnn_make(&parts, CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR);
    void *pointers[PL_CONV_B];
    int64_t ids[PL_CONV_B], n = 0;
    cudnnStatus_t status = CUDNN_STATUS_INTERNAL_ERROR;

    for (int64_t id = PL_CONV_X; id <= PL_CONV_B; id++) {
        if (data->of[id]) {
            pointers[n] = data->of[id];
            ids[n++] = id;
        }
    }
    pl_dnn_set(&parts, pack, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, n,
               pointers);
    pl_dnn_set(&parts, pack, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, n, ids);
    pl_dnn_set(&parts, pack, CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, 1,
               &dnn->workspace);
    pl_dnn_finalize(&parts, pack);
    if (!parts.failed)
        status = cudnnBackendExecute(dnn->handle, plan->desc, pack);
    pl_dnn_drop(&parts);
    return status;
}

bool pl_dnn_conv(struct pl_dnn *dnn, const struct pl_conv_key *key, const struct pl_conv_data *data)
{
    struct plan *plan = pl_plan_cache_find(&dnn->plans, key);
    cudnnStatus_t status;

    if (!plan) {
        if (is_captured(dnn))
            return false;
        plan = pl_plan_cache_add(&dnn->plans, key);
        if (!plan)
            return false;
        find_plan(dnn, key, plan);
    }
    if (!plan->desc || !grow(dnn, plan->workspace_bytes, "cuDNN's workspace", &dnn->workspace,
                             &dnn->workspace_bytes))
        return false;
    status = execute(dnn, plan, data);
    if (status != CUDNN_STATUS_SUCCESS)
        pl_cuda_fail(dnn->status, "cudnnBackendExecute", cudnnGetErrorString(status));
    return true;
}

static cudnnStatus_t
describe(cudnnTensorDescriptor_t *ret, const struct pl_conv_key *key, enum pl_conv_tensor which)
{
    cudnnStatus_t r = cudnnCreateTensorDescriptor(ret);
    int64_t d[4], strides[4];

    pl_conv_shape(key, which, d, strides);
    return r != CUDNN_STATUS_SUCCESS
               ? r
               : cudnnSetTensor4dDescriptor(*ret, CUDNN_TENSOR_NCHW,
                                            (cudnnDataType_t)pl_dnn_type(key), (int)d[0], (int)d[1],
                                            (int)d[2], (int)d[3]);
}

void pl_dnn_add_bias(struct pl_dnn *dnn, const struct pl_conv_key *key, const void *b, void *y)
{
    cudnnTensorDescriptor_t at_b = NULL, at_y = NULL;
    cudnnActivationDescriptor_t relu = NULL;
    float one = 1, none = 0;
    double one64 = 1, none64 = 0;
    bool f64 = key->real == PL_REAL_F64;
    const void *keep = f64 ? (void *)&one64 : (void *)&one;
    const void *write = f64 ? (void *)&none64 : (void *)&none;
    cudnnStatus_t r = describe(&at_y, key, PL_CONV_Y);

    if (r == CUDNN_STATUS_SUCCESS && key->bias) {
        r = describe(&at_b, key, PL_CONV_B);
        if (r == CUDNN_STATUS_SUCCESS)
            r = cudnnAddTensor(dnn->handle, keep, at_b, b, keep, at_y, y);
    }
    if (r == CUDNN_STATUS_SUCCESS && key->relu) {
        r = cudnnCreateActivationDescriptor(&relu);
        if (r == CUDNN_STATUS_SUCCESS)
            r = cudnnSetActivationDescriptor(relu, CUDNN_ACTIVATION_RELU, CUDNN_PROPAGATE_NAN, 0);
        if (r == CUDNN_STATUS_SUCCESS)
            r = cudnnActivationForward(dnn->handle, relu, keep, at_y, y, write, at_y, y);
    }
    if (r != CUDNN_STATUS_SUCCESS)
        pl_cuda_fail(dnn->status, "adding a convolution's bias", cudnnGetErrorString(r));
    if (relu)
        cudnnDestroyActivationDescriptor(relu);
    if (at_b)
        cudnnDestroyTensorDescriptor(at_b);
    if (at_y)
        cudnnDestroyTensorDescriptor(at_y);
}

bool pl_dnn_tf32(const struct pl_dnn *dnn)
{
    return dnn->tf32;
}

int pl_dnn_create(struct CUstream_st *stream,
                  struct pl_cuda_alloc *alloc,
                  bool tf32,
                  struct pl_cuda_status *status,
                  struct pl_dnn **ret,
                  struct pl_error *err)
{
    struct pl_dnn *dnn = calloc(1, sizeof(*dnn));
    cudnnStatus_t code;

    if (!dnn)
        return pl_error_set(err, -ENOMEM, "out of memory");
    *dnn = (struct pl_dnn){.stream = stream, .alloc = alloc, .status = status, .tf32 = tf32};
    pl_plan_cache_init(&dnn->plans, sizeof(struct pl_conv_key), sizeof(struct plan));
    code = cudnnCreate(&dnn->handle);
    if (code == CUDNN_STATUS_SUCCESS)
        code = cudnnSetStream(dnn->handle, stream);
    if (code != CUDNN_STATUS_SUCCESS) {
        pl_dnn_destroy(dnn);
        return pl_error_set(err, -EIO, "cannot use cuDNN: %s", cudnnGetErrorString(code));
    }
    *ret = dnn;
    return 0;
}

void pl_dnn_destroy(struct pl_dnn *dnn)
{
    if (!dnn)
        return;
    pl_plan_cache_finish(&dnn->plans, drop_plan);
    pl_cuda_alloc_put(dnn->alloc, dnn->workspace);
    pl_cuda_alloc_put(dnn->alloc, dnn->scratch);
    if (dnn->handle)
        cudnnDestroy(dnn->handle);
    free(dnn);
}
