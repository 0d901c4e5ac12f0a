/* SPDX-License-Identifier: MIT */
#include "runtime/engine/params/halves.h"

bool pl_halves_are_used(const struct pl_params *params)
{
    return params->half_dtype && params->real == PL_REAL_F32 && !params->dev->ops->host &&
           !params->units && !pl_params_partial(params);
}

size_t pl_halves_bytes(const struct pl_params *params)
{
    return pl_halves_are_used(params) ? PL_MAX(params->count, (size_t)32) * sizeof(uint16_t) : 0;
}

enum pl_half pl_halves_type(const struct pl_params *params)
{
    if (!params->halves)
        return PL_HALF_NONE;
    return params->half_dtype == PLUME_F16 ? PL_HALF_F16 : PL_HALF_BF16;
}

int pl_halves_refresh(struct pl_params *params,
                      const struct pl_kernels *kernels,
                      struct pl_error *err)
{
    int r = 0;

    if (!pl_halves_are_used(params) || pl_halves_are_current(params))
        return 0;
    if (!params->halves)
        r = pl_device_alloc(params->dev, pl_halves_bytes(params), "parameters",
                            (void **)&params->halves, err);
    if (r < 0)
        return r;
    pl_device_enter(params->dev);
    kernels->narrow(&(struct pl_half_args){
        .n = params->count,
        .type = pl_halves_type(params),
        .half = params->halves,
        .wide = params->values,
    });
    pl_halves_follow(params);
    return 0;
}

void pl_halves_lend(const struct pl_params *params, struct pl_tape *tape)
{
    for (size_t i = 0; i < tape->n; i++) {
        struct pl_node *node = &tape->nodes[i];

        if (node->lent)
            node->out->data =
                params->halves + ((const float *)node->in[0]->data - (const float *)params->values);
    }
}
