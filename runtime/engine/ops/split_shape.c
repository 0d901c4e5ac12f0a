/* SPDX-License-Identifier: MIT */
/* Follows the dimension that is split through ops that give a tensor another shape. */
#include "runtime/engine/ops/split_private.h"

/* In row-major order a split is a number of equal blocks, of each of which a rank has a part. The
 * last dimension that has these blocks in whole ranges is the one that is split. */
static bool reshaped(const plume_tensor *from,
                     const plume_tensor *to,
                     struct pl_split_at at,
                     struct pl_split_at *ret)
{
    size_t blocks = at.groups, before = 1;
    bool found = false;

    for (size_t d = 0; d < at.dim; d++)
        blocks *= from->shape[d];
    for (size_t d = 0; d < to->rank && blocks % before == 0; before *= to->shape[d++]) {
        size_t groups = blocks / before;

        if (to->shape[d] % groups || to->shape[d] == groups)
            continue;
        *ret = (struct pl_split_at){(unsigned)d, groups};
        found = true;
    }
    return found;
}

static bool
permuted(const struct pl_node *node, struct pl_split_at at, bool inward, struct pl_split_at *ret)
{
    for (unsigned d = 0; d < node->out->rank; d++) {
        unsigned from = (unsigned)(node->attr.i[0] >> (4 * d)) & 15;

        if ((inward ? d : from) == at.dim) {
            *ret = (struct pl_split_at){inward ? from : d, at.groups};
            return true;
        }
    }
    return false;
}

/* As reshaped(), of a range of a dimension. */
static bool
sliced(const struct pl_node *node, struct pl_split_at at, bool inward, struct pl_split_at *ret)
{
    const plume_tensor *in = node->in[0], *out = node->out, *from = inward ? out : in;
    const plume_tensor *to = inward ? in : out;
    size_t group = from->shape[at.dim] / at.groups, first;

    *ret = at;
    if (in->shape[at.dim] == out->shape[at.dim])
        return true;
    first = in->stride[at.dim] ? (out->offset - in->offset) / in->stride[at.dim] : 0;
    if (to->shape[at.dim] % group || first % group)
        return false;
    ret->groups = to->shape[at.dim] / group;
    return true;
}

bool pl_split_through(const struct pl_node *node,
                      struct pl_split_at at,
                      bool inward,
                      struct pl_split_at *ret)
{
    const plume_tensor *in = node->in[0], *out = node->out;

    switch (node->op->split) {
    case PL_SPLIT_SLICE:
        return sliced(node, at, inward, ret);
    case PL_SPLIT_RESHAPE:
        return inward ? reshaped(out, in, at, ret) : reshaped(in, out, at, ret);
    case PL_SPLIT_PERMUTE:
        return permuted(node, at, inward, ret);
    case PL_SPLIT_ROW:
        *ret = at;
        return at.dim + 1 < out->rank;
    case PL_SPLIT_PRODUCT:
        *ret = at;
        return at.dim + 2 < out->rank && node->in[1]->rank == out->rank;
    default:
        *ret = at;
        return true;
    }
}
