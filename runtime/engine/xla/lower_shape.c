/* SPDX-License-Identifier: MIT */
/* Views, which are copies here, and concatenation. A node of a view has no numbers: what it does
 * follows from the strides of its tensors. */
#include "runtime/engine/xla/lower_private.h"

void pl_lower_reshape_forward(struct pl_lower *l, size_t i)
{
    pl_lower_set(l, i, pl_lower_in(l, i, 0));
}

void pl_lower_reshape_backward(struct pl_lower *l, size_t i, struct pl_hlo_value dy)
{
    pl_lower_add(l, i, 0, dy);
}

void pl_lower_copy_forward(struct pl_lower *l, size_t i)
{
    pl_lower_set(l, i, pl_lower_in(l, i, 0));
}

void pl_lower_copy_backward(struct pl_lower *l, size_t i, struct pl_hlo_value dy)
{
    pl_lower_add(l, i, 0, dy);
}

/* The dimension that a slice cuts, and where it begins. */
static size_t cut(const struct pl_node *node, size_t *ret_first)
{
    const plume_tensor *x = node->in[0], *y = node->out;
    size_t dim = 0;

    while (dim + 1 < x->rank && x->shape[dim] == y->shape[dim])
        dim++;
    *ret_first = x->shape[dim] == y->shape[dim]
                     ? 0
                     : (y->offset - (x->base ? x->offset : 0)) / x->stride[dim];
    return dim;
}

void pl_lower_slice_forward(struct pl_lower *l, size_t i)
{
    const struct pl_node *node = pl_lower_node(l, i);
    size_t first, dim = cut(node, &first);

    pl_lower_set(l, i, pl_hlo_slice(l->h, pl_lower_in(l, i, 0), dim, first, node->out->shape[dim]));
}

void pl_lower_slice_backward(struct pl_lower *l, size_t i, struct pl_hlo_value dy)
{
    const struct pl_node *node = pl_lower_node(l, i);
    int64_t low[PL_HLO_RANK_MAX] = {0}, high[PL_HLO_RANK_MAX] = {0}, none[PL_HLO_RANK_MAX] = {0};
    size_t first, dim = cut(node, &first);

    if (!pl_lower_wants(l, i, 0))
        return;
    low[dim] = (int64_t)first;
    high[dim] = (int64_t)(node->in[0]->shape[dim] - node->out->shape[dim] - first);
    pl_lower_add(l, i, 0, pl_hlo_pad(l->h, dy, low, high, none));
}

/* order[i]: the dimension of x that is dimension i of y. Dimensions of equal size and stride are
 * interchangeable only if they have one element. */
static void order_of(const struct pl_node *node, size_t *order)
{
    const plume_tensor *x = node->in[0], *y = node->out;
    unsigned seen = 0;

    for (size_t i = 0; i < y->rank; i++)
        for (size_t k = 0; k < x->rank; k++)
            if (!(seen & 1u << k) && x->shape[k] == y->shape[i] && x->stride[k] == y->stride[i]) {
                seen |= 1u << k;
                order[i] = k;
                break;
            }
}

void pl_lower_permute_forward(struct pl_lower *l, size_t i)
{
    size_t order[PL_HLO_RANK_MAX] = {0};

    order_of(pl_lower_node(l, i), order);
    pl_lower_set(l, i, pl_hlo_transpose(l->h, pl_lower_in(l, i, 0), order));
}

void pl_lower_permute_backward(struct pl_lower *l, size_t i, struct pl_hlo_value dy)
{
    size_t order[PL_HLO_RANK_MAX] = {0}, back[PL_HLO_RANK_MAX] = {0};

    order_of(pl_lower_node(l, i), order);
    for (size_t k = 0; k < dy.rank; k++)
        back[order[k]] = k;
    pl_lower_add(l, i, 0, pl_hlo_transpose(l->h, dy, back));
}

void pl_lower_cat_forward(struct pl_lower *l, size_t i)
{
    const struct pl_node *node = pl_lower_node(l, i);
    struct pl_hlo_value list[PL_NODE_INPUTS_MAX];

    for (size_t k = 0; k < node->n_in; k++)
        list[k] = pl_lower_in(l, i, k);
    pl_lower_set(l, i, pl_hlo_concat(l->h, list, node->n_in, (size_t)node->attr.i[0]));
}

void pl_lower_cat_backward(struct pl_lower *l, size_t i, struct pl_hlo_value dy)
{
    const struct pl_node *node = pl_lower_node(l, i);
    size_t dim = (size_t)node->attr.i[0], first = 0;

    for (size_t k = 0; k < node->n_in; k++) {
        size_t count = node->in[k]->shape[dim];

        if (pl_lower_wants(l, i, k))
            pl_lower_add(l, i, k, pl_hlo_slice(l->h, dy, dim, first, count));
        first += count;
    }
}

void pl_lower_arange_forward(struct pl_lower *l, size_t i)
{
    const struct pl_node *node = pl_lower_node(l, i);
    struct pl_hlo_value y = pl_hlo_iota(l->h, "i32", 1, &node->out->count, 0);

    y = pl_hlo_two(l->h, "multiply", y, pl_hlo_fill_like(l->h, y, (double)node->attr.i[1]));
    pl_lower_set(l, i,
                 pl_hlo_two(l->h, "add", y, pl_hlo_fill_like(l->h, y, (double)node->attr.i[0])));
}
