/* SPDX-License-Identifier: MIT */
#include "runtime/engine/cuda/cudnn/cudnn.h"
#include "common/base/macros.h"
#include "runtime/engine/cuda/cudnn/cudnn_private.h"
#include "runtime/engine/cuda/util/plan_cache.h"

#include <cudnn.h>

#define CONFIGS 12 /* entries of a heuristics' list that are tried */

struct pl_cudnn {
    cudnnHandle_t handle;
    struct CUstream_st *stream;
    struct pl_cuda_alloc *alloc;
    struct pl_cuda_status *status;
    struct pl_device_options options;
    void *workspace, *scratch;
    size_t workspace_bytes, scratch_bytes;
    uint64_t moves; /* of the workspace and the scratch memory */
    struct pl_plan_cache plans[PL_DNN_KINDS];
};

/* A plan's descriptors live as long as the plan. */
struct pl_cudnn_plan {
    cudnnBackendDescriptor_t desc; /* NULL: no engine */
    size_t workspace_bytes;
    struct pl_cudnn_parts graph, engines;
};

static void drop_plan(void *value)
{
    struct pl_cudnn_plan *plan = value;

    if (plan->desc)
        cudnnBackendDestroyDescriptor(plan->desc);
    pl_cudnn_drop(&plan->engines);
    pl_cudnn_drop(&plan->graph);
}

static bool config_is_fine(const struct pl_cudnn_recipe *recipe,
                           const void *key,
                           cudnnBackendDescriptor_t config)
{
    struct pl_cudnn_parts parts = {.n = 0};
    cudnnBackendDescriptor_t engine = pl_cudnn_make(&parts, CUDNN_BACKEND_ENGINE_DESCRIPTOR);
    cudnnBackendNumericalNote_t notes[CUDNN_NUMERICAL_NOTE_TYPE_COUNT];
    int64_t n = 0;
    bool fine =
        engine &&
        cudnnBackendGetAttribute(config, CUDNN_ATTR_ENGINECFG_ENGINE, CUDNN_TYPE_BACKEND_DESCRIPTOR,
                                 1, &n, &engine) == CUDNN_STATUS_SUCCESS &&
        cudnnBackendGetAttribute(engine, CUDNN_ATTR_ENGINE_NUMERICAL_NOTE,
                                 CUDNN_TYPE_NUMERICAL_NOTE, CUDNN_NUMERICAL_NOTE_TYPE_COUNT, &n,
                                 notes) == CUDNN_STATUS_SUCCESS;

    n = PL_MIN(n, (int64_t)CUDNN_NUMERICAL_NOTE_TYPE_COUNT); /* it returns the number that exists */
    for (int64_t i = 0; fine && i < n; i++)
        fine = recipe->may_take(key, (int)notes[i]);
    pl_cudnn_drop(&parts);
    return fine;
}

/* Makes a plan of this configuration, within the limit of the workspace. */
static bool try_config(struct pl_cudnn *dnn,
                       const struct pl_cudnn_recipe *recipe,
                       cudnnBackendDescriptor_t config,
                       struct pl_cudnn_plan *plan)
{
    struct pl_cudnn_parts parts = {.n = 0};
    cudnnBackendDescriptor_t desc = pl_cudnn_make(&parts, CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
    int64_t bytes = 0, n = 0;

    pl_cudnn_set(&parts, desc, CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, 1,
                 &dnn->handle);
    pl_cudnn_set_desc(&parts, desc, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, config);
    pl_cudnn_finalize(&parts, desc);
    if (parts.failed ||
        cudnnBackendGetAttribute(desc, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, CUDNN_TYPE_INT64,
                                 1, &n, &bytes) != CUDNN_STATUS_SUCCESS ||
        bytes < 0 || (uint64_t)bytes > recipe->workspace) {
        pl_cudnn_drop(&parts);
        return false;
    }
    plan->desc = desc;
    plan->workspace_bytes = (size_t)bytes;
    return true;
}

static void find_in(struct pl_cudnn *dnn,
                    const struct pl_cudnn_recipe *recipe,
                    const void *key,
                    void *graph,
                    cudnnBackendHeurMode_t mode,
                    struct pl_cudnn_plan *plan)
{
    struct pl_cudnn_parts *p = &plan->engines;
    void *heuristics = pl_cudnn_make(p, CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
    cudnnBackendDescriptor_t configs[CONFIGS];
    int64_t n = 0;

    pl_cudnn_set_desc(p, heuristics, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, graph);
    pl_cudnn_set(p, heuristics, CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, 1, &mode);
    pl_cudnn_finalize(p, heuristics);
    for (size_t i = 0; i < CONFIGS; i++)
        configs[i] = pl_cudnn_make(p, CUDNN_BACKEND_ENGINECFG_DESCRIPTOR);
    if (!p->failed && cudnnBackendGetAttribute(heuristics, CUDNN_ATTR_ENGINEHEUR_RESULTS,
                                               CUDNN_TYPE_BACKEND_DESCRIPTOR, CONFIGS, &n,
                                               configs) == CUDNN_STATUS_SUCCESS)
        for (int64_t i = 0; !plan->desc && i < PL_MIN(n, CONFIGS); i++)
            if (config_is_fine(recipe, key, configs[i]))
                (void)try_config(dnn, recipe, configs[i], plan);
    if (!plan->desc) {
        pl_cudnn_drop(p);
        p->failed = false;
    }
}

static void find_plan(struct pl_cudnn *dnn,
                      const struct pl_cudnn_recipe *recipe,
                      const void *key,
                      struct pl_cudnn_plan *plan)
{
    void *graph = recipe->graph(&plan->graph, dnn->handle, key);

    if (graph)
        find_in(dnn, recipe, key, graph, CUDNN_HEUR_MODE_A, plan);
    if (graph && !plan->desc)
        find_in(dnn, recipe, key, graph, CUDNN_HEUR_MODE_FALLBACK, plan);
    if (!plan->desc)
        pl_cudnn_drop(&plan->graph);
}

/* True if the stream is capturing: nothing can be made then, and the capture has failed. */
static bool is_captured(struct pl_cudnn *dnn)
{
    if (!pl_cuda_status_is_held(dnn->status))
        return false;
    (void)pl_cuda_fail(dnn->status, "cuDNN", "what it needs is not there yet");
    return true;
}

uint64_t pl_cudnn_moves(const struct pl_cudnn *dnn)
{
    return dnn->moves;
}

/* Allocates larger memory; the old one is freed after its queued work. */
static bool grow(struct pl_cudnn *dnn, size_t bytes, const char *what, void **at, size_t *size)
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

void *pl_cudnn_scratch(struct pl_cudnn *dnn, size_t bytes)
{
    return grow(dnn, bytes, "scratch of cuDNN's", &dnn->scratch, &dnn->scratch_bytes) ? dnn->scratch
                                                                                      : NULL;
}

struct pl_cudnn_plan *pl_cudnn_find_plan(struct pl_cudnn *dnn,
                                         enum pl_cudnn_kind kind,
                                         const struct pl_cudnn_recipe *recipe,
                                         const void *key)
{
    struct pl_cudnn_plan *plan = pl_plan_cache_find(&dnn->plans[kind], key);

    if (!plan) {
        if (is_captured(dnn))
            return NULL;
        plan = pl_plan_cache_add(&dnn->plans[kind], key);
        if (plan)
            find_plan(dnn, recipe, key, plan);
    }
    return plan && plan->desc ? plan : NULL;
}

static cudnnStatus_t execute(struct pl_cudnn *dnn,
                             const struct pl_cudnn_plan *plan,
                             const struct pl_cudnn_array *arrays,
                             size_t n)
{
    struct pl_cudnn_parts parts = {.n = 0};
    void *pack = pl_cudnn_make(&parts, CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR);
    void *pointers[PL_DNN_ARRAYS];
    int64_t ids[PL_DNN_ARRAYS];
    cudnnStatus_t status = CUDNN_STATUS_INTERNAL_ERROR;

    for (size_t i = 0; i < n; i++) {
        pointers[i] = arrays[i].at;
        ids[i] = arrays[i].id;
    }
    pl_cudnn_set(&parts, pack, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR,
                 (int64_t)n, pointers);
    pl_cudnn_set(&parts, pack, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, (int64_t)n,
                 ids);
    pl_cudnn_set(&parts, pack, CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, 1,
                 &dnn->workspace);
    pl_cudnn_finalize(&parts, pack);
    if (!parts.failed)
        status = cudnnBackendExecute(dnn->handle, plan->desc, pack);
    pl_cudnn_drop(&parts);
    return status;
}

bool pl_cudnn_run(struct pl_cudnn *dnn,
                  const struct pl_cudnn_plan *plan,
                  const struct pl_cudnn_array *arrays,
                  size_t n)
{
    cudnnStatus_t status;

    if (!grow(dnn, plan->workspace_bytes, "cuDNN's workspace", &dnn->workspace,
              &dnn->workspace_bytes))
        return false;
    status = execute(dnn, plan, arrays, n);
    if (status != CUDNN_STATUS_SUCCESS)
        pl_cuda_fail(dnn->status, "cudnnBackendExecute", cudnnGetErrorString(status));
    return true;
}

void *pl_cudnn_handle(struct pl_cudnn *dnn)
{
    return dnn->handle;
}

struct pl_cuda_status *pl_cudnn_status(struct pl_cudnn *dnn)
{
    return dnn->status;
}

struct pl_device_options pl_cudnn_options(const struct pl_cudnn *dnn)
{
    return dnn->options;
}

int pl_cudnn_create(struct CUstream_st *stream,
                    struct pl_cuda_alloc *alloc,
                    const struct pl_device_options *options,
                    struct pl_cuda_status *status,
                    struct pl_cudnn **ret,
                    struct pl_error *err)
{
    struct pl_cudnn *dnn = calloc(1, sizeof(*dnn));
    cudnnStatus_t code;

    if (!dnn)
        return pl_error_nomem(err);
    *dnn =
        (struct pl_cudnn){.stream = stream, .alloc = alloc, .status = status, .options = *options};
    pl_plan_cache_init(&dnn->plans[PL_DNN_CONV], sizeof(struct pl_conv_key),
                       sizeof(struct pl_cudnn_plan));
    pl_plan_cache_init(&dnn->plans[PL_DNN_ATTENTION], sizeof(struct pl_att_key),
                       sizeof(struct pl_cudnn_plan));
    code = cudnnCreate(&dnn->handle);
    if (code == CUDNN_STATUS_SUCCESS)
        code = cudnnSetStream(dnn->handle, stream);
    if (code != CUDNN_STATUS_SUCCESS) {
        pl_cudnn_destroy(dnn);
        return pl_error_set(err, -EIO, "cannot use cuDNN: %s", cudnnGetErrorString(code));
    }
    *ret = dnn;
    return 0;
}

void pl_cudnn_destroy(struct pl_cudnn *dnn)
{
    if (!dnn)
        return;
    for (size_t i = 0; i < PL_DNN_KINDS; i++)
        pl_plan_cache_finish(&dnn->plans[i], drop_plan);
    pl_cuda_alloc_put(dnn->alloc, dnn->workspace);
    pl_cuda_alloc_put(dnn->alloc, dnn->scratch);
    if (dnn->handle)
        cudnnDestroy(dnn->handle);
    free(dnn);
}
