/* SPDX-License-Identifier: MIT */
/* Lowers a recorded tape to StableHLO: its ops forward, and their gradients backward. Nothing runs
 * and no memory is planned; a tape need not be prepared. Numbers are f32, labels i32. An op of bf16
 * tensors computes in f32, and its results and gradients are rounded, as elsewhere; its products
 * may round their factors, too.
 *
 *     check -> forward -> (pl_lower_value) -> backward -> finish */
#ifndef PL_RUNTIME_ENGINE_XLA_LOWER_H
#define PL_RUNTIME_ENGINE_XLA_LOWER_H

#include "runtime/engine/tape/tape.h"
#include "runtime/engine/xla/hlo.h"

#define PL_LOWER_KEPT 4 /* values that an op keeps for its gradient */

/* A tensor that no op makes: a parameter, a buffer, or a field of the batch. */
struct pl_lower_leaf {
    const plume_tensor *tensor;
    struct pl_hlo_value value; /* set by the caller; of a buffer, the newest */
    struct pl_hlo_value grad;  /* after backward; none: no op has one for it */
};

struct pl_lower {
    struct pl_hlo *h; /* borrowed, as are the next three */
    const struct pl_tape *tape;
    struct pl_lower_leaf *leaves;
    size_t n_leaves;
    unsigned normed;          /* replicas over which batch norm has its statistics; 0, 1: its own */
    struct pl_hlo_value draw; /* ui32[4]: the tape's seed, then its step, low words first */

    /* By node: */
    struct pl_hlo_value *out, *grad;
    struct pl_hlo_value (*kept)[PL_LOWER_KEPT];
};

/* Is there a lowering for every op? -ENOTSUP names those without one, and types that are not
 * f32, bf16 or i32. */
int pl_lower_check(const struct pl_tape *tape, struct pl_error *err);

/* Lowers all nodes. -EINVAL: a tensor that is neither the tape's nor a leaf. -ENOMEM. */
int pl_lower_forward(struct pl_lower *l, struct pl_error *err);

/* The value of a tensor of the tape or of a leaf; none if it is neither. */
struct pl_hlo_value pl_lower_value(const struct pl_lower *l, const plume_tensor *t);

/* Lowers the gradients of the loss, one element. -EINVAL if it depends on no parameter. */
int pl_lower_backward(struct pl_lower *l, const plume_tensor *loss, struct pl_error *err);

void pl_lower_finish(struct pl_lower *l);

#endif
