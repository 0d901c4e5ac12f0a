/* SPDX-License-Identifier: MIT */
/* The rest of plume/ops.h, which includes this: functions of each element, comparisons, choices and
 * constants. Values and gradients are PyTorch's, also at kinks and for numbers that are not finite.
 */
#ifndef PL_OPS_MATH_H
#define PL_OPS_MATH_H

#include "plume/ops.h" /* which includes this at its end; whichever is first, both are there */

#include <float.h>

/* By number: new ones are appended. The functions below say what they are. */
enum plume_map {
    PLUME_MAP_EXP = 1,
    PLUME_MAP_LOG,
    PLUME_MAP_SQRT,
    PLUME_MAP_RSQRT,
    PLUME_MAP_POW,
    PLUME_MAP_ABS,
    PLUME_MAP_CLAMP,
    PLUME_MAP_SOFTPLUS,
    PLUME_MAP_ELU,
    PLUME_MAP_LEAKY,
    PLUME_MAP_SIN,
    PLUME_MAP_COS,
    PLUME_MAP_FLOOR,
    PLUME_MAP_CEIL,
    PLUME_MAP_ROUND,
    PLUME_MAP_SIGN,
    PLUME_MAP_ERF,
    PLUME_MAP_TAN,
};

enum plume_choose {
    PLUME_CHOOSE_MAX = 0,
    PLUME_CHOOSE_MIN,
    PLUME_CHOOSE_WHERE,
    PLUME_CHOOSE_LT,
    PLUME_CHOOSE_LE,
    PLUME_CHOOSE_EQ,
    PLUME_CHOOSE_NE,
};

/* fn of each element of x, with the parameters p and q where it has any; of x's shape. */
static inline plume_tensor *
plume_map(struct plume_context *pl, plume_tensor *x, enum plume_map fn, double p, double q)
{
    struct plume_op_args args = {{(int64_t)fn}, {p, q}};

    return plume_op_call(pl, PLUME_OP_MAP, &x, 1, &args);
}

static inline plume_tensor *plume_exp(struct plume_context *pl, plume_tensor *x)
{
    return plume_map(pl, x, PLUME_MAP_EXP, 0, 0);
}

/* The natural logarithm; plume_log() is another thing, it reports a metric. */
static inline plume_tensor *plume_ln(struct plume_context *pl, plume_tensor *x)
{
    return plume_map(pl, x, PLUME_MAP_LOG, 0, 0);
}

static inline plume_tensor *plume_sqrt(struct plume_context *pl, plume_tensor *x)
{
    return plume_map(pl, x, PLUME_MAP_SQRT, 0, 0);
}

/* 1 / sqrt(x). */
static inline plume_tensor *plume_rsqrt(struct plume_context *pl, plume_tensor *x)
{
    return plume_map(pl, x, PLUME_MAP_RSQRT, 0, 0);
}

/* x^power; NaN for a negative x and a power with a fraction. */
static inline plume_tensor *plume_pow(struct plume_context *pl, plume_tensor *x, double power)
{
    return plume_map(pl, x, PLUME_MAP_POW, power, 0);
}

/* |x|; its gradient at 0 is 0. */
static inline plume_tensor *plume_abs(struct plume_context *pl, plume_tensor *x)
{
    return plume_map(pl, x, PLUME_MAP_ABS, 0, 0);
}

/* x, but `least` where it is smaller and `most` where it is larger; least <= most, both may be
 * infinite. The gradient passes where x is between them, and is 0 at the bounds (as PyTorch 2.15's;
 * older releases passed it there, too). */
static inline plume_tensor *
plume_clamp(struct plume_context *pl, plume_tensor *x, double least, double most)
{
    return plume_map(pl, x, PLUME_MAP_CLAMP, least, most);
}

/* log(1 + e^x). */
static inline plume_tensor *plume_softplus(struct plume_context *pl, plume_tensor *x)
{
    return plume_map(pl, x, PLUME_MAP_SOFTPLUS, 0, 0);
}

/* x where it is positive, else alpha (e^x - 1) (arXiv 1511.07289; alpha is usually 1). */
static inline plume_tensor *plume_elu(struct plume_context *pl, plume_tensor *x, double alpha)
{
    return plume_map(pl, x, PLUME_MAP_ELU, alpha, 0);
}

/* x where it is positive, else slope x (PyTorch's default slope is 0.01). */
static inline plume_tensor *
plume_leaky_relu(struct plume_context *pl, plume_tensor *x, double slope)
{
    return plume_map(pl, x, PLUME_MAP_LEAKY, slope, 0);
}

/* Of radians. */
static inline plume_tensor *plume_sin(struct plume_context *pl, plume_tensor *x)
{
    return plume_map(pl, x, PLUME_MAP_SIN, 0, 0);
}

static inline plume_tensor *plume_cos(struct plume_context *pl, plume_tensor *x)
{
    return plume_map(pl, x, PLUME_MAP_COS, 0, 0);
}

static inline plume_tensor *plume_tan(struct plume_context *pl, plume_tensor *x)
{
    return plume_map(pl, x, PLUME_MAP_TAN, 0, 0);
}

/* The error function, 2 / sqrt(pi) times the integral of e^(-t^2) from 0 to x. */
static inline plume_tensor *plume_erf(struct plume_context *pl, plume_tensor *x)
{
    return plume_map(pl, x, PLUME_MAP_ERF, 0, 0);
}

/* The largest integer of at most x, a real number. The gradient is 0 everywhere; so are those of
 * the following three. */
static inline plume_tensor *plume_floor(struct plume_context *pl, plume_tensor *x)
{
    return plume_map(pl, x, PLUME_MAP_FLOOR, 0, 0);
}

/* The smallest integer of at least x. */
static inline plume_tensor *plume_ceil(struct plume_context *pl, plume_tensor *x)
{
    return plume_map(pl, x, PLUME_MAP_CEIL, 0, 0);
}

/* The nearest integer; of a half the even one: 2 for 2.5. */
static inline plume_tensor *plume_round(struct plume_context *pl, plume_tensor *x)
{
    return plume_map(pl, x, PLUME_MAP_ROUND, 0, 0);
}

/* -1, 0 or 1; 0 for a NaN. */
static inline plume_tensor *plume_sign(struct plume_context *pl, plume_tensor *x)
{
    return plume_map(pl, x, PLUME_MAP_SIGN, 0, 0);
}

/* Shapes of all that follows are broadcast as plume_add()'s. */

static inline plume_tensor *plume_choose_of_two(struct plume_context *pl,
                                                plume_tensor *a,
                                                plume_tensor *b,
                                                enum plume_choose which)
{
    plume_tensor *in[] = {a, b};
    struct plume_op_args args = {{(int64_t)which}, {0}};

    return plume_op_call(pl, PLUME_OP_CHOOSE, in, 2, &args);
}

/* The larger of two elements; NaN if one of them is. The gradient goes to the larger one, half to
 * each of two equal ones. */
static inline plume_tensor *
plume_maximum(struct plume_context *pl, plume_tensor *a, plume_tensor *b)
{
    return plume_choose_of_two(pl, a, b, PLUME_CHOOSE_MAX);
}

/* The smaller one, in the same way. */
static inline plume_tensor *
plume_minimum(struct plume_context *pl, plume_tensor *a, plume_tensor *b)
{
    return plume_choose_of_two(pl, a, b, PLUME_CHOOSE_MIN);
}

/* 1 where a < b, else 0: a mask for plume_where(), of a's type and without a gradient; so are the
 * following. A NaN is unequal to all, and neither smaller nor larger. */
static inline plume_tensor *plume_lt(struct plume_context *pl, plume_tensor *a, plume_tensor *b)
{
    return plume_choose_of_two(pl, a, b, PLUME_CHOOSE_LT);
}

/* a <= b. */
static inline plume_tensor *plume_le(struct plume_context *pl, plume_tensor *a, plume_tensor *b)
{
    return plume_choose_of_two(pl, a, b, PLUME_CHOOSE_LE);
}

/* a > b. */
static inline plume_tensor *plume_gt(struct plume_context *pl, plume_tensor *a, plume_tensor *b)
{
    return plume_lt(pl, b, a);
}

/* a >= b. */
static inline plume_tensor *plume_ge(struct plume_context *pl, plume_tensor *a, plume_tensor *b)
{
    return plume_le(pl, b, a);
}

/* a == b. */
static inline plume_tensor *plume_eq(struct plume_context *pl, plume_tensor *a, plume_tensor *b)
{
    return plume_choose_of_two(pl, a, b, PLUME_CHOOSE_EQ);
}

/* a != b. */
static inline plume_tensor *plume_ne(struct plume_context *pl, plume_tensor *a, plume_tensor *b)
{
    return plume_choose_of_two(pl, a, b, PLUME_CHOOSE_NE);
}

/* yes where mask is not 0, else no. The mask gets no gradient; neither does what was not chosen,
 * even where it is not finite. */
static inline plume_tensor *
plume_where(struct plume_context *pl, plume_tensor *mask, plume_tensor *yes, plume_tensor *no)
{
    plume_tensor *in[] = {mask, yes, no};
    struct plume_op_args args = {{(int64_t)PLUME_CHOOSE_WHERE}, {0}};

    return plume_op_call(pl, PLUME_OP_CHOOSE, in, 3, &args);
}

/* The largest finite number of the type that plume_full() makes, [1]. */
static inline plume_tensor *plume_largest(struct plume_context *pl)
{
    struct plume_op_args args = {{1, 1}, {DBL_MAX, 1}};

    return plume_op_call(pl, PLUME_OP_FULL, NULL, 0, &args);
}

/* x, but `value` where mask is not 0. */
static inline plume_tensor *
plume_masked_fill(struct plume_context *pl, plume_tensor *x, plume_tensor *mask, double value)
{
    const size_t one = 1;

    return plume_where(pl, mask, plume_full(pl, 1, &one, value), x);
}

/* Random tensors: numbers depend on the seed, the step and the rank, as plume_dropout()'s, and are
 * the same on every device. No gradient. */
enum plume_random {
    PLUME_RANDOM_UNIFORM = 0,
    PLUME_RANDOM_BERNOULLI,
    PLUME_RANDOM_NORMAL,
};

static inline plume_tensor *plume_random(struct plume_context *pl,
                                         enum plume_random kind,
                                         size_t rank,
                                         const size_t *shape,
                                         double p,
                                         double q)
{
    struct plume_op_args args = {{(int64_t)kind, (int64_t)rank}, {p, q}};

    if (rank && !shape)
        return plume_refuse_null(pl, "a random tensor: the shape is NULL");
    for (size_t i = 0; i < rank && i < PLUME_RANK_MAX; i++)
        args.i[i + 2] = (int64_t)shape[i];
    return plume_op_call(pl, PLUME_OP_RANDOM, NULL, 0, &args);
}

/* Uniform in [low, high); rounding to the type can give high itself: in 16 bits (O3) often, bf16
 * about once in 500 for 0 to 1. */
static inline plume_tensor *
plume_uniform(struct plume_context *pl, size_t rank, const size_t *shape, double low, double high)
{
    return plume_random(pl, PLUME_RANDOM_UNIFORM, rank, shape, low, high);
}

/* 1 with the probability p, else 0. */
static inline plume_tensor *
plume_bernoulli(struct plume_context *pl, size_t rank, const size_t *shape, double p)
{
    return plume_random(pl, PLUME_RANDOM_BERNOULLI, rank, shape, p, 0);
}

static inline plume_tensor *plume_normal(
    struct plume_context *pl, size_t rank, const size_t *shape, double mean, double deviation)
{
    return plume_random(pl, PLUME_RANDOM_NORMAL, rank, shape, mean, deviation);
}

#endif
