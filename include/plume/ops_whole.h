/* SPDX-License-Identifier: MIT */
/* Whole numbers: labels, indices and positions, tensors of PLUME_I32. Include it after
 * plume/module.h. The second tensor has the first one's shape, or the end of it, or one element,
 * such as plume_whole_number(). No gradients.
 *
 * There is no a > b: where both have one shape it is b < a, else plume_scale(pl, plume_whole_le(pl,
 * a, b), -1, 1). Real numbers become whole ones by plume_argmax(), plume_argmin() and
 * plume_topk_index() only. */
#ifndef PL_OPS_WHOLE_H
#define PL_OPS_WHOLE_H

#include "plume/ops.h"

/* By number: new ones are appended. The functions below say what they are. */
enum plume_whole {
    PLUME_WHOLE_ADD = 0,
    PLUME_WHOLE_SUB,
    PLUME_WHOLE_MUL,
    PLUME_WHOLE_DIV,
    PLUME_WHOLE_MOD,
    PLUME_WHOLE_LT,
    PLUME_WHOLE_LE,
    PLUME_WHOLE_EQ,
    PLUME_WHOLE_NE,
    PLUME_WHOLE_VALUE,
};

static inline plume_tensor *plume_whole_of_two(struct plume_context *pl,
                                               plume_tensor *a,
                                               plume_tensor *b,
                                               enum plume_whole which)
{
    plume_tensor *in[] = {a, b};
    struct plume_op_args args = {{(int64_t)which}, {0}};

    return plume_op_call(pl, PLUME_OP_WHOLE, in, 2, &args);
}

/* The number n as a tensor, PLUME_I32 [1]. */
static inline plume_tensor *plume_whole_number(struct plume_context *pl, int32_t n)
{
    struct plume_op_args args = {{1, n}, {0}};

    return plume_op_call(pl, PLUME_OP_RANGE, NULL, 0, &args);
}

/* a + b. What exceeds 32 bits loses the upper ones, as in PyTorch; so do the following two. */
static inline plume_tensor *
plume_whole_add(struct plume_context *pl, plume_tensor *a, plume_tensor *b)
{
    return plume_whole_of_two(pl, a, b, PLUME_WHOLE_ADD);
}

/* a - b. */
static inline plume_tensor *
plume_whole_sub(struct plume_context *pl, plume_tensor *a, plume_tensor *b)
{
    return plume_whole_of_two(pl, a, b, PLUME_WHOLE_SUB);
}

/* a b. */
static inline plume_tensor *
plume_whole_mul(struct plume_context *pl, plume_tensor *a, plume_tensor *b)
{
    return plume_whole_of_two(pl, a, b, PLUME_WHOLE_MUL);
}

/* a / b, rounded down (Python's //, torch.floor_divide). By 0 it is -2^31, which no op takes as an
 * index; so is the remainder. */
static inline plume_tensor *
plume_whole_div(struct plume_context *pl, plume_tensor *a, plume_tensor *b)
{
    return plume_whole_of_two(pl, a, b, PLUME_WHOLE_DIV);
}

/* The remainder of that, of the sign of b (Python's %, torch.remainder). */
static inline plume_tensor *
plume_whole_mod(struct plume_context *pl, plume_tensor *a, plume_tensor *b)
{
    return plume_whole_of_two(pl, a, b, PLUME_WHOLE_MOD);
}

/* 1 where a < b, else 0: real numbers, a mask for plume_where(); so are the following. */
static inline plume_tensor *
plume_whole_lt(struct plume_context *pl, plume_tensor *a, plume_tensor *b)
{
    return plume_whole_of_two(pl, a, b, PLUME_WHOLE_LT);
}

/* a <= b. */
static inline plume_tensor *
plume_whole_le(struct plume_context *pl, plume_tensor *a, plume_tensor *b)
{
    return plume_whole_of_two(pl, a, b, PLUME_WHOLE_LE);
}

/* a == b. */
static inline plume_tensor *
plume_whole_eq(struct plume_context *pl, plume_tensor *a, plume_tensor *b)
{
    return plume_whole_of_two(pl, a, b, PLUME_WHOLE_EQ);
}

/* a != b. */
static inline plume_tensor *
plume_whole_ne(struct plume_context *pl, plume_tensor *a, plume_tensor *b)
{
    return plume_whole_of_two(pl, a, b, PLUME_WHOLE_NE);
}

/* a as real numbers, rounded to the type: f32 has all up to 2^24. */
static inline plume_tensor *plume_whole_to_real(struct plume_context *pl, plume_tensor *a)
{
    return plume_whole_of_two(pl, a, plume_whole_number(pl, 0), PLUME_WHOLE_VALUE);
}

#endif
