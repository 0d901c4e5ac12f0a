/* SPDX-License-Identifier: MIT */
/* Finds a plan: the engine that runs a key's graph. */
#include "common/base/macros.h"
#include "runtime/engine/cuda/cudnn/cudnn_private.h"
#include "runtime/engine/cuda/util/refused.h"

#include <cuda_runtime_api.h>
#include <cudnn.h>
#include <stdio.h>
#include <string.h>

#define CANDIDATES 8 /* the heuristics' first usable engines, which are timed */
#define ROUNDS 2     /* the faster one counts */
#define REPEATS 4    /* runs in a round */
#define HOPELESS 1.5 /* a run that takes so much longer than the best one is the last */
#define GAIN 0.97    /* the first stays unless another takes less than this of its time */
/* Bytes of memory that a candidate may want, if the first one wants less. */
#define TIMED_WORKSPACE ((size_t)16 << 20)

/* A choice that is kept. */
struct choice {
    int64_t place, engine; /* as in struct pl_cudnn_plan */
};

/* The purpose of a plan. Arrays: those it will run on; none if it cannot be timed. */
struct wanted {
    const struct pl_cudnn_recipe *recipe;
    const void *key;
    const struct pl_cudnn_array *arrays;
    size_t n_arrays;
};

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

/* Makes a plan of this configuration, with a workspace of at most `limit` bytes. */
static bool try_config(struct pl_cudnn *dnn,
                       cudnnBackendDescriptor_t config,
                       size_t limit,
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
    if (bytes < 0 || (uint64_t)bytes > limit) {
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

/* Makes plans of the heuristics' first usable engines, at most `most` of them, or of the one that
 * is kept (NULL: none is). Returns how many. */
static size_t find_in(struct pl_cudnn *dnn,
                      const struct wanted *want,
                      void *graph,
                      cudnnBackendHeurMode_t mode,
                      const struct choice *kept,
                      size_t most,
                      struct pl_cudnn_plan *plans,
                      struct search *found)
{
    _cleanup_free_ cudnnBackendDescriptor_t *configs = NULL;
    struct pl_cudnn_parts p = {.n = 0};
    size_t n = ask_heuristics(dnn, graph, mode, &p, &configs), done = 0;
    size_t limit = want->recipe->workspace;

    if (p.failed)
        memcpy(found->why, p.why, sizeof(found->why));
    found->seen += n;
    for (size_t i = 0; done < most && i < n; i++) {
        struct pl_cudnn_plan plan = {.place = i, .fallback = mode == CUDNN_HEUR_MODE_FALLBACK};

        if (kept && (int64_t)i != kept->place)
            continue;
        if (!config_is_fine(want->recipe, want->key, configs[i], &plan)) {
            found->unfit++;
        } else if ((!kept || plan.engine == kept->engine) &&
                   try_config(dnn, configs[i], limit, &plan, found)) {
            plan.config = pl_cudnn_take(&p, configs[i]);
            plans[done++] = plan;
            limit = PL_MAX(plans[0].workspace_bytes, TIMED_WORKSPACE);
        }
    }
    pl_cudnn_drop(&p);
    return done;
}

static const char *way_of(const struct pl_cudnn_recipe *recipe, const void *key)
{
    return recipe->way ? recipe->way(key) : NULL;
}

static void log_refusal(const struct pl_cudnn_recipe *recipe, const void *key, const char *why)
{
    char text[PL_DNN_TEXT];

    recipe->describe(key, text);
    pl_cuda_refused("cuDNN", text, why, way_of(recipe, key));
}

void pl_cudnn_unasked(struct pl_cudnn *dnn,
                      const struct pl_cudnn_recipe *recipe,
                      const void *key,
                      const char *why)
{
    char text[PL_DNN_TEXT];

    recipe->describe(key, text);
    pl_cuda_refused_once(&dnn->said, "cuDNN", text, why, way_of(recipe, key));
}

/* none: the text if there was nothing in the lists. */
static void explain(const struct search *found, const char *none, char text[2 * PL_DNN_TEXT])
{
    if (found->seen == 0)
        snprintf(text, 2 * PL_DNN_TEXT, "%s%s%s", none, *found->why ? ": " : "", found->why);
    else
        snprintf(
            text, 2 * PL_DNN_TEXT,
            "of its %zu engines %zu round or order sums in a way that is not allowed, %zu want "
            "too much memory, %zu could not be made%s%s",
            found->seen, found->unfit, found->large, found->failed, *found->why ? ": " : "",
            found->why);
}

/* Fallbacks are general and slow: that must not be so in silence. */
static void log_fallback(const struct wanted *want, const struct search *advised)
{
    char text[PL_DNN_TEXT], why[2 * PL_DNN_TEXT];

    want->recipe->describe(want->key, text);
    explain(advised, "it recommends no engine", why);
    pl_cuda_fell_back("cuDNN", text, why);
}

/* True if plans for the key may be run any number of times on the caller's arrays. */
static bool may_time(const struct pl_cudnn *dnn, const struct wanted *want)
{
    return dnn->tuned && want->n_arrays && want->recipe->output;
}

/* Nanoseconds of n runs; UINT64_MAX if they fail. */
static uint64_t
time_runs(struct pl_cudnn *dnn, const struct pl_cudnn_plan *plan, const struct wanted *want, int n)
{
    uint64_t start = dnn->now_ns();

    for (int i = 0; i < n; i++)
        if (!pl_cudnn_try(dnn, plan, want->arrays, want->n_arrays))
            return UINT64_MAX;
    return cudaStreamSynchronize(dnn->stream) == cudaSuccess ? dnn->now_ns() - start : UINT64_MAX;
}

/* Nanoseconds of a round; UINT64_MAX if the plan does not work, or is far from `best`. */
static uint64_t time_plan(struct pl_cudnn *dnn,
                          const struct pl_cudnn_plan *plan,
                          const struct wanted *want,
                          uint64_t best)
{
    uint64_t least = UINT64_MAX;

    if (time_runs(dnn, plan, want, 1) == UINT64_MAX) /* it is loaded then */
        return UINT64_MAX;
    if (best != UINT64_MAX &&
        (double)time_runs(dnn, plan, want, 1) * REPEATS > HOPELESS * (double)best)
        return UINT64_MAX;
    for (int i = 0; i < ROUNDS; i++) {
        uint64_t ns = time_runs(dnn, plan, want, REPEATS);

        least = PL_MIN(least, ns);
    }
    return least;
}

static size_t fastest(struct pl_cudnn *dnn,
                      const struct pl_cudnn_plan *plans,
                      size_t n,
                      const struct wanted *want)
{
    uint64_t least = UINT64_MAX, first = UINT64_MAX;
    size_t best = 0;

    for (size_t i = 0; i < n; i++) {
        uint64_t ns = time_plan(dnn, &plans[i], want, least);

        first = i == 0 ? ns : first;
        if (ns < least && (i == 0 || (double)ns < GAIN * (double)first)) {
            least = ns;
            best = i;
        }
    }
    return best;
}

/* The number of the plan that is fastest. What adds to an array is timed on memory in its place;
 * if there is none, it is the first plan. */
static size_t
choose(struct pl_cudnn *dnn, const struct wanted *want, const struct pl_cudnn_plan *plans, size_t n)
{
    struct pl_cudnn_array arrays[PL_DNN_ARRAYS];
    struct wanted apart = *want;
    size_t bytes = 0, best;
    void *other = NULL;
    int64_t id = want->recipe->output(want->key, &bytes);

    memcpy(arrays, want->arrays, want->n_arrays * sizeof(*arrays));
    if (bytes && pl_cuda_alloc_get(dnn->alloc, bytes, dnn->stream, "results of timed plans", &other,
                                   NULL) < 0)
        return 0;
    for (size_t i = 0; other && i < want->n_arrays; i++)
        if (arrays[i].id == id)
            arrays[i].at = other;
    apart.arrays = arrays;
    best = fastest(dnn, plans, n, &apart);
    pl_cuda_alloc_put(dnn->alloc, other);
    return best;
}

/* Keeps the choice of plan number `best`, instead of one that is of no use (or NULL). Returns it,
 * or the one that another rank chose first. */
static size_t keep(struct pl_cudnn *dnn,
                   const struct wanted *want,
                   const struct pl_cudnn_plan *plans,
                   size_t n,
                   size_t best,
                   const struct choice *instead)
{
    struct choice choice = {(int64_t)plans[best].place, plans[best].engine};
    const struct choice *first;

    pl_tuned_add(dnn->tuned, want->key, &choice, instead);
    first = pl_tuned_find(dnn->tuned, want->key);
    for (size_t i = 0; first && i < n; i++)
        if ((int64_t)plans[i].place == first->place && plans[i].engine == first->engine)
            return i;
    return best;
}

static void find_plan(struct pl_cudnn *dnn, const struct wanted *want, struct pl_cudnn_plan *ret)
{
    const struct pl_cudnn_recipe *recipe = want->recipe;
    const char *known = recipe->refuse ? recipe->refuse(want->key) : NULL;
    const struct choice *kept = may_time(dnn, want) ? pl_tuned_find(dnn->tuned, want->key) : NULL;
    struct pl_cudnn_plan plans[CANDIDATES];
    struct pl_cudnn_parts parts = {.n = 0};
    void *graph = known ? NULL : recipe->graph(&parts, dnn->handle, want->key);
    struct search found = {.seen = 0};
    bool timed = may_time(dnn, want);
    char why[2 * PL_DNN_TEXT];
    size_t n = 0, best = 0;

    if (graph && kept)
        n = find_in(dnn, want, graph, CUDNN_HEUR_MODE_A, kept, 1, plans, &found);
    timed &= n == 0;
    if (graph && n == 0) {
        found = (struct search){.seen = 0};
        n = find_in(dnn, want, graph, CUDNN_HEUR_MODE_A, NULL, timed ? CANDIDATES : 1, plans,
                    &found);
    }
    if (graph && n == 0) {
        struct search advised = found;

        timed = false;
        n = find_in(dnn, want, graph, CUDNN_HEUR_MODE_FALLBACK, NULL, 1, plans, &found);
        if (n)
            log_fallback(want, &advised);
    }
    if (n == 0) {
        explain(&found, "it has no engine", why);
        log_refusal(recipe, want->key, known ? known : graph ? why : parts.why);
        pl_cudnn_drop(&parts);
        return;
    }
    if (timed && n > 1)
        best = choose(dnn, want, plans, n);
    if (timed) /* also what could not be tried: ranks and the next run are to have the same bits */
        best = keep(dnn, want, plans, n, best, kept);
    for (size_t i = 0; i < n; i++)
        if (i != best)
            pl_cudnn_drop_plan(&plans[i]);
    *ret = plans[best];
    ret->graph = parts;
}

struct pl_cudnn_plan *pl_cudnn_find_plan(struct pl_cudnn *dnn,
                                         enum pl_cudnn_kind kind,
                                         const struct pl_cudnn_recipe *recipe,
                                         const void *key,
                                         const struct pl_cudnn_array *arrays,
                                         size_t n)
{
    struct pl_cudnn_plan *plan = pl_plan_cache_find(&dnn->plans[kind], key);
    const struct wanted want = {recipe, key, arrays, n};

    if (!plan) {
        if (dnn->status && pl_cudnn_is_captured(dnn))
            return NULL;
        plan = pl_plan_cache_add(&dnn->plans[kind], key);
        if (plan)
            find_plan(dnn, &want, plan);
    }
    return plan && plan->desc ? plan : NULL;
}
