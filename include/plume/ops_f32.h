/* SPDX-License-Identifier: MIT */
/* Ops that run in f32 at each level of mixed precision; the other headers include this. A function
 * made of ops needs them where its steps leave the range of 16 bits, and its result does not: a sum
 * of squares, or the number of a batch's rows. In 32 and 64 bits they are the ops of plume/ops.h.
 * The functions are parts of those headers' functions; modules have no need of them. */
#include "plume/ops.h" /* which includes this before the functions that need it: so not in the guard */

#ifndef PL_OPS_F32_H
#define PL_OPS_F32_H

static inline plume_tensor *pl_f32_call(struct plume_context *pl,
                                        enum plume_op op,
                                        plume_tensor *const *in,
                                        size_t n_in,
                                        struct plume_op_args args)
{
    args.i[PLUME_OP_ARG_F32] = 1;
    return plume_op_call(pl, op, in, n_in, &args);
}

/* which: 0 add, 1 sub, 2 mul, 3 div, as in plume/ops.h. */
static inline plume_tensor *
pl_f32_binary(struct plume_context *pl, plume_tensor *a, plume_tensor *b, int which)
{
    plume_tensor *in[] = {a, b};

    return pl_f32_call(pl, PLUME_OP_BINARY, in, 2, (struct plume_op_args){{which}, {0}});
}

static inline plume_tensor *pl_f32_add(struct plume_context *pl, plume_tensor *a, plume_tensor *b)
{
    return pl_f32_binary(pl, a, b, 0);
}

static inline plume_tensor *pl_f32_sub(struct plume_context *pl, plume_tensor *a, plume_tensor *b)
{
    return pl_f32_binary(pl, a, b, 1);
}

static inline plume_tensor *pl_f32_mul(struct plume_context *pl, plume_tensor *a, plume_tensor *b)
{
    return pl_f32_binary(pl, a, b, 2);
}

static inline plume_tensor *pl_f32_div(struct plume_context *pl, plume_tensor *a, plume_tensor *b)
{
    return pl_f32_binary(pl, a, b, 3);
}

static inline plume_tensor *
pl_f32_scale(struct plume_context *pl, plume_tensor *x, double scale, double shift)
{
    return pl_f32_call(pl, PLUME_OP_AFFINE, &x, 1, (struct plume_op_args){{0}, {scale, shift}});
}

static inline plume_tensor *pl_f32_detach(struct plume_context *pl, plume_tensor *x)
{
    return pl_f32_call(pl, PLUME_OP_DETACH, &x, 1, (struct plume_op_args){{0}, {0}});
}

static inline plume_tensor *
pl_f32_sum(struct plume_context *pl, plume_tensor *x, size_t first, size_t end)
{
    return pl_f32_call(pl, PLUME_OP_REDUCE, &x, 1,
                       (struct plume_op_args){{(int64_t)first, (int64_t)end, 0, 0}, {0}});
}

static inline plume_tensor *
pl_f32_mean(struct plume_context *pl, plume_tensor *x, size_t first, size_t end)
{
    return pl_f32_call(pl, PLUME_OP_REDUCE, &x, 1,
                       (struct plume_op_args){{(int64_t)first, (int64_t)end, 0, 1}, {0}});
}

/* plume_gather_but(), or without `skips` plume_gather(). */
static inline plume_tensor *pl_f32_gather(struct plume_context *pl,
                                          plume_tensor *x,
                                          size_t dim,
                                          plume_tensor *index,
                                          int shared,
                                          int skips,
                                          int32_t skip)
{
    plume_tensor *in[] = {x, index};

    return pl_f32_call(pl, PLUME_OP_GATHER, in, 2,
                       (struct plume_op_args){{(int64_t)dim, shared, skips, skip}, {0}});
}

/* fn: an enum plume_map. */
static inline plume_tensor *
pl_f32_map(struct plume_context *pl, plume_tensor *x, int fn, double p, double q)
{
    return pl_f32_call(pl, PLUME_OP_MAP, &x, 1, (struct plume_op_args){{fn}, {p, q}});
}

/* which: an enum plume_choose; c may be NULL. */
static inline plume_tensor *pl_f32_choose(
    struct plume_context *pl, plume_tensor *a, plume_tensor *b, plume_tensor *c, int which)
{
    plume_tensor *in[] = {a, b, c};

    return pl_f32_call(pl, PLUME_OP_CHOOSE, in, c ? 3 : 2, (struct plume_op_args){{which}, {0}});
}

#endif
