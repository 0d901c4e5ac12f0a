/* SPDX-License-Identifier: MIT */
#include "runtime/engine/data/array.h"
#include "runtime/engine/device/tensor.h"
#include "runtime/engine/util/file_map.h"

#include <string.h>

int pl_array_set_shape(struct plume_array *array,
                       size_t rank,
                       const size_t *shape,
                       struct pl_error *err)
{
    size_t count;

    if (rank < 1 || pl_shape_count(rank, shape, &count) < 0)
        return pl_error_set(err, -EINVAL, "the array is too large");
    array->rank = rank;
    memcpy(array->shape, shape, rank * sizeof(*shape));
    array->count = count;
    array->stride = shape[0] ? count / shape[0] * pl_dtype_size(array->dtype) : 0;
    return 0;
}

int pl_array_share(const struct plume_source *source,
                   size_t n,
                   size_t *ret_begin,
                   size_t *ret_end,
                   struct pl_error *err)
{
    double end = source->end == 0 ? 1 : source->end;

    if (!(source->begin >= 0 && source->begin < end && end <= 1))
        return pl_error_set(err, -EINVAL, "the share %g to %g of the samples is not within [0, 1]",
                            source->begin, end);
    *ret_begin = (size_t)(source->begin * (double)n);
    *ret_end = end == 1 ? n : (size_t)(end * (double)n);
    return 0;
}

void pl_array_close(struct plume_array *array)
{
    if (array->map)
        pl_file_unmap(array->map, array->map_bytes);
    free(array->own);
    free(array->vocabulary);
    *array = (struct plume_array){0};
}
