/* SPDX-License-Identifier: MIT */
#include "runtime/engine/optim/ema.h"

#include <math.h>

int pl_ema_init(struct pl_ema *ema, struct pl_params *params, double decay, struct pl_error *err)
{
    size_t bytes = PL_MAX(pl_params_held(params) * pl_real_size(params->real), (size_t)64);
    struct pl_ema e = {.params = params, .decay = decay};
    int r = pl_device_alloc_zero(params->dev, bytes, "averaged parameters", &e.values, err);

    if (r == 0)
        r = pl_device_alloc(params->dev, PL_MIN(bytes, PL_EMA_SPARE_BYTES), "averaged parameters",
                            &e.spare, err);
    if (r < 0)
        pl_ema_finish(&e);
    else
        *ema = e;
    return r;
}

void pl_ema_finish(struct pl_ema *ema)
{
    if (ema->params) {
        pl_device_free(ema->params->dev, ema->values);
        pl_device_free(ema->params->dev, ema->spare);
    }
    *ema = (struct pl_ema){0};
}

void pl_ema_update(struct pl_ema *ema, const struct pl_kernels *kernels)
{
    struct pl_params *params = ema->params;

    if (!params)
        return;
    ema->steps++; /* also where the rank's shard is empty: all save the average together */
    if (pl_params_held(params) == 0)
        return;
    pl_device_enter(params->dev);
    if (ema->steps == 1) {
        pl_device_copy_from(params->dev, ema->values, params->dev, params->values,
                            pl_params_held(params) * pl_real_size(params->real));
        return;
    }
    /* The exact update of SGD: average = average - (1 - decay) (average - value). */
    kernels->sgd(&(struct pl_sgd_args){
        .update = {.n = pl_params_held(params),
                   .factor = -1,
                   .clip = INFINITY,
                   .grad = params->values,
                   .param = ema->values},
        .lr = 1 - ema->decay,
        .weight_decay = 1,
    });
}

void pl_ema_swap(struct pl_ema *ema)
{
    struct pl_params *params = ema->params;
    size_t bytes = params ? pl_params_held(params) * pl_real_size(params->real) : 0, n;

    if (!params || ema->steps == 0)
        return;
    params->values_version++;
    pl_device_enter(params->dev);
    for (size_t at = 0; at < bytes; at += n) {
        char *values = (char *)params->values + at, *average = (char *)ema->values + at;

        n = PL_MIN(bytes - at, PL_EMA_SPARE_BYTES);
        pl_device_copy_from(params->dev, ema->spare, params->dev, values, n);
        pl_device_copy_from(params->dev, values, params->dev, average, n);
        pl_device_copy_from(params->dev, average, params->dev, ema->spare, n);
    }
}
