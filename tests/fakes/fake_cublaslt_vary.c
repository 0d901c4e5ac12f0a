/* SPDX-License-Identifier: MIT */
/* Configuration of the fake's algorithms. */
#include "tests/fakes/fake_cublaslt.h"

#include <cublasLt.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

/* A place of the algorithm's, and its size. */
static void *
place_of(const void *algo, cublasLtMatmulAlgoConfigAttributes_t which, size_t *ret_size)
{
    struct fake_lt_variant *variant = fake_lt_variant_of((void *)(uintptr_t)algo);

    switch (which) {
    case CUBLASLT_ALGO_CONFIG_SPLITK_NUM:
        *ret_size = sizeof(variant->parts);
        return &variant->parts;
    case CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME:
        *ret_size = sizeof(variant->scheme);
        return &variant->scheme;
    case CUBLASLT_ALGO_CONFIG_CTA_SWIZZLING:
        *ret_size = sizeof(variant->swizzling);
        return &variant->swizzling;
    case CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID:
        *ret_size = sizeof(variant->cluster);
        return &variant->cluster;
    default:
        fail_msg("algorithm's attribute %d", (int)which);
        return NULL;
    }
}

cublasStatus_t cublasLtMatmulAlgoConfigGetAttribute(const cublasLtMatmulAlgo_t *algo,
                                                    cublasLtMatmulAlgoConfigAttributes_t which,
                                                    void *to,
                                                    size_t size,
                                                    size_t *written)
{
    size_t n = 0;
    const void *from = place_of(algo, which, &n);

    assert_int_equal(size, n);
    memcpy(to, from, n);
    *written = n;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoConfigSetAttribute(cublasLtMatmulAlgo_t *algo,
                                                    cublasLtMatmulAlgoConfigAttributes_t which,
                                                    const void *from,
                                                    size_t size)
{
    size_t n = 0;
    void *to = place_of(algo, which, &n);

    assert_int_equal(size, n);
    memcpy(to, from, n);
    return CUBLAS_STATUS_SUCCESS;
}
