/* SPDX-License-Identifier: MIT */
#include "runtime/engine/optim/precision.h"
#include "kernels/half.h"

/* Elements rounded at a time: on the CPU they stay in the cache; a GPU needs more to be busy. */
#define ROUND 4096
#define ROUND_DEVICE ((size_t)4 << 20)

enum plume_dtype pl_precision_half(const struct pl_train_options *o)
{
    if (o->amp_level == 0)
        return 0;
    return o->precision == PL_PRECISION_BF16 ? PLUME_BF16
           : o->precision == PL_PRECISION_16 ? PLUME_F16
                                             : 0;
}

const char *const pl_precision_names[] = {
    [PL_PRECISION_32] = "32",
    [PL_PRECISION_64] = "64",
    [PL_PRECISION_16] = "16",
    [PL_PRECISION_BF16] = "bf16",
    NULL,
};

enum pl_real pl_precision_real(const struct pl_train_options *options)
{
    return options->precision == PL_PRECISION_64 ? PL_REAL_F64 : PL_REAL_F32;
}

void pl_precision_tape(const struct pl_train_options *options, struct pl_tape *tape)
{
    tape->amp_dtype = pl_precision_half(options);
    tape->amp_o2 = options->amp_level == 2;
    tape->amp_o3 = options->amp_level == 3;
}

void pl_precision_scaler(const struct pl_train_options *options, struct pl_scaler *scaler)
{
    pl_scaler_init(scaler, pl_precision_half(options) == PLUME_F16);
}

static void round_by(struct pl_params *params,
                     const struct pl_kernels *kernels,
                     enum pl_half type,
                     uint16_t *half,
                     size_t most)
{
    size_t count = pl_params_held(params);

    for (size_t at = 0; at < count; at += most) {
        struct pl_half_args args = {
            .n = PL_MIN(count - at, most),
            .type = type,
            .half = half,
            .wide = (float *)params->values + at,
        };

        kernels->narrow(&args);
        kernels->widen(&args);
    }
}

size_t pl_precision_round_bytes(const struct pl_train_options *options,
                                const struct pl_params *params)
{
    if (pl_precision_half(options) == 0 || options->amp_level != 3 || params->dev->ops->host)
        return 0;
    return PL_MIN(PL_MAX(params->count, (size_t)1), ROUND_DEVICE) * sizeof(uint16_t);
}

int pl_precision_round(const struct pl_train_options *options,
                       const struct pl_kernels *kernels,
                       struct pl_params *params,
                       struct pl_error *err)
{
    enum plume_dtype amp_dtype = pl_precision_half(options);
    enum pl_half type = amp_dtype == PLUME_BF16 ? PL_HALF_BF16 : PL_HALF_F16;
    size_t bytes = pl_precision_round_bytes(options, params);
    uint16_t half[ROUND];
    void *own;
    int r;

    if (amp_dtype == 0 || options->amp_level != 3)
        return 0;
    params->values_version++;
    pl_device_enter(params->dev);
    if (params->dev->ops->host) {
        round_by(params, kernels, type, half, ROUND);
        return 0;
    }
    r = pl_device_alloc(params->dev, bytes, "rounding", &own, err);
    if (r < 0)
        return r;
    round_by(params, kernels, type, own, bytes / sizeof(uint16_t));
    pl_device_free(params->dev, own);
    return 0;
}
