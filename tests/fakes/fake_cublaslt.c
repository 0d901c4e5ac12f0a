/* SPDX-License-Identifier: MIT */
#include "tests/fakes/fake_cublaslt.h"
#include "common/base/macros.h"
#include "kernels/half.h"
#include "runtime/engine/cuda/lazy/lazy.h"

#include <cublasLt.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

struct layout {
    cudaDataType_t type;
    uint64_t rows, columns;
    int64_t ld, step;
    int32_t batch;
};

struct desc {
    cublasComputeType_t compute;
    cudaDataType_t scale;
    cublasOperation_t trans_a, trans_b;
    cublasLtEpilogue_t epilogue;
    void *bias, *aux;
    int64_t ld_aux;
};

struct prefer {
    uint64_t workspace;
    uint32_t schemes, a, b, c, d;
};

/* An answer of the heuristics, which the product looks at. */
struct algo {
    struct prefer prefer;
    unsigned magic, number;
    struct fake_lt_variant variant;
};

#define MAGIC 0x616c676fu

_Static_assert(sizeof(struct algo) <= sizeof(cublasLtMatmulAlgo_t), "fits");
_Static_assert(sizeof(struct layout) <= sizeof(cublasLtMatrixLayoutOpaque_t), "fits");
_Static_assert(sizeof(struct desc) <= sizeof(cublasLtMatmulDescOpaque_t), "fits");
_Static_assert(sizeof(struct prefer) <= sizeof(cublasLtMatmulPreferenceOpaque_t), "fits");

struct fake_lt fake_lt;

cublasStatus_t cublasLtCreate(cublasLtHandle_t *handle)
{
    static int one;

    fake_lt.handles++;
    *handle = (cublasLtHandle_t)&one;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle)
{
    assert_non_null(handle);
    fake_lt.handles--;
    return CUBLAS_STATUS_SUCCESS;
}

int pl_lazy_cublaslt(struct pl_error *err)
{
    return fake_lt.missing ? pl_error_set(err, -ENOENT, "no cuBLAS") : 0;
}

size_t cublasLtGetVersion(void)
{
    return CUBLAS_VERSION;
}

const char *cublasLtGetStatusString(cublasStatus_t status)
{
    return status == CUBLAS_STATUS_EXECUTION_FAILED ? "the GPU program failed to execute"
           : status == CUBLAS_STATUS_NOT_SUPPORTED  ? "the functionality is not supported"
                                                    : "other";
}

cublasStatus_t cublasLtMatrixLayoutInit_internal(cublasLtMatrixLayout_t layout,
                                                 size_t size,
                                                 cudaDataType_t type,
                                                 uint64_t rows,
                                                 uint64_t columns,
                                                 int64_t ld)
{
    struct layout l = {.type = type, .rows = rows, .columns = columns, .ld = ld, .batch = 1};

    assert_int_equal(size, sizeof(*layout));
    assert_true(ld >= 0 && (uint64_t)ld >= rows && rows && columns);
    memcpy(layout, &l, sizeof(l));
    return CUBLAS_STATUS_SUCCESS;
}

#define TAKE(member)                                                                               \
    do {                                                                                           \
        assert_int_equal(size, sizeof(member));                                                    \
        memcpy(&(member), from, size);                                                             \
    } while (0)

cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t layout,
                                                cublasLtMatrixLayoutAttribute_t which,
                                                const void *from,
                                                size_t size)
{
    struct layout *l = (struct layout *)layout;

    if (which == CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT)
        TAKE(l->batch);
    else if (which == CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET)
        TAKE(l->step);
    else
        fail_msg("layout attribute %d", (int)which);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescInit_internal(cublasLtMatmulDesc_t desc,
                                               size_t size,
                                               cublasComputeType_t compute,
                                               cudaDataType_t scale)
{
    struct desc d = {.compute = compute,
                     .scale = scale,
                     .trans_a = CUBLAS_OP_N,
                     .trans_b = CUBLAS_OP_N,
                     .epilogue = CUBLASLT_EPILOGUE_DEFAULT};

    assert_int_equal(size, sizeof(*desc));
    memcpy(desc, &d, sizeof(d));
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t desc,
                                              cublasLtMatmulDescAttributes_t which,
                                              const void *from,
                                              size_t size)
{
    struct desc *d = (struct desc *)desc;

    if (fake_lt.no_descriptors)
        return CUBLAS_STATUS_INVALID_VALUE;
    switch (which) {
    case CUBLASLT_MATMUL_DESC_TRANSA:
        TAKE(d->trans_a);
        break;
    case CUBLASLT_MATMUL_DESC_TRANSB:
        TAKE(d->trans_b);
        break;
    case CUBLASLT_MATMUL_DESC_EPILOGUE:
        TAKE(d->epilogue);
        break;
    case CUBLASLT_MATMUL_DESC_BIAS_POINTER:
        TAKE(d->bias);
        break;
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER:
        TAKE(d->aux);
        break;
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD:
        TAKE(d->ld_aux);
        break;
    default:
        fail_msg("desc attribute %d", (int)which);
    }
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceInit_internal(cublasLtMatmulPreference_t prefer, size_t size)
{
    struct prefer p = {
        .schemes = CUBLASLT_REDUCTION_SCHEME_MASK, .a = 256, .b = 256, .c = 256, .d = 256};

    assert_int_equal(size, sizeof(*prefer));
    memcpy(prefer, &p, sizeof(p));
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t prefer,
                                                    cublasLtMatmulPreferenceAttributes_t which,
                                                    const void *from,
                                                    size_t size)
{
    struct prefer *p = (struct prefer *)prefer;

    if (which == CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES)
        TAKE(p->workspace);
    else if (which == CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK)
        TAKE(p->schemes);
    else if (which == CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES)
        TAKE(p->a);
    else if (which == CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES)
        TAKE(p->b);
    else if (which == CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES)
        TAKE(p->c);
    else if (which == CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES)
        TAKE(p->d);
    else
        fail_msg("preference %d", (int)which);
    return CUBLAS_STATUS_SUCCESS;
}

static bool has_gelu(const struct desc *d)
{
    return d->epilogue == CUBLASLT_EPILOGUE_GELU_AUX ||
           d->epilogue == CUBLASLT_EPILOGUE_GELU_AUX_BIAS;
}

static bool has_bias(const struct desc *d)
{
    return d->epilogue == CUBLASLT_EPILOGUE_BIAS || d->epilogue == CUBLASLT_EPILOGUE_RELU_BIAS ||
           d->epilogue == CUBLASLT_EPILOGUE_GELU_AUX_BIAS;
}

static bool has_slope(const struct desc *d)
{
    return d->epilogue == CUBLASLT_EPILOGUE_DGELU || d->epilogue == CUBLASLT_EPILOGUE_DGELU_BGRAD;
}

/* The rules of cublasLtMatmul()'s page and of the attributes'. */
static void
check(const struct desc *d, const struct layout *a, const struct layout *b, const struct layout *c)
{
    uint64_t k = d->trans_a == CUBLAS_OP_T ? a->rows : a->columns;

    assert_int_equal(d->trans_a == CUBLAS_OP_T ? a->columns : a->rows, c->rows);
    assert_int_equal(d->trans_b == CUBLAS_OP_T ? b->rows : b->columns, c->columns);
    assert_int_equal(d->trans_b == CUBLAS_OP_T ? b->columns : b->rows, k);
    assert_true(a->batch == c->batch && b->batch == c->batch && c->batch > 0);
    assert_true(a->type == b->type);
    assert_true(a->type == c->type ||
                (c->type == CUDA_R_32F && (a->type == CUDA_R_16BF || a->type == CUDA_R_16F)));
    assert_int_equal(d->scale, c->type == CUDA_R_64F ? CUDA_R_64F : CUDA_R_32F);
    if (c->type == CUDA_R_64F)
        assert_int_equal(d->compute, CUBLAS_COMPUTE_64F);
    else
        assert_true(d->compute == CUBLAS_COMPUTE_32F ||
                    (d->compute == CUBLAS_COMPUTE_32F_FAST_TF32 && c->type == CUDA_R_32F));
    assert_int_equal(d->bias != NULL, has_bias(d) || d->epilogue == CUBLASLT_EPILOGUE_BGRADB ||
                                          d->epilogue == CUBLASLT_EPILOGUE_DGELU_BGRAD);
    assert_int_equal(d->aux != NULL, has_gelu(d) || has_slope(d));
    assert_int_equal((uintptr_t)d->bias % 16, 0);
    assert_int_equal((uintptr_t)d->aux % 16, 0);
    if (d->aux)
        assert_true(d->ld_aux % 8 == 0 && (uint64_t)d->ld_aux >= c->rows);
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle,
                                              cublasLtMatmulDesc_t desc,
                                              cublasLtMatrixLayout_t a,
                                              cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c,
                                              cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t preference,
                                              int asked,
                                              cublasLtMatmulHeuristicResult_t *results,
                                              int *found)
{
    const struct desc *what = (struct desc *)desc;

    fake_lt.heuristics++;
    assert_int_equal(((struct prefer *)preference)->schemes,
                     CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE);
    check(what, (struct layout *)a, (struct layout *)b, (struct layout *)d);
    *found = 0;
    if (fake_lt.no_algorithm ||
        (fake_lt.no_epilogue && what->epilogue != CUBLASLT_EPILOGUE_DEFAULT) ||
        (fake_lt.no_wide_bgrad && what->epilogue == CUBLASLT_EPILOGUE_BGRADB &&
         ((struct layout *)d)->type != ((struct layout *)a)->type))
        return CUBLAS_STATUS_NOT_SUPPORTED;
    assert_true(asked >= 1);
    fake_lt.asked = (unsigned)asked;
    *found = fake_lt.answers ? PL_MIN(asked, (int)fake_lt.answers) : 1;
    for (int i = 0; i < *found; i++) {
        struct algo algo = {.magic = MAGIC, .number = (unsigned)i, .variant = {.parts = 1}};

        memcpy(&algo.prefer, preference, sizeof(algo.prefer));
        results[i] = (cublasLtMatmulHeuristicResult_t){.state = CUBLAS_STATUS_SUCCESS};
        memcpy(&results[i].algo, &algo, sizeof(algo));
    }
    return CUBLAS_STATUS_SUCCESS;
}

struct fake_lt_variant *fake_lt_variant_of(void *algo)
{
    assert_int_equal(((struct algo *)algo)->magic, MAGIC);
    return &((struct algo *)algo)->variant;
}

cublasStatus_t cublasLtMatmulAlgoCheck(cublasLtHandle_t handle,
                                       cublasLtMatmulDesc_t desc,
                                       cublasLtMatrixLayout_t a,
                                       cublasLtMatrixLayout_t b,
                                       cublasLtMatrixLayout_t c,
                                       cublasLtMatrixLayout_t d,
                                       const cublasLtMatmulAlgo_t *algo,
                                       cublasLtMatmulHeuristicResult_t *result)
{
    const struct fake_lt_variant *v = &((const struct algo *)algo)->variant;

    fake_lt.checked++;
    check((struct desc *)desc, (struct layout *)a, (struct layout *)b, (struct layout *)d);
    if (fake_lt.no_variants)
        return CUBLAS_STATUS_NOT_SUPPORTED;
    if (v->parts > 1)
        assert_int_equal(v->scheme, CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE);
    *result = (cublasLtMatmulHeuristicResult_t){
        .workspaceSize = v->parts > 1 ? fake_lt.parts_bytes : 0, .state = CUBLAS_STATUS_SUCCESS};
    return CUBLAS_STATUS_SUCCESS;
}

/* Nanoseconds of a product by a variant; `ns`: those by the heuristics' algorithm. */
static unsigned varied(const struct fake_lt_variant *v, unsigned ns)
{
    const unsigned percent[] = {v->swizzling ? fake_lt.swizzled : 0, fake_lt.clusters[v->cluster],
                                fake_lt.parts[v->parts]};

    for (size_t i = 0; i < PL_COUNT(percent); i++)
        ns = percent[i] ? ns / 100 * percent[i] : ns;
    return ns;
}

static double load(cudaDataType_t type, const void *p, uint64_t i)
{
    switch (type) {
    case CUDA_R_64F:
        return ((const double *)p)[i];
    case CUDA_R_16BF:
        return pl_f32_of_bf16(((const uint16_t *)p)[i]);
    case CUDA_R_16F:
        return pl_f32_of_f16(((const uint16_t *)p)[i]);
    default:
        return ((const float *)p)[i];
    }
}

static void store(cudaDataType_t type, void *p, uint64_t i, double x)
{
    switch (type) {
    case CUDA_R_64F:
        ((double *)p)[i] = x;
        break;
    case CUDA_R_16BF:
        ((uint16_t *)p)[i] = pl_bf16_of_f32((float)x);
        break;
    case CUDA_R_16F:
        ((uint16_t *)p)[i] = pl_f16_of_f32((float)x);
        break;
    default:
        ((float *)p)[i] = (float)x;
    }
}

static double
at(const struct layout *l, cublasOperation_t turn, const void *p, uint64_t r, uint64_t c)
{
    return load(l->type, p,
                turn == CUBLAS_OP_T ? c + r * (uint64_t)l->ld : r + c * (uint64_t)l->ld);
}

static double finish(const struct desc *d, cudaDataType_t type, double x, uint64_t r, uint64_t c)
{
    if (has_bias(d))
        x += load(type, d->bias, r);
    if (has_gelu(d)) {
        store(type, d->aux, r + c * (uint64_t)d->ld_aux, x);
        x = 0.5 * x * (1 + tanh(sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
    }
    if (has_slope(d)) {
        double z = load(type, d->aux, r + c * (uint64_t)d->ld_aux);
        double t = tanh(sqrt(2 / M_PI) * (z + 0.044715 * z * z * z));

        x *= 0.5 * (1 + t) + 0.5 * z * (1 - t * t) * sqrt(2 / M_PI) * (1 + 3 * 0.044715 * z * z);
    }
    if (d->epilogue == CUBLASLT_EPILOGUE_RELU || d->epilogue == CUBLASLT_EPILOGUE_RELU_BIAS)
        x = x > 0 ? x : 0;
    return x;
}

static size_t size_of(cudaDataType_t type)
{
    return type == CUDA_R_64F ? 8 : type == CUDA_R_32F ? 4 : 2;
}

/* The sums of a matrix' rows, in its type. */
static void sum_rows(const struct desc *d, const struct layout *l, const void *matrix)
{
    for (uint64_t row = 0; row < l->rows; row++) {
        double sum = 0;

        for (uint64_t column = 0; column < l->columns; column++)
            sum += at(l, CUBLAS_OP_N, matrix, row, column);
        store(l->type, d->bias, row, sum);
    }
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle,
                              cublasLtMatmulDesc_t desc,
                              const void *alpha,
                              const void *a,
                              cublasLtMatrixLayout_t a_layout,
                              const void *b,
                              cublasLtMatrixLayout_t b_layout,
                              const void *beta,
                              const void *c,
                              cublasLtMatrixLayout_t c_layout,
                              void *d,
                              cublasLtMatrixLayout_t d_layout,
                              const cublasLtMatmulAlgo_t *algo,
                              void *workspace,
                              size_t workspace_bytes,
                              cudaStream_t stream)
{
    const struct desc *what = (struct desc *)desc;
    const struct layout *la = (struct layout *)a_layout, *lb = (struct layout *)b_layout;
    const struct layout *l = (struct layout *)d_layout;
    const struct algo *by = (const struct algo *)algo;
    const struct prefer *p = &by->prefer;
    uint64_t k = what->trans_a == CUBLAS_OP_T ? la->rows : la->columns;
    size_t size = size_of(la->type), size_d = size_of(l->type);
    unsigned took;

    if (fake_lt.not_supported)
        return CUBLAS_STATUS_NOT_SUPPORTED;
    if (fake_lt.broken)
        return CUBLAS_STATUS_EXECUTION_FAILED;
    if (by->magic != MAGIC) /* not of this library */
        return CUBLAS_STATUS_INVALID_VALUE;
    if (fake_lt.answers && !fake_lt.ns[by->number])
        return CUBLAS_STATUS_NOT_SUPPORTED;
    fake_lt.last = by->number;
    fake_lt.last_variant = by->variant;
    took = varied(&by->variant, fake_lt.ns[by->number]);
    if (what->epilogue != CUBLASLT_EPILOGUE_DEFAULT && what->epilogue != CUBLASLT_EPILOGUE_BIAS)
        took += fake_lt.epilogue_ns;
    fake_lt.now += fake_lt.products < fake_lt.cold ? took / 2 : took;
    check(what, la, lb, l);
    assert_ptr_equal(c, d);
    assert_true(workspace_bytes >= p->workspace && (uintptr_t)workspace % 256 == 0);
    assert_true((uintptr_t)a % p->a == 0 && (uintptr_t)b % p->b == 0 && (uintptr_t)d % p->d == 0);
    assert_true((size_t)la->step * size % p->a == 0 && (size_t)lb->step * size % p->b == 0);
    fake_lt.products++;
    fake_lt.tf32 += what->compute == CUBLAS_COMPUTE_32F_FAST_TF32;
    for (int64_t i = 0; i < l->batch; i++) {
        const char *ai = (const char *)a + (size_t)(i * la->step) * size;
        const char *bi = (const char *)b + (size_t)(i * lb->step) * size;
        char *di = (char *)d + (size_t)(i * l->step) * size_d;

        for (uint64_t column = 0; column < l->columns; column++) {
            double bgrad = 0;

            for (uint64_t j = 0; j < k; j++)
                bgrad += at(lb, what->trans_b, bi, j, column);
            if (what->epilogue == CUBLASLT_EPILOGUE_BGRADB)
                store(l->type, what->bias, column, bgrad);
            for (uint64_t row = 0; row < l->rows; row++) {
                uint64_t to = row + column * (uint64_t)l->ld;
                double s = load(what->scale, beta, 0), sum = 0;

                for (uint64_t j = 0; j < k; j++)
                    sum += at(la, what->trans_a, ai, row, j) * at(lb, what->trans_b, bi, j, column);
                sum *= load(what->scale, alpha, 0);
                if (s != 0)
                    sum += s * load(l->type, di, to);
                store(l->type, di, to, finish(what, l->type, sum, row, column));
            }
        }
        if (what->epilogue == CUBLASLT_EPILOGUE_DGELU_BGRAD)
            sum_rows(what, l, di);
    }
    return CUBLAS_STATUS_SUCCESS;
}
