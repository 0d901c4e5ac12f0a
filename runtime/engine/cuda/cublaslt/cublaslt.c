/* SPDX-License-Identifier: MIT */
#include "runtime/engine/cuda/cublaslt/cublaslt.h"
#include "common/base/log.h"
#include "runtime/engine/cuda/cublaslt/cublaslt_call.h"
#include "runtime/engine/cuda/cublaslt/cublaslt_vary.h"
#include "runtime/engine/cuda/lazy/lazy.h"
#include "runtime/engine/cuda/util/plan_cache.h"
#include "runtime/engine/cuda/util/refused.h"

#include <cuda_runtime_api.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#define CANDIDATES                                                                                 \
    8             /* the heuristics' answers, which are timed; cublasLt 13 names no more of them */
#define REPEATS 4 /* of each, after one that is not timed */
#define GAIN 0.98 /* the first answer stays unless another one takes less than this of its time */
#define VARY_NS 50000 /* of a product, at least, for which variants of its algorithm are timed */

struct pl_cublaslt {
    cublasLtHandle_t handle;
    void *workspace;
    size_t workspace_bytes;
    bool tf32;
    struct pl_cuda_status *status;
    struct pl_plan_cache plans;
    struct pl_tuned *tuned; /* NULL: nothing is timed */
    uint64_t (*now_ns)(void);
    struct pl_cuda_said said; /* what it was not asked for */
};

struct plan {
    bool usable;
    bool kept; /* the choice is an earlier process' */
    cublasLtMatmulAlgo_t algo;
};

static bool prefer_set(cublasLtMatmulPreferenceOpaque_t *prefer,
                       cublasLtMatmulPreferenceAttributes_t which,
                       const void *p,
                       size_t n)
{
    return cublasLtMatmulPreferenceSetAttribute(prefer, which, p, n) == CUBLAS_STATUS_SUCCESS;
}

static bool make_preference(const struct pl_cublaslt *lt,
                            const struct pl_cublaslt_key *key,
                            cublasLtMatmulPreferenceOpaque_t *ret)
{
    uint64_t workspace = lt->workspace_bytes;
    uint32_t schemes = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
    uint32_t a = 1u << key->align_a, b = 1u << key->align_b, d = 1u << key->align_d;

    return cublasLtMatmulPreferenceInit(ret) == CUBLAS_STATUS_SUCCESS &&
           prefer_set(ret, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace,
                      sizeof(workspace)) &&
           prefer_set(ret, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &schemes, sizeof(schemes)) &&
           prefer_set(ret, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, &a, sizeof(a)) &&
           prefer_set(ret, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, &b, sizeof(b)) &&
           prefer_set(ret, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, &d, sizeof(d)) &&
           prefer_set(ret, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, &d, sizeof(d));
}

/* The product in words. */
static void describe(const struct pl_cublaslt_key *key, char *to, size_t n)
{
    static const char *const epilogues[] = {
        [PL_CUBLASLT_PLAIN] = "",
        [PL_CUBLASLT_BIAS] = " + bias",
        [PL_CUBLASLT_RELU] = " + relu",
        [PL_CUBLASLT_RELU_BIAS] = " + bias + relu",
        [PL_CUBLASLT_GELU_AUX] = " + gelu",
        [PL_CUBLASLT_GELU_AUX_BIAS] = " + bias + gelu",
        [PL_CUBLASLT_DGELU] = " + gelu's slope",
        [PL_CUBLASLT_DGELU_BGRAD] = " + gelu's slope, and the bias' gradient",
        [PL_CUBLASLT_BGRAD] = " and the bias' gradient",
    };

    snprintf(to, n, "%s product%s%s, %s[%llu, %llu] %s[%llu, %llu], batch %llu",
             pl_cuda_real_name((enum pl_real)key->real), key->wide ? " to f32" : "",
             epilogues[key->epilogue], key->trans_b ? "T " : "", (unsigned long long)key->n,
             (unsigned long long)key->k, key->trans_a ? "T " : "", (unsigned long long)key->k,
             (unsigned long long)key->m, (unsigned long long)key->batch);
}

static void log_refusal(const struct pl_cublaslt_key *key, const char *why)
{
    char text[256];

    describe(key, text, sizeof(text));
    pl_cuda_refused("cublasLt", text, why,
                    key->epilogue != PL_CUBLASLT_PLAIN ? "in one pass" : NULL);
}

void pl_cublaslt_unasked(struct pl_cublaslt *lt,
                         enum pl_real real,
                         const char *op,
                         size_t m,
                         size_t n,
                         size_t k,
                         const char *why)
{
    char text[160];

    snprintf(text, sizeof(text), "%s %s, [%zu, %zu] [%zu, %zu]", pl_cuda_real_name(real), op, m, k,
             k, n);
    pl_cuda_refused_once(&lt->said, "cublasLt", text, why, NULL);
}

static cublasStatus_t multiply(struct pl_cublaslt *lt,
                               const struct pl_cublaslt_key *key,
                               const struct pl_cublaslt_data *data,
                               struct pl_cublaslt_call *c,
                               const cublasLtMatmulAlgo_t *algo,
                               struct CUstream_st *stream)
{
    float alpha = (float)data->scale, beta = key->add;
    double alpha64 = data->scale, beta64 = key->add;
    bool f64 = key->real == PL_REAL_F64;

    return cublasLtMatmul(lt->handle, &c->desc, f64 ? (void *)&alpha64 : (void *)&alpha, data->a,
                          &c->a, data->b, &c->b, f64 ? (void *)&beta64 : (void *)&beta, data->d,
                          &c->d, data->d, &c->d, algo, lt->workspace, lt->workspace_bytes, stream);
}

/* A product that only writes may be done any number of times; while a graph is captured nothing
 * runs. */
static bool may_time(const struct pl_cublaslt *lt,
                     const struct pl_cublaslt_key *key,
                     struct CUstream_st *stream)
{
    enum cudaStreamCaptureStatus capture = cudaStreamCaptureStatusActive;

    return lt->tuned && !key->add && cudaStreamIsCapturing(stream, &capture) == cudaSuccess &&
           capture == cudaStreamCaptureStatusNone;
}

/* Nanoseconds of REPEATS products; UINT64_MAX if the algorithm does not work. */
static uint64_t time_one(struct pl_cublaslt *lt,
                         const struct pl_cublaslt_key *key,
                         const struct pl_cublaslt_data *data,
                         struct pl_cublaslt_call *c,
                         const cublasLtMatmulAlgo_t *algo,
                         struct CUstream_st *stream)
{
    uint64_t start = 0;

    for (int i = 0; i <= REPEATS; i++) {
        if (multiply(lt, key, data, c, algo, stream) != CUBLAS_STATUS_SUCCESS)
            return UINT64_MAX;
        if ((i == 0 || i == REPEATS) && cudaStreamSynchronize(stream) != cudaSuccess)
            return UINT64_MAX;
        start = i == 0 ? lt->now_ns() : start;
    }
    return lt->now_ns() - start;
}

/* The fastest of n answers, and the time of its REPEATS products. */
static int choose(struct pl_cublaslt *lt,
                  const struct pl_cublaslt_key *key,
                  const struct pl_cublaslt_data *data,
                  struct pl_cublaslt_call *c,
                  const cublasLtMatmulHeuristicResult_t *answers,
                  int n,
                  struct CUstream_st *stream,
                  uint64_t *ret_ns)
{
    uint64_t least = UINT64_MAX, ns;
    double limit = INFINITY;
    int best = 0;

    for (int i = 0; i < n; i++) {
        ns = answers[i].state == CUBLAS_STATUS_SUCCESS
                 ? time_one(lt, key, data, c, &answers[i].algo, stream)
                 : UINT64_MAX;
        if (i == 0 && ns != UINT64_MAX)
            limit = GAIN * (double)ns;
        if (ns < least && (i == 0 || (double)ns < limit)) {
            least = ns;
            best = i;
        }
    }
    *ret_ns = least;
    return best;
}

/* Replaces an algorithm, whose REPEATS products take `ns`, by its fastest variant, if that gains as
 * much as an answer must. */
static void vary(struct pl_cublaslt *lt,
                 const struct pl_cublaslt_key *key,
                 const struct pl_cublaslt_data *data,
                 struct pl_cublaslt_call *c,
                 struct CUstream_st *stream,
                 uint64_t ns,
                 cublasLtMatmulAlgo_t *algo)
{
    const cublasLtMatmulAlgo_t first = *algo;
    const char *name, *best = NULL;
    uint64_t least = ns;
    char text[256];

    for (unsigned i = 0; i < PL_CUBLASLT_VARIANTS; i++) {
        cublasLtMatmulHeuristicResult_t result = {.state = CUBLAS_STATUS_NOT_SUPPORTED};
        cublasLtMatmulAlgo_t varied = first;
        uint64_t took;

        if (!pl_cublaslt_vary(key, i, &varied, &name) ||
            cublasLtMatmulAlgoCheck(lt->handle, &c->desc, &c->a, &c->b, &c->d, &c->d, &varied,
                                    &result) != CUBLAS_STATUS_SUCCESS ||
            result.workspaceSize > lt->workspace_bytes)
            continue;
        took = time_one(lt, key, data, c, &varied, stream);
        if (took < least && (double)took < GAIN * (double)ns) {
            least = took;
            best = name;
            *algo = varied;
        }
    }
    describe(key, text, sizeof(text));
    pl_log_debug("cuda", "%s: the fastest answer takes %.1f us, %s %.1f", text,
                 (double)ns / 1000 / REPEATS, best ? best : "and no variant less than",
                 (double)least / 1000 / REPEATS);
}

/* The choice that was made for the key: its own, else for a key that adds the one of the product
 * that writes; NULL if there is none yet. */
static const cublasLtMatmulAlgo_t *choice_of(struct pl_cublaslt *lt, struct pl_cublaslt_key key)
{
    const cublasLtMatmulAlgo_t *own = lt->tuned ? pl_tuned_find(lt->tuned, &key) : NULL;

    if (own || !lt->tuned || !key.add)
        return own;
    key.add = 0;
    return pl_tuned_find(lt->tuned, &key);
}

/* refused: NULL, or the choice that the library does not do. */
static void find_algorithm(struct pl_cublaslt *lt,
                           const struct pl_cublaslt_key *key,
                           const struct pl_cublaslt_data *data,
                           struct pl_cublaslt_call *c,
                           struct CUstream_st *stream,
                           const cublasLtMatmulAlgo_t *refused,
                           struct plan *plan)
{
    const cublasLtMatmulAlgo_t *kept = refused ? NULL : choice_of(lt, *key);
    bool timed = !kept && may_time(lt, key, stream);
    cublasLtMatmulPreferenceOpaque_t prefer;
    cublasLtMatmulHeuristicResult_t answers[CANDIDATES] = {0};
    int found = 0, best = 0;
    uint64_t ns = UINT64_MAX;
    cublasStatus_t status = CUBLAS_STATUS_INVALID_VALUE;

    if (kept) {
        *plan = (struct plan){.usable = true, .kept = true, .algo = *kept};
        return;
    }
    if (make_preference(lt, key, &prefer))
        status = cublasLtMatmulAlgoGetHeuristic(lt->handle, &c->desc, &c->a, &c->b, &c->d, &c->d,
                                                &prefer, timed ? CANDIDATES : 1, answers, &found);
    if (status == CUBLAS_STATUS_SUCCESS && timed && found > 1)
        best = choose(lt, key, data, c, answers, found, stream, &ns);
    if (ns >= (uint64_t)REPEATS * VARY_NS && ns != UINT64_MAX)
        vary(lt, key, data, c, stream, ns, &answers[best].algo);
    if (status == CUBLAS_STATUS_SUCCESS)
        status = found > 0 ? answers[best].state : CUBLAS_STATUS_NOT_SUPPORTED;
    if (status != CUBLAS_STATUS_SUCCESS) {
        log_refusal(key, cublasLtGetStatusString(status));
        return;
    }
    *plan = (struct plan){.usable = true, .algo = answers[best].algo};
    /* A product that adds is not timed. Its choice is kept all the same: when the one that writes
     * is timed later, this one must not change in the next run. */
    if (!timed && !(lt->tuned && key->add))
        return;
    pl_tuned_add(lt->tuned, key, &plan->algo, refused);
    kept = pl_tuned_find(lt->tuned, key);
    if (kept && memcmp(kept, &plan->algo, sizeof(*kept)) != 0) /* another rank was first */
        *plan = (struct plan){.usable = true, .kept = true, .algo = *kept};
}

bool pl_cublaslt_run(struct pl_cublaslt *lt,
                     const struct pl_cublaslt_key *key,
                     const struct pl_cublaslt_data *data,
                     struct CUstream_st *stream)
{
    struct plan *plan = pl_plan_cache_find(&lt->plans, key);
    cublasStatus_t status;
    bool anew = false;
    struct pl_cublaslt_call c;

    if (plan && !plan->usable)
        return false;
    if (!plan) {
        plan = pl_plan_cache_add(&lt->plans, key);
        anew = true;
    }
    if (!plan)
        return false;
    if (!pl_cublaslt_make_call(key, data, &c)) {
        plan->usable = false;
        log_refusal(key, cublasLtGetStatusString(c.status));
        return false;
    }
    if (anew)
        find_algorithm(lt, key, data, &c, stream, NULL, plan);
    if (!plan->usable)
        return false;
    status = multiply(lt, key, data, &c, &plan->algo, stream);
    if (status != CUBLAS_STATUS_SUCCESS && plan->kept) { /* it was another's, or is damaged */
        cublasLtMatmulAlgo_t refused = plan->algo;

        *plan = (struct plan){0};
        find_algorithm(lt, key, data, &c, stream, &refused, plan);
        if (!plan->usable)
            return false;
        status = multiply(lt, key, data, &c, &plan->algo, stream);
    }
    if (status == CUBLAS_STATUS_NOT_SUPPORTED) { /* the heuristics were wrong */
        plan->usable = false;
        log_refusal(key, cublasLtGetStatusString(status));
        return false;
    }
    if (status != CUBLAS_STATUS_SUCCESS)
        pl_cuda_fail(lt->status, "cublasLtMatmul", cublasLtGetStatusString(status));
    return true;
}

/* Nanoseconds of REPEATS runs of an op; UINT64_MAX if it cannot be done so. */
static uint64_t time_way(struct pl_cublaslt *lt,
                         struct CUstream_st *stream,
                         bool (*run)(const void *ctx, bool fused),
                         const void *ctx,
                         bool fused)
{
    uint64_t start = 0;

    for (int i = 0; i <= REPEATS; i++) { /* the first one also finds the algorithm */
        if (!run(ctx, fused))
            return UINT64_MAX;
        if ((i == 0 || i == REPEATS) && cudaStreamSynchronize(stream) != cudaSuccess)
            return UINT64_MAX;
        start = i == 0 ? lt->now_ns() : start;
    }
    return lt->now_ns() - start;
}

/* Keeps a way, unless another rank was first. True if it is the epilogue. */
static bool
keep_way(struct pl_cublaslt *lt, const struct pl_cublaslt_key *of, cublasLtMatmulAlgo_t separate)
{
    const cublasLtMatmulAlgo_t *kept;

    pl_tuned_add(lt->tuned, of, &separate, NULL);
    kept = pl_tuned_find(lt->tuned, of);
    return (kept ? kept : &separate)->data[0] == 0;
}

bool pl_cublaslt_fuses(struct pl_cublaslt *lt,
                       const struct pl_cublaslt_key *key,
                       struct CUstream_st *stream,
                       bool (*run)(const void *ctx, bool fused),
                       const void *ctx)
{
    /* With its sums, gelu's slope takes three times as long on an H100 (cublasLt 13.1). */
    bool usual = key->epilogue != PL_CUBLASLT_DGELU_BGRAD;
    struct pl_cublaslt_key of = *key;
    cublasLtMatmulAlgo_t separate = {{0}};
    const cublasLtMatmulAlgo_t *kept;
    uint64_t fused_ns = 0, ns = 0;

    separate.data[0] = !usual;
    if (!lt->tuned)
        return usual;
    of.ways = 1;
    kept = choice_of(lt, of);
    if (kept)
        return kept->data[0] == 0;
    if (!may_time(lt, key, stream)) /* as in find_algorithm() */
        return key->add ? keep_way(lt, &of, separate) : usual;
    /* The second time counts: what comes first on a cold card has a higher clock. */
    for (int i = 0; i < 2; i++) {
        fused_ns = time_way(lt, stream, run, ctx, true);
        ns = fused_ns == UINT64_MAX ? UINT64_MAX : time_way(lt, stream, run, ctx, false);
        if (ns == UINT64_MAX)
            return true;
    }
    separate.data[0] = (double)ns < GAIN * (double)fused_ns;
    return keep_way(lt, &of, separate);
}

bool pl_cublaslt_tf32(const struct pl_cublaslt *lt)
{
    return lt->tf32;
}

size_t pl_cublaslt_version(void)
{
    return pl_lazy_cublaslt(NULL) < 0 ? 0 : cublasLtGetVersion();
}

int pl_cublaslt_create(void *workspace,
                       size_t workspace_bytes,
                       bool tf32,
                       const struct pl_timing *timing,
                       struct pl_cuda_status *status,
                       struct pl_cublaslt **ret,
                       struct pl_error *err)
{
    struct pl_cublaslt *lt;
    cublasStatus_t code;
    int r = pl_lazy_cublaslt(err);

    if (r < 0)
        return r;
    lt = calloc(1, sizeof(*lt));
    if (!lt)
        return pl_error_nomem(err);
    code = cublasLtCreate(&lt->handle);
    if (code != CUBLAS_STATUS_SUCCESS) {
        free(lt);
        return pl_error_set(err, -EIO, "cublasLtCreate failed: %s", cublasLtGetStatusString(code));
    }
    r = timing ? pl_tuned_open("products", timing->what, sizeof(struct pl_cublaslt_key),
                               sizeof(cublasLtMatmulAlgo_t), &lt->tuned, err)
               : 0;
    if (r < 0) {
        cublasLtDestroy(lt->handle);
        free(lt);
        return r;
    }
    lt->now_ns = timing ? timing->now_ns : NULL;
    lt->workspace = workspace;
    lt->workspace_bytes = workspace_bytes;
    lt->tf32 = tf32;
    lt->status = status;
    pl_plan_cache_init(&lt->plans, sizeof(struct pl_cublaslt_key), sizeof(struct plan));
    *ret = lt;
    return 0;
}

void pl_cublaslt_destroy(struct pl_cublaslt *lt)
{
    if (!lt)
        return;
    cublasLtDestroy(lt->handle);
    pl_tuned_close(lt->tuned);
    pl_plan_cache_finish(&lt->plans, NULL);
    free(lt);
}
