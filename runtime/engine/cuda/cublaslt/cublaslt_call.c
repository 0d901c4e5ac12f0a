/* SPDX-License-Identifier: MIT */
#include "runtime/engine/cuda/cublaslt/cublaslt_call.h"

static cudaDataType_t type_of(const struct pl_cublaslt_key *key)
{
    switch ((enum pl_real)key->real) {
    case PL_REAL_F64:
        return CUDA_R_64F;
    case PL_REAL_BF16:
        return CUDA_R_16BF;
    case PL_REAL_F16:
        return CUDA_R_16F;
    case PL_REAL_F32:
        break;
    }
    return CUDA_R_32F;
}

static cublasLtEpilogue_t epilogue_of(const struct pl_cublaslt_key *key)
{
    static const cublasLtEpilogue_t of[] = {
        [PL_CUBLASLT_PLAIN] = CUBLASLT_EPILOGUE_DEFAULT,
        [PL_CUBLASLT_BIAS] = CUBLASLT_EPILOGUE_BIAS,
        [PL_CUBLASLT_RELU] = CUBLASLT_EPILOGUE_RELU,
        [PL_CUBLASLT_RELU_BIAS] = CUBLASLT_EPILOGUE_RELU_BIAS,
        [PL_CUBLASLT_GELU_AUX] = CUBLASLT_EPILOGUE_GELU_AUX,
        [PL_CUBLASLT_GELU_AUX_BIAS] = CUBLASLT_EPILOGUE_GELU_AUX_BIAS,
        [PL_CUBLASLT_DGELU] = CUBLASLT_EPILOGUE_DGELU,
        [PL_CUBLASLT_DGELU_BGRAD] = CUBLASLT_EPILOGUE_DGELU_BGRAD,
        [PL_CUBLASLT_BGRAD] = CUBLASLT_EPILOGUE_BGRADB,
    };

    return of[key->epilogue];
}

static bool done(struct pl_cublaslt_call *c, cublasStatus_t status)
{
    c->status = status;
    return status == CUBLAS_STATUS_SUCCESS;
}

static bool
desc_set(struct pl_cublaslt_call *c, cublasLtMatmulDescAttributes_t which, const void *p, size_t n)
{
    return done(c, cublasLtMatmulDescSetAttribute(&c->desc, which, p, n));
}

static bool make_desc(const struct pl_cublaslt_key *key,
                      const struct pl_cublaslt_data *data,
                      struct pl_cublaslt_call *c)
{
    cublasComputeType_t compute = CUBLAS_COMPUTE_32F;
    cublasOperation_t trans_a = key->trans_a ? CUBLAS_OP_T : CUBLAS_OP_N;
    cublasOperation_t trans_b = key->trans_b ? CUBLAS_OP_T : CUBLAS_OP_N;
    cublasLtEpilogue_t epilogue = epilogue_of(key);
    int64_t ld_aux = (int64_t)key->m;

    if (key->real == PL_REAL_F64)
        compute = CUBLAS_COMPUTE_64F;
    else if (key->tf32)
        compute = CUBLAS_COMPUTE_32F_FAST_TF32;
    if (!done(c, cublasLtMatmulDescInit(&c->desc, compute,
                                        key->real == PL_REAL_F64 ? CUDA_R_64F : CUDA_R_32F)) ||
        !desc_set(c, CUBLASLT_MATMUL_DESC_TRANSA, &trans_a, sizeof(trans_a)) ||
        !desc_set(c, CUBLASLT_MATMUL_DESC_TRANSB, &trans_b, sizeof(trans_b)) ||
        !desc_set(c, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue, sizeof(epilogue)))
        return false;
    if (data->bias &&
        !desc_set(c, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &data->bias, sizeof(data->bias)))
        return false;
    return !data->aux ||
           (desc_set(c, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, &data->aux, sizeof(data->aux)) &&
            desc_set(c, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, &ld_aux, sizeof(ld_aux)));
}

static bool make_layout(struct pl_cublaslt_call *c,
                        cublasLtMatrixLayoutOpaque_t *layout,
                        const struct pl_cublaslt_key *key,
                        cudaDataType_t type,
                        uint64_t rows,
                        uint64_t columns,
                        uint64_t ld,
                        uint64_t step)
{
    int32_t batch = (int32_t)key->batch;
    int64_t stride = (int64_t)step;

    return done(c, cublasLtMatrixLayoutInit(layout, type, rows, columns, (int64_t)ld)) &&
           done(c, cublasLtMatrixLayoutSetAttribute(layout, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT,
                                                    &batch, sizeof(batch))) &&
           done(c, cublasLtMatrixLayoutSetAttribute(layout,
                                                    CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET,
                                                    &stride, sizeof(stride)));
}

bool pl_cublaslt_make_call(const struct pl_cublaslt_key *key,
                           const struct pl_cublaslt_data *data,
                           struct pl_cublaslt_call *c)
{
    cudaDataType_t type = type_of(key);

    return make_desc(key, data, c) &&
           make_layout(c, &c->a, key, type, key->trans_a ? key->k : key->m,
                       key->trans_a ? key->m : key->k, key->ld_a, key->step_a) &&
           make_layout(c, &c->b, key, type, key->trans_b ? key->n : key->k,
                       key->trans_b ? key->k : key->n, key->ld_b, key->step_b) &&
           make_layout(c, &c->d, key, key->wide ? CUDA_R_32F : type, key->m, key->n, key->ld_d,
                       key->step_d);
}
