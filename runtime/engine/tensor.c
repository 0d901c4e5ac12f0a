/* SPDX-License-Identifier: MIT */
#include "runtime/engine/tensor.h"

#include <string.h>

size_t pl_dtype_size(enum plume_dtype dtype)
{
    switch (dtype) {
    case PLUME_F32:
    case PLUME_I32:
        return 4;
    case PLUME_F64:
        return 8;
    case PLUME_U8:
        return 1;
    }
    return 0;
}

enum plume_dtype pl_dtype_of_real(enum pl_real real)
{
    return real == PL_REAL_F64 ? PLUME_F64 : PLUME_F32;
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
    memcpy(t->shape, shape, rank * sizeof(*shape));
    return 0;
}

const char *pl_tensor_text(const plume_tensor *t, char *buf, size_t size)
{
    static const char *const names[] = {
        [PLUME_F32] = "f32", [PLUME_F64] = "f64", [PLUME_I32] = "i32", [PLUME_U8] = "u8"};
    size_t at = (size_t)snprintf(buf, size, "%s[", names[t->dtype]);

    for (size_t i = 0; i < t->rank && at < size; i++)
        at += (size_t)snprintf(buf + at, size - at, i ? ", %zu" : "%zu", t->shape[i]);
    if (at < size)
        snprintf(buf + at, size - at, "]");
    return buf;
}
