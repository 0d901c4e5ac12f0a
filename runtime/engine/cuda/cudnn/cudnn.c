/* SPDX-License-Identifier: MIT */
#include "runtime/engine/cuda/cudnn/cudnn.h"
#include "common/base/macros.h"
#include "runtime/engine/cuda/cudnn/cudnn_private.h"
#include "runtime/engine/cuda/lazy/lazy.h"
#include "runtime/engine/cuda/util/plan_cache.h"
#include "runtime/engine/cuda/util/refused.h"

#include <cudnn.h>
#include <stdio.h>
#include <string.h>

struct pl_cudnn {
    cudnnHandle_t handle;            /* NULL: of a described device */
    struct pl_cudnn_parts described; /* its description */
    struct CUstream_st *stream;
    struct pl_cuda_alloc *alloc;
    struct pl_cuda_status *status;
    struct pl_device_options options;
    void *workspace, *scratch;
    size_t workspace_bytes, scratch_bytes;
    uint64_t moves; /* of the workspace and the scratch memory */
    struct pl_plan_cache plans[PL_DNN_KINDS];
};

static void drop_plan(void *value)
{
    struct pl_cudnn_plan *plan = value;

    if (plan->desc)
        cudnnBackendDestroyDescriptor(plan->desc);
    if (plan->config)
        cudnnBackendDestroyDescriptor(plan->config);
    pl_cudnn_drop(&plan->graph);
}

/* Counts why the engines of a heuristics' list were not used, for the text of a refusal. */
struct search {
    size_t seen, unfit, failed, large;
    char why[PL_DNN_TEXT]; /* of the last that failed */
};

/* Reads the engine's number and notes; false if one of these must not be. */
static bool config_is_fine(const struct pl_cudnn_recipe *recipe,
                           const void *key,
                           cudnnBackendDescriptor_t config,
                           struct pl_cudnn_plan *ret)
{
    struct pl_cudnn_parts parts = {.n = 0};
    cudnnBackendDescriptor_t engine = pl_cudnn_make(&parts, CUDNN_BACKEND_ENGINE_DESCRIPTOR);
    cudnnBackendNumericalNote_t notes[CUDNN_NUMERICAL_NOTE_TYPE_COUNT];
    int64_t n = 0, one = 0;
    bool fine =
        engine &&
        cudnnBackendGetAttribute(config, CUDNN_ATTR_ENGINECFG_ENGINE, CUDNN_TYPE_BACKEND_DESCRIPTOR,
                                 1, &n, &engine) == CUDNN_STATUS_SUCCESS &&
        cudnnBackendGetAttribute(engine, CUDNN_ATTR_ENGINE_NUMERICAL_NOTE,
                                 CUDNN_TYPE_NUMERICAL_NOTE, CUDNN_NUMERICAL_NOTE_TYPE_COUNT, &n,
                                 notes) == CUDNN_STATUS_SUCCESS &&
        cudnnBackendGetAttribute(engine, CUDNN_ATTR_ENGINE_GLOBAL_INDEX, CUDNN_TYPE_INT64, 1, &one,
                                 &ret->engine) == CUDNN_STATUS_SUCCESS;

    ret->notes = 0;
    n = PL_MIN(n, (int64_t)CUDNN_NUMERICAL_NOTE_TYPE_COUNT); /* it returns the number that exists */
    for (int64_t i = 0; fine && i < n; i++) {
        fine = recipe->may_take(key, (int)notes[i]);
        ret->notes |= UINT64_C(1) << notes[i];
    }
    pl_cudnn_drop(&parts);
    return fine;
}

/* Makes a plan of this configuration, within the limit of the workspace. */
static bool try_config(struct pl_cudnn *dnn,
                       const struct pl_cudnn_recipe *recipe,
                       cudnnBackendDescriptor_t config,
                       struct pl_cudnn_plan *plan,
                       struct search *found)
{
    struct pl_cudnn_parts parts = {.n = 0};
    cudnnBackendDescriptor_t desc = pl_cudnn_make(&parts, CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
    int64_t bytes = 0, n = 0;

    if (dnn->handle)
        pl_cudnn_set(&parts, desc, CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, 1,
                     &dnn->handle);
    else
        pl_cudnn_set_desc(&parts, desc, CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP,
                          dnn->described.list[0]);
    pl_cudnn_set_desc(&parts, desc, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, config);
    pl_cudnn_finalize(&parts, desc);
    if (parts.failed ||
        cudnnBackendGetAttribute(desc, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, CUDNN_TYPE_INT64,
                                 1, &n, &bytes) != CUDNN_STATUS_SUCCESS) {
        found->failed++;
        memcpy(found->why, parts.why, sizeof(found->why));
        pl_cudnn_drop(&parts);
        return false;
    }
    if (bytes < 0 || (uint64_t)bytes > recipe->workspace) {
        found->large++;
        pl_cudnn_drop(&parts);
        return false;
    }
    plan->desc = pl_cudnn_take(&parts, desc);
    plan->workspace_bytes = (size_t)bytes;
    pl_cudnn_drop(&parts);
    return true;
}

/* The whole list of the heuristics for the graph, the best first, into ret_configs of p. The list
 * is long where many of its engines are not allowed: the first that computes f32 without tensor
 * cores is at place 20 of 32 or so. */
static size_t ask_heuristics(struct pl_cudnn *dnn,
                             void *graph,
                             cudnnBackendHeurMode_t mode,
                             struct pl_cudnn_parts *p,
                             cudnnBackendDescriptor_t **ret_configs)
{
    void *heuristics = pl_cudnn_make(p, CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
    cudnnBackendDescriptor_t *configs;
    int64_t n = 0, given = 0;

    pl_cudnn_set_desc(p, heuristics, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, graph);
    pl_cudnn_set(p, heuristics, CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, 1, &mode);
    if (!dnn->handle)
        pl_cudnn_set_desc(p, heuristics, CUDNN_ATTR_ENGINEHEUR_DEVICEPROP, dnn->described.list[0]);
    pl_cudnn_finalize(p, heuristics);
    if (p->failed ||
        cudnnBackendGetAttribute(heuristics, CUDNN_ATTR_ENGINEHEUR_RESULTS,
                                 CUDNN_TYPE_BACKEND_DESCRIPTOR, 0, &n,
                                 NULL) != CUDNN_STATUS_SUCCESS ||
        n <= 0)
        return 0;
    configs = calloc((size_t)n, sizeof(*configs));
    for (int64_t i = 0; configs && i < n; i++)
        configs[i] = pl_cudnn_make(p, CUDNN_BACKEND_ENGINECFG_DESCRIPTOR);
    if (!configs || p->failed ||
        cudnnBackendGetAttribute(heuristics, CUDNN_ATTR_ENGINEHEUR_RESULTS,
                                 CUDNN_TYPE_BACKEND_DESCRIPTOR, n, &given,
                                 configs) != CUDNN_STATUS_SUCCESS) {
        free(configs);
        return 0;
    }
    *ret_configs = configs;
    return (size_t)PL_MIN(n, given);
}

static void find_in(struct pl_cudnn *dnn,
                    const struct pl_cudnn_recipe *recipe,
                    const void *key,
                    void *graph,
                    cudnnBackendHeurMode_t mode,
                    struct pl_cudnn_plan *plan,
                    struct search *found)
{
    _cleanup_free_ cudnnBackendDescriptor_t *configs = NULL;
    struct pl_cudnn_parts p = {.n = 0};
    size_t n = ask_heuristics(dnn, graph, mode, &p, &configs);

    if (p.failed)
        memcpy(found->why, p.why, sizeof(found->why));
    found->seen += n;
    for (size_t i = 0; !plan->desc && i < n; i++) {
        if (!config_is_fine(recipe, key, configs[i], plan)) {
            found->unfit++;
        } else if (try_config(dnn, recipe, configs[i], plan, found)) {
            plan->config = pl_cudnn_take(&p, configs[i]);
            plan->place = i;
            plan->fallback = mode == CUDNN_HEUR_MODE_FALLBACK;
        }
    }
    pl_cudnn_drop(&p);
}

static void log_refusal(const struct pl_cudnn_recipe *recipe, const void *key, const char *why)
{
    char text[PL_DNN_TEXT];

    recipe->describe(key, text);
    pl_cuda_refused("cuDNN", text, why, recipe->has_another_way && recipe->has_another_way(key));
}

static void explain(const struct search *found, char text[2 * PL_DNN_TEXT])
{
    if (found->seen == 0)
        snprintf(text, 2 * PL_DNN_TEXT, "it has no engine%s%s", *found->why ? ": " : "",
                 found->why);
    else
        snprintf(
            text, 2 * PL_DNN_TEXT,
            "of its %zu engines %zu round or order sums in a way that is not allowed, %zu want "
            "too much memory, %zu could not be made%s%s",
            found->seen, found->unfit, found->large, found->failed, *found->why ? ": " : "",
            found->why);
}

static void find_plan(struct pl_cudnn *dnn,
                      const struct pl_cudnn_recipe *recipe,
                      const void *key,
                      struct pl_cudnn_plan *plan)
{
    const char *known = recipe->refuse ? recipe->refuse(key) : NULL;
    void *graph = known ? NULL : recipe->graph(&plan->graph, dnn->handle, key);
    struct search found = {.seen = 0};
    char why[2 * PL_DNN_TEXT];

    if (graph)
        find_in(dnn, recipe, key, graph, CUDNN_HEUR_MODE_A, plan, &found);
    if (graph && !plan->desc)
        find_in(dnn, recipe, key, graph, CUDNN_HEUR_MODE_FALLBACK, plan, &found);
    if (plan->desc)
        return;
    explain(&found, why);
    log_refusal(recipe, key, known ? known : graph ? why : plan->graph.why);
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
        if (dnn->status && is_captured(dnn))
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

size_t pl_cudnn_version(void)
{
    return pl_lazy_cudnn(NULL) < 0 ? 0 : cudnnGetVersion();
}

struct pl_device_options pl_cudnn_options(const struct pl_cudnn *dnn)
{
    return dnn->options;
}

static struct pl_cudnn *make(void)
{
    struct pl_cudnn *dnn = calloc(1, sizeof(*dnn));

    if (!dnn)
        return NULL;
    pl_plan_cache_init(&dnn->plans[PL_DNN_CONV], sizeof(struct pl_conv_key),
                       sizeof(struct pl_cudnn_plan));
    pl_plan_cache_init(&dnn->plans[PL_DNN_ATTENTION], sizeof(struct pl_att_key),
                       sizeof(struct pl_cudnn_plan));
    return dnn;
}

int pl_cudnn_create(struct CUstream_st *stream,
                    struct pl_cuda_alloc *alloc,
                    const struct pl_device_options *options,
                    struct pl_cuda_status *status,
                    struct pl_cudnn **ret,
                    struct pl_error *err)
{
    struct pl_cudnn *dnn;
    cudnnStatus_t code;
    int r = pl_lazy_cudnn(err);

    if (r < 0)
        return r;
    dnn = make();
    if (!dnn)
        return pl_error_nomem(err);
    dnn->stream = stream;
    dnn->alloc = alloc;
    dnn->status = status;
    dnn->options = *options;
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

int pl_cudnn_create_described(const char *json, struct pl_cudnn **ret, struct pl_error *err)
{
    struct pl_cudnn *dnn;
    void *desc;
    int r = pl_lazy_cudnn(err);

    if (r < 0)
        return r;
    dnn = make();
    if (!dnn)
        return pl_error_nomem(err);
    desc = pl_cudnn_make(&dnn->described, CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR);
    pl_cudnn_set(&dnn->described, desc, CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION, CUDNN_TYPE_CHAR,
                 (int64_t)strlen(json) + 1, json);
    pl_cudnn_finalize(&dnn->described, desc);
    if (dnn->described.failed) {
        pl_error_set(err, -EIO, "%s", dnn->described.why);
        pl_cudnn_destroy(dnn);
        return -EIO;
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
    pl_cudnn_drop(&dnn->described);
    if (dnn->alloc) {
        pl_cuda_alloc_put(dnn->alloc, dnn->workspace);
        pl_cuda_alloc_put(dnn->alloc, dnn->scratch);
    }
    if (dnn->handle)
        cudnnDestroy(dnn->handle);
    free(dnn);
}
