/* SPDX-License-Identifier: MIT */
/* The values of tensors and of their gradients while a tape is lowered. */
#include "runtime/engine/xla/lower_private.h"

struct pl_lower_leaf *pl_lower_leaf(const struct pl_lower *l, const plume_tensor *t)
{
    for (size_t i = 0; i < l->n_leaves; i++)
        if (l->leaves[i].tensor == t)
            return &l->leaves[i];
    return NULL;
}

struct pl_hlo_value pl_lower_value(const struct pl_lower *l, const plume_tensor *t)
{
    const struct pl_lower_leaf *leaf;

    if (t->tape == l->tape)
        return l->out[t->node];
    leaf = pl_lower_leaf(l, t);
    return leaf ? leaf->value : (struct pl_hlo_value){0};
}

void pl_lower_set(struct pl_lower *l, size_t i, struct pl_hlo_value v)
{
    const plume_tensor *t = l->tape->nodes[i].out;

    v = pl_hlo_reshape(l->h, v, t->rank, t->shape);
    l->out[i] = t->dtype == PLUME_BF16 ? pl_hlo_convert(l->h, v, "bf16") : v;
}

void pl_lower_add(struct pl_lower *l, size_t i, size_t k, struct pl_hlo_value grad)
{
    const plume_tensor *t = l->tape->nodes[i].in[k];
    struct pl_lower_leaf *leaf;
    struct pl_hlo_value *to;

    if (!pl_lower_wants(l, i, k))
        return;
    leaf = t->tape == l->tape ? NULL : pl_lower_leaf(l, t);
    to = leaf ? &leaf->grad : &l->grad[t->node];
    grad = pl_hlo_reshape(l->h, grad, t->rank, t->shape);
    if (to->id)
        grad = pl_hlo_two(l->h, "add", pl_hlo_convert(l->h, *to, "f32"), grad);
    *to = t->dtype == PLUME_BF16 ? pl_hlo_convert(l->h, grad, "bf16") : grad;
}

struct pl_hlo_value pl_lower_rows(struct pl_hlo *h, struct pl_hlo_value x)
{
    size_t n = x.rank ? x.shape[x.rank - 1] : 1;

    return pl_hlo_reshape2(h, x, n ? pl_hlo_count(&x) / n : 0, n);
}
