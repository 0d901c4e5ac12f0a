/* SPDX-License-Identifier: MIT */
/* Gradients that are not summed: each rank of the node has its own (params->apart). */
#ifndef PL_RUNTIME_ENGINE_PARAMS_APART_H
#define PL_RUNTIME_ENGINE_PARAMS_APART_H

#include "runtime/engine/params/params.h"

/* Adds up n elements from `from` on, as a sum over shared memory: in the order of ranks, times
 * apart_scale. dst: of the parameters' type. Not collective. */
void pl_params_sum_apart(const struct pl_params *params,
                         const struct pl_kernels *kernels,
                         size_t from,
                         size_t n,
                         void *dst);

#endif
