/* SPDX-License-Identifier: MIT */
#include "runtime/engine/cuda/cublaslt/cublaslt_vary.h"
#include "common/base/macros.h"

/* The order in which blocks take parts of D; blocks that share what they read; parts of k, whose
 * sums are added in a fixed order. */
enum what { ORDER, CLUSTER, PARTS };

static const struct variant {
    const char *name;
    enum what what;
    uint32_t value;
} variants[] = {
    {"another order", ORDER, 0},
    {"clusters of 1 x 1", CLUSTER, CUBLASLT_CLUSTER_SHAPE_1x1x1},
    {"clusters of 2 x 1", CLUSTER, CUBLASLT_CLUSTER_SHAPE_2x1x1},
    {"clusters of 1 x 2", CLUSTER, CUBLASLT_CLUSTER_SHAPE_1x2x1},
    {"clusters of 2 x 2", CLUSTER, CUBLASLT_CLUSTER_SHAPE_2x2x1},
    {"2 parts of k", PARTS, 2},
    {"3 parts of k", PARTS, 3},
    {"4 parts of k", PARTS, 4},
    {"6 parts of k", PARTS, 6},
};

_Static_assert(PL_COUNT(variants) == PL_CUBLASLT_VARIANTS, "as the header says");

static bool get(const cublasLtMatmulAlgo_t *algo,
                cublasLtMatmulAlgoConfigAttributes_t which,
                void *to,
                size_t n)
{
    size_t written = 0;

    return cublasLtMatmulAlgoConfigGetAttribute(algo, which, to, n, &written) ==
               CUBLAS_STATUS_SUCCESS &&
           written == n;
}

static bool set(cublasLtMatmulAlgo_t *algo,
                cublasLtMatmulAlgoConfigAttributes_t which,
                const void *from,
                size_t n)
{
    return cublasLtMatmulAlgoConfigSetAttribute(algo, which, from, n) == CUBLAS_STATUS_SUCCESS;
}

static bool vary_order(cublasLtMatmulAlgo_t *algo)
{
    uint32_t swizzling = 0;

    if (!get(algo, CUBLASLT_ALGO_CONFIG_CTA_SWIZZLING, &swizzling, sizeof(swizzling)))
        return false;
    swizzling = !swizzling;
    return set(algo, CUBLASLT_ALGO_CONFIG_CTA_SWIZZLING, &swizzling, sizeof(swizzling));
}

static bool vary_cluster(cublasLtMatmulAlgo_t *algo, uint16_t shape)
{
    uint16_t was = 0;

    return get(algo, CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID, &was, sizeof(was)) && was != shape &&
           set(algo, CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID, &shape, sizeof(shape));
}

/* Sums of a part have the type of the sums. More parts are worth it where D has few blocks. */
static bool vary_parts(const struct pl_cublaslt_key *key, cublasLtMatmulAlgo_t *algo, int32_t parts)
{
    const uint32_t scheme = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
    int32_t was = 0;

    return key->k > key->m && key->k > key->n &&
           get(algo, CUBLASLT_ALGO_CONFIG_SPLITK_NUM, &was, sizeof(was)) && was != parts &&
           set(algo, CUBLASLT_ALGO_CONFIG_SPLITK_NUM, &parts, sizeof(parts)) &&
           set(algo, CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME, &scheme, sizeof(scheme));
}

bool pl_cublaslt_vary(const struct pl_cublaslt_key *key,
                      unsigned which,
                      cublasLtMatmulAlgo_t *algo,
                      const char **ret_name)
{
    const struct variant *v = &variants[which];

    *ret_name = v->name;
    if (v->what == ORDER)
        return vary_order(algo);
    if (v->what == CLUSTER)
        return vary_cluster(algo, (uint16_t)v->value);
    return vary_parts(key, algo, (int32_t)v->value);
}
