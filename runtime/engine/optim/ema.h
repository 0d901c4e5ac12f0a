/* SPDX-License-Identifier: MIT */
/* The moving average of the parameters over optimizer steps (--ema), as
 * torch.optim.swa_utils.AveragedModel with get_ema_multi_avg_fn(): the first step copies the
 * parameters, later ones move the average to them by 1 - decay. Validation and tests use it: they
 * are between two calls of pl_ema_swap(). Buffers are not averaged. All ranks have the same
 * parameters, so they have the same average. */
#ifndef PL_RUNTIME_ENGINE_OPTIM_EMA_H
#define PL_RUNTIME_ENGINE_OPTIM_EMA_H

#include "runtime/engine/params/params.h"

#define PL_EMA_SPARE_BYTES ((size_t)1 << 20) /* for the exchange */
#define PL_EMA_PREFIX "ema/" /* of the names in a checkpoint, after its own prefix */

struct pl_ema {
    struct pl_params *params; /* NULL: off. Borrowed */
    double decay;
    uint64_t steps; /* averaged; with 0 there is no average yet */
    void *values;   /* laid out like the parameters; device memory */
    void *spare;    /* for the exchange */
};

/* Call after the layout. decay: in [0, 1). -ENOMEM. */
int pl_ema_init(struct pl_ema *ema, struct pl_params *params, double decay, struct pl_error *err);
void pl_ema_finish(struct pl_ema *ema);

/* Call after each optimizer step. Does nothing if off. */
void pl_ema_update(struct pl_ema *ema, const struct pl_kernels *kernels);

/* Exchanges the parameters and their average; a second call puts them back. Does nothing if off or
 * before the first step. */
void pl_ema_swap(struct pl_ema *ema);

#endif
