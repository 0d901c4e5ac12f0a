/* SPDX-License-Identifier: MIT */
/* Shared by the lower_*.c files: each has the ops of the op_*.c file (runtime/engine/ops/) of its
 * kind, and a row each in lower.c's table. The helpers are in lower_value.c. */
#ifndef PL_RUNTIME_ENGINE_XLA_LOWER_PRIVATE_H
#define PL_RUNTIME_ENGINE_XLA_LOWER_PRIVATE_H

#include "runtime/engine/xla/lower.h"

/* forward sets l->out[i]; backward gives the inputs their gradients by pl_lower_add(). */
typedef void pl_lower_forward_fn(struct pl_lower *l, size_t i);
typedef void pl_lower_backward_fn(struct pl_lower *l, size_t i, struct pl_hlo_value dy);

#define PL_LOWER_OP(name)                                                                          \
    pl_lower_forward_fn pl_lower_##name##_forward;                                                 \
    pl_lower_backward_fn pl_lower_##name##_backward

PL_LOWER_OP(reshape);
PL_LOWER_OP(slice);
PL_LOWER_OP(permute);
PL_LOWER_OP(copy);
PL_LOWER_OP(cat);
PL_LOWER_OP(linear);
PL_LOWER_OP(matmul);
PL_LOWER_OP(attention);
PL_LOWER_OP(activation);
PL_LOWER_OP(binary);
PL_LOWER_OP(affine);
PL_LOWER_OP(dropout);
PL_LOWER_OP(reduce);
PL_LOWER_OP(cross_entropy);
PL_LOWER_OP(mse);
PL_LOWER_OP(layernorm);
PL_LOWER_OP(softmax);
PL_LOWER_OP(embedding);
PL_LOWER_OP(conv2d);
PL_LOWER_OP(max_pool2d);
PL_LOWER_OP(avg_pool2d);
PL_LOWER_OP(batchnorm);
PL_LOWER_OP(normalize);
PL_LOWER_OP(map);
PL_LOWER_OP(choose);
PL_LOWER_OP(expand);
PL_LOWER_OP(gather);
PL_LOWER_OP(cumsum);
PL_LOWER_OP(unfold);
PL_LOWER_OP(fold);
PL_LOWER_OP(resample);
PL_LOWER_OP(rotary);
PL_LOWER_OP(gru);
PL_LOWER_OP(scatter);
PL_LOWER_OP(lstm);
pl_lower_forward_fn pl_lower_correct_forward, pl_lower_whole_forward, pl_lower_arange_forward,
    pl_lower_full_forward, pl_lower_top_forward, pl_lower_one_hot_forward, pl_lower_random_forward;
pl_lower_backward_fn pl_lower_round_backward;

#undef PL_LOWER_OP

static inline const struct pl_node *pl_lower_node(const struct pl_lower *l, size_t i)
{
    return &l->tape->nodes[i];
}

/* The value of input k of node i, in f32 if it is bf16. */
static inline struct pl_hlo_value pl_lower_in(const struct pl_lower *l, size_t i, size_t k)
{
    const plume_tensor *t = l->tape->nodes[i].in[k];
    struct pl_hlo_value v = pl_lower_value(l, t);

    return t->dtype == PLUME_BF16 ? pl_hlo_convert(l->h, v, "f32") : v;
}

/* True if input k of node i wants a gradient. */
static inline bool pl_lower_wants(const struct pl_lower *l, size_t i, size_t k)
{
    const struct pl_node *node = &l->tape->nodes[i];

    return k < node->n_in && node->in[k] && node->in[k]->wants_grad;
}

/* Adds to the gradient of input k of node i, if it wants one; the shape may be another one of as
 * many elements. */
void pl_lower_add(struct pl_lower *l, size_t i, size_t k, struct pl_hlo_value grad);

/* The leaf of a tensor; NULL if it is none. */
struct pl_lower_leaf *pl_lower_leaf(const struct pl_lower *l, const plume_tensor *t);

/* Sets node i's result, in the shape of its tensor. */
void pl_lower_set(struct pl_lower *l, size_t i, struct pl_hlo_value v);

/* x [rows, last dimension]. */
struct pl_hlo_value pl_lower_rows(struct pl_hlo *h, struct pl_hlo_value x);

/* erf(x) in f32. */
struct pl_hlo_value pl_lower_erf(struct pl_hlo *h, struct pl_hlo_value x);

/* act(x), and dy act'(x); y = act(x) is used by relu alone. */
struct pl_hlo_value
pl_lower_activate(struct pl_hlo *h, enum pl_activation act, struct pl_hlo_value x);
struct pl_hlo_value pl_lower_slope(struct pl_hlo *h,
                                   enum pl_activation act,
                                   struct pl_hlo_value x,
                                   struct pl_hlo_value dy);

#endif
