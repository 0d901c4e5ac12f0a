/* SPDX-License-Identifier: MIT */
#include "runtime/engine/device/tensor.h"

#include <string.h>

size_t pl_dtype_size(enum plume_dtype dtype)
{
    switch (dtype) {
    case PLUME_F32:
    case PLUME_I32:
        return 4;
    case PLUME_F64:
        return 8;
    case PLUME_BF16:
    case PLUME_F16:
    case PLUME_U16:
        return 2;
    case PLUME_U8:
        return 1;
    }
    return 0;
}

bool pl_dtype_is_real(enum plume_dtype dtype)
{
    return dtype == PLUME_F32 || dtype == PLUME_F64 || pl_dtype_is_16bit(dtype);
}

bool pl_dtype_is_16bit(enum plume_dtype dtype)
{
    return dtype == PLUME_BF16 || dtype == PLUME_F16;
}

const char *pl_dtype_name(enum plume_dtype dtype)
{
    static const char *const names[] = {
        [PLUME_F32] = "f32",   [PLUME_F64] = "f64", [PLUME_I32] = "i32", [PLUME_U8] = "u8",
        [PLUME_BF16] = "bf16", [PLUME_F16] = "f16", [PLUME_U16] = "u16"};

    return (size_t)dtype < PL_COUNT(names) && names[dtype] ? names[dtype] : "?";
}

enum plume_dtype pl_dtype_of_real(enum pl_real real)
{
    static const enum plume_dtype of[] = {[PL_REAL_F32] = PLUME_F32,
                                          [PL_REAL_F64] = PLUME_F64,
                                          [PL_REAL_BF16] = PLUME_BF16,
                                          [PL_REAL_F16] = PLUME_F16};

    return of[real];
}

int pl_shape_count(size_t rank, const size_t *shape, size_t *ret)
{
    size_t count = 1;

    if (rank > PLUME_RANK_MAX)
        return -ERANGE;
    for (size_t i = 0; i < rank; i++)
        if (__builtin_mul_overflow(count, shape[i], &count) || count > SIZE_MAX / 16)
            return -ERANGE;
    *ret = count;
    return 0;
}

int pl_tensor_init(plume_tensor *t, enum plume_dtype dtype, size_t rank, const size_t *shape)
{
    size_t count;
    int r = pl_shape_count(rank, shape, &count);

    if (r < 0)
        return r;
    *t = (plume_tensor){.dtype = dtype, .rank = rank, .count = count};
    if (rank)
        memcpy(t->shape, shape, rank * sizeof(*shape));
    for (size_t i = rank, step = 1; i-- > 0; step *= shape[i])
        t->stride[i] = step;
    return 0;
}

bool pl_tensor_is_dense(const plume_tensor *t)
{
    size_t step = 1;

    for (size_t i = t->rank; i-- > 0; step *= t->shape[i])
        if (t->shape[i] != 1 && t->stride[i] != step)
            return false;
    return true;
}

void pl_tensor_set_channels_last(plume_tensor *t)
{
    t->channels_last = true;
    t->stride[1] = 1;
    t->stride[3] = t->shape[1];
    t->stride[2] = t->shape[1] * t->shape[3];
    t->stride[0] = t->shape[1] * t->shape[3] * t->shape[2];
}

bool pl_tensor_fits_channels_last(const plume_tensor *t)
{
    return t->channels_last || (t->rank == 4 && pl_tensor_is_dense(t) &&
                                (t->shape[1] == 1 || t->shape[2] * t->shape[3] == 1));
}

static void *at(const plume_tensor *root, void *memory, size_t offset)
{
    return memory ? (char *)memory + offset * pl_dtype_size(root->dtype) : NULL;
}

void *pl_tensor_data(const plume_tensor *t)
{
    return t->base ? at(t->base, t->base->data, t->offset) : t->data;
}

void *pl_tensor_grad(const plume_tensor *t)
{
    return t->base ? at(t->base, t->base->grad, t->offset) : t->grad;
}

void pl_tensor_peek(const plume_tensor *t, struct pl_device *dev, struct pl_device_peek *ret)
{
    pl_device_peek_begin(dev, pl_tensor_data(t), pl_dtype_size(t->dtype), ret);
}

int pl_tensor_peeked(const plume_tensor *t,
                     struct pl_device_peek *peek,
                     double *ret,
                     struct pl_error *err)
{
    union {
        double f64;
        float f32;
        uint16_t half;
    } value = {0};
    int r = pl_device_peek_end(peek, &value, err);

    if (r < 0)
        return r;
    if (t->dtype == PLUME_F64)
        *ret = value.f64;
    else if (t->dtype == PLUME_F32)
        *ret = (double)value.f32;
    else
        *ret =
            (double)pl_f32_of_half(t->dtype == PLUME_F16 ? PL_HALF_F16 : PL_HALF_BF16, value.half);
    return 0;
}

int pl_tensor_scalar(const plume_tensor *t,
                     struct pl_device *dev,
                     double *ret,
                     struct pl_error *err)
{
    struct pl_device_peek peek;

    pl_tensor_peek(t, dev, &peek);
    return pl_tensor_peeked(t, &peek, ret, err);
}

const char *pl_tensor_text(const plume_tensor *t, char *buf, size_t size)
{
    size_t len = (size_t)snprintf(buf, size, "%s[", pl_dtype_name(t->dtype));

    for (size_t i = 0; i < t->rank && len < size; i++)
        len += (size_t)snprintf(buf + len, size - len, i ? ", %zu" : "%zu", t->shape[i]);
    if (len < size)
        snprintf(buf + len, size - len, "]");
    return buf;
}
