/* SPDX-License-Identifier: MIT */
/* The initial values of parameters: enum plume_init, by the formulas of torch.nn.init. */
#ifndef PL_RUNTIME_ENGINE_PARAMS_INITIAL_H
#define PL_RUNTIME_ENGINE_PARAMS_INITIAL_H

#include "runtime/engine/tape/tape.h"
#include "runtime/engine/util/rng.h"

struct pl_initial {
    enum plume_init kind;
    double a, b; /* its numbers, as plume_param_init() */
};

/* rank: of the tensor. -EINVAL tells what is wrong with a kind or its numbers. */
int pl_initial_check(const struct pl_initial *initial, size_t rank, struct pl_error *err);

/* Writes a tensor's values to `data`, which has its type. rng: NULL if the kind needs none.
 * -ENOMEM.
 */
int pl_initial_values(const struct pl_initial *initial,
                      const plume_tensor *t,
                      struct pl_rng *rng,
                      void *data,
                      struct pl_error *err);

/* Writes n numbers from element `at` of the tensor on. */
void pl_initial_put(const plume_tensor *t, void *data, size_t at, size_t n, const double *x);

#endif
