/* SPDX-License-Identifier: MIT */
/* Tensors of which each rank has a part (tensor parallel: ops/split.h). */
#ifndef PL_RUNTIME_ENGINE_TAPE_SPLIT_AT_H
#define PL_RUNTIME_ENGINE_TAPE_SPLIT_AT_H

#include "runtime/engine/device/tensor.h"

/* The dimension that is split. It is `groups` equal ranges, one after another, and a rank has its
 * part of each: packed queries, keys and values are three. groups = 0: the tensor is whole. */
struct pl_split_at {
    unsigned dim;
    size_t groups;
};

/* The tensor as [outer, size, inner]: each rank has size divided by their number. */
struct pl_split_part {
    size_t outer, size, inner;
};

static inline struct pl_split_part pl_split_part(const plume_tensor *whole, struct pl_split_at at)
{
    struct pl_split_part part = {at.groups, whole->shape[at.dim] / at.groups, 1};

    for (size_t d = 0; d < whole->rank; d++)
        if (d < at.dim)
            part.outer *= whole->shape[d];
        else if (d > at.dim)
            part.inner *= whole->shape[d];
    return part;
}

#endif
