/* SPDX-License-Identifier: MIT */
/* Variants of an algorithm of cublasLt. The heuristics name few of the ways in which an algorithm
 * can be configured; here one of them is changed. Pure, but for the library's own functions.
 * Source: cuBLAS documentation, cublasLtMatmulAlgoConfigAttributes_t. */
#ifndef PL_RUNTIME_ENGINE_CUDA_CUBLASLT_CUBLASLT_VARY_H
#define PL_RUNTIME_ENGINE_CUDA_CUBLASLT_CUBLASLT_VARY_H

#include "runtime/engine/cuda/cublaslt/cublaslt_key.h"

#include <cublasLt.h>

#define PL_CUBLASLT_VARIANTS 9

/* Changes the algorithm to its variant `which`. False, and the algorithm is undefined, if it is
 * that already, if the variant does not suit the product, or if the library does not know it.
 * Whether the library does the product so is another question. ret_name: a static text. */
bool pl_cublaslt_vary(const struct pl_cublaslt_key *key,
                      unsigned which,
                      cublasLtMatmulAlgo_t *algo,
                      const char **ret_name);

#endif
