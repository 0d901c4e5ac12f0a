/* SPDX-License-Identifier: MIT */
/* Functions of each element, comparisons and choices, constants and repetitions. */
#include "runtime/engine/xla/lower_private.h"

#include <math.h>

static struct pl_hlo_value zero(struct pl_hlo *h, struct pl_hlo_value v)
{
    return pl_hlo_fill_like(h, v, 0);
}

static struct pl_hlo_value is_nan(struct pl_hlo *h, struct pl_hlo_value x)
{
    return pl_hlo_compare(h, "NE", x, x);
}

/* -1, 0 or 1; 0 for a NaN, of which StableHLO's is a NaN. */
static struct pl_hlo_value sign(struct pl_hlo *h, struct pl_hlo_value x)
{
    return pl_hlo_select(h, is_nan(h, x), zero(h, x), pl_hlo_one(h, "sign", x));
}

static struct pl_hlo_value times(struct pl_hlo *h, struct pl_hlo_value a, struct pl_hlo_value b)
{
    return pl_hlo_two(h, "multiply", a, b);
}

/* yes where x > 0, else no. */
static struct pl_hlo_value where_positive(struct pl_hlo *h,
                                          struct pl_hlo_value x,
                                          struct pl_hlo_value yes,
                                          struct pl_hlo_value no)
{
    return pl_hlo_select(h, pl_hlo_compare(h, "GT", x, zero(h, x)), yes, no);
}

static struct pl_hlo_value power(struct pl_hlo *h, struct pl_hlo_value x, double p)
{
    return pl_hlo_with(h, "power", x, p);
}

static struct pl_hlo_value
function(struct pl_hlo *h, enum pl_map fn, double p, double q, struct pl_hlo_value x)
{
    struct pl_hlo_value t;

    switch (fn) {
    case PL_MAP_EXP:
        return pl_hlo_one(h, "exponential", x);
    case PL_MAP_LOG:
        return pl_hlo_one(h, "log", x);
    case PL_MAP_SQRT:
        return pl_hlo_one(h, "sqrt", x);
    case PL_MAP_RSQRT:
        return pl_hlo_one(h, "rsqrt", x);
    case PL_MAP_POW:
        return power(h, x, p);
    case PL_MAP_ABS:
        return pl_hlo_one(h, "abs", x);
    case PL_MAP_CLAMP:
        return pl_hlo_with(h, "minimum", pl_hlo_with(h, "maximum", x, p), q);
    case PL_MAP_SOFTPLUS: /* max(x, 0) + log(1 + e^-|x|) */
        t = pl_hlo_one(h, "negate", pl_hlo_one(h, "abs", x));
        t = pl_hlo_one(h, "log_plus_one", pl_hlo_one(h, "exponential", t));
        return pl_hlo_two(h, "add", pl_hlo_with(h, "maximum", x, 0), t);
    case PL_MAP_ELU:
        t = pl_hlo_with(h, "multiply", pl_hlo_one(h, "exponential_minus_one", x), p);
        return where_positive(h, x, x, t);
    case PL_MAP_LEAKY:
        return where_positive(h, x, x, pl_hlo_with(h, "multiply", x, p));
    case PL_MAP_SIN:
        return pl_hlo_one(h, "sine", x);
    case PL_MAP_COS:
        return pl_hlo_one(h, "cosine", x);
    case PL_MAP_FLOOR:
        return pl_hlo_one(h, "floor", x);
    case PL_MAP_CEIL:
        return pl_hlo_one(h, "ceil", x);
    case PL_MAP_ROUND:
        return pl_hlo_one(h, "round_nearest_even", x);
    case PL_MAP_SIGN:
        return sign(h, x);
    case PL_MAP_ERF:
        return pl_lower_erf(h, x);
    case PL_MAP_TAN:
        return pl_hlo_two(h, "divide", pl_hlo_one(h, "sine", x), pl_hlo_one(h, "cosine", x));
    case PL_MAP_FILL: /* no default: the compiler names a function that has no case */
        break;
    }
    return pl_hlo_fill_like(h, x, p);
}

/* 1 where p < x < q, else 0. An infinite bound is none: x itself may be infinite. */
static struct pl_hlo_value is_between(struct pl_hlo *h, struct pl_hlo_value x, double p, double q)
{
    bool from = (float)p != -INFINITY, to = (float)q != INFINITY;
    struct pl_hlo_value above = from ? pl_hlo_compare(h, "GT", x, pl_hlo_fill_like(h, x, p)) : x;
    struct pl_hlo_value below = to ? pl_hlo_compare(h, "LT", x, pl_hlo_fill_like(h, x, q)) : x;

    if (!from && !to)
        return pl_hlo_fill_like(h, x, 1);
    return pl_hlo_convert(h,
                          !from ? below
                          : !to ? above
                                : pl_hlo_two(h, "and", above, below),
                          "f32");
}

/* f'(x) for y = f(x). */
static struct pl_hlo_value slope(struct pl_hlo *h,
                                 enum pl_map fn,
                                 double p,
                                 double q,
                                 struct pl_hlo_value x,
                                 struct pl_hlo_value y)
{
    struct pl_hlo_value one = pl_hlo_fill_like(h, x, 1), t;

    switch (fn) {
    case PL_MAP_EXP:
        return y;
    case PL_MAP_LOG:
        return pl_hlo_two(h, "divide", one, x);
    case PL_MAP_SQRT:
        return pl_hlo_two(h, "divide", pl_hlo_fill_like(h, x, 0.5), y);
    case PL_MAP_RSQRT:
        return pl_hlo_with(h, "multiply", times(h, y, times(h, y, y)), -0.5);
    case PL_MAP_POW:
        return p == 0 ? zero(h, x) : pl_hlo_with(h, "multiply", power(h, x, p - 1), p);
    case PL_MAP_ABS:
        return sign(h, x);
    case PL_MAP_CLAMP:
        return is_between(h, x, p, q);
    case PL_MAP_SOFTPLUS:
        return pl_hlo_one(h, "logistic", x);
    case PL_MAP_ELU:
        t = pl_hlo_with(h, "multiply", pl_hlo_one(h, "exponential", x), p);
        return where_positive(h, x, one, t);
    case PL_MAP_LEAKY:
        return where_positive(h, x, one, pl_hlo_fill_like(h, x, p));
    case PL_MAP_SIN:
        return pl_hlo_one(h, "cosine", x);
    case PL_MAP_COS:
        return pl_hlo_one(h, "negate", pl_hlo_one(h, "sine", x));
    case PL_MAP_ERF:
        t = pl_hlo_one(h, "negate", times(h, x, x));
        return pl_hlo_with(h, "multiply", pl_hlo_one(h, "exponential", t), M_2_SQRTPI);
    case PL_MAP_TAN:
        return pl_hlo_with(h, "add", times(h, y, y), 1);
    case PL_MAP_FILL:
    case PL_MAP_FLOOR:
    case PL_MAP_CEIL:
    case PL_MAP_ROUND:
    case PL_MAP_SIGN:
        break;
    }
    return zero(h, x);
}

void pl_lower_map_forward(struct pl_lower *l, size_t i)
{
    const struct pl_attr *at = &pl_lower_node(l, i)->attr;

    pl_lower_set(l, i,
                 function(l->h, (enum pl_map)at->i[0], at->f[0], at->f[1], pl_lower_in(l, i, 0)));
}

void pl_lower_map_backward(struct pl_lower *l, size_t i, struct pl_hlo_value dy)
{
    const struct pl_attr *at = &pl_lower_node(l, i)->attr;
    struct pl_hlo_value s =
        slope(l->h, (enum pl_map)at->i[0], at->f[0], at->f[1], pl_lower_in(l, i, 0), l->out[i]);

    pl_lower_add(l, i, 0, times(l->h, dy, s));
}

/* 0, whatever dy is. */
void pl_lower_round_backward(struct pl_lower *l, size_t i, struct pl_hlo_value dy)
{
    pl_lower_add(l, i, 0, zero(l->h, dy));
}

void pl_lower_full_forward(struct pl_lower *l, size_t i)
{
    const struct pl_node *node = pl_lower_node(l, i);

    pl_lower_set(l, i,
                 pl_hlo_fill(l->h, "f32", node->out->rank, node->out->shape, node->attr.f[0]));
}

/* ---- maximum, where, compare ---- */

void pl_lower_choose_forward(struct pl_lower *l, size_t i)
{
    static const char *const how[] = {
        [PL_CHOOSE_LT] = "LT", [PL_CHOOSE_LE] = "LE", [PL_CHOOSE_EQ] = "EQ", [PL_CHOOSE_NE] = "NE"};
    enum pl_choose op = (enum pl_choose)pl_lower_node(l, i)->attr.i[0];
    struct pl_hlo_value a = pl_lower_in(l, i, 0), b = pl_lower_in(l, i, 1);

    switch (op) { /* no default: the compiler names an operation that has no case */
    case PL_CHOOSE_WHERE:
        a = pl_hlo_select(l->h, pl_hlo_compare(l->h, "NE", a, zero(l->h, a)), b,
                          pl_lower_in(l, i, 2));
        break;
    case PL_CHOOSE_MAX:
    case PL_CHOOSE_MIN:
        a = pl_hlo_two(l->h, op == PL_CHOOSE_MAX ? "maximum" : "minimum", a, b);
        break;
    case PL_CHOOSE_LT:
    case PL_CHOOSE_LE:
    case PL_CHOOSE_EQ:
    case PL_CHOOSE_NE:
        a = pl_hlo_convert(l->h, pl_hlo_compare(l->h, how[op], a, b), "f32");
    }
    pl_lower_set(l, i, a);
}

/* a's share of dy: all where it was chosen, half where both are equal, all to both if one is a NaN.
 */
static struct pl_hlo_value
chosen(struct pl_hlo *h, const char *how, struct pl_hlo_value a, struct pl_hlo_value b)
{
    struct pl_hlo_value w = pl_hlo_convert(h, pl_hlo_compare(h, how, a, b), "f32");

    w = pl_hlo_select(h, pl_hlo_compare(h, "EQ", a, b), pl_hlo_fill_like(h, w, 0.5), w);
    return pl_hlo_select(h, pl_hlo_two(h, "or", is_nan(h, a), is_nan(h, b)),
                         pl_hlo_fill_like(h, w, 1), w);
}

void pl_lower_choose_backward(struct pl_lower *l, size_t i, struct pl_hlo_value dy)
{
    enum pl_choose op = (enum pl_choose)pl_lower_node(l, i)->attr.i[0];
    struct pl_hlo_value a = pl_lower_in(l, i, 0), b = pl_lower_in(l, i, 1), none = zero(l->h, dy);
    const char *how = op == PL_CHOOSE_MAX ? "GT" : "LT";

    if (op == PL_CHOOSE_WHERE) {
        a = pl_hlo_compare(l->h, "NE", a, zero(l->h, a));
        pl_lower_add(l, i, 0, none);
        pl_lower_add(l, i, 1, pl_hlo_select(l->h, a, dy, none));
        pl_lower_add(l, i, 2, pl_hlo_select(l->h, a, none, dy));
        return;
    }
    pl_lower_add(l, i, 0, times(l->h, dy, chosen(l->h, how, a, b)));
    pl_lower_add(l, i, 1, times(l->h, dy, chosen(l->h, how, b, a)));
}

/* ---- expand: [outer, inner] to [outer, n, inner] ---- */

void pl_lower_expand_forward(struct pl_lower *l, size_t i)
{
    const int64_t *at = pl_lower_node(l, i)->attr.i;
    size_t shape[] = {(size_t)at[0], (size_t)at[1], (size_t)at[2]};
    struct pl_hlo_value x = pl_hlo_reshape2(l->h, pl_lower_in(l, i, 0), shape[0], shape[2]);

    pl_lower_set(l, i, pl_hlo_broadcast(l->h, x, (size_t[]){0, 2}, 3, shape));
}

void pl_lower_expand_backward(struct pl_lower *l, size_t i, struct pl_hlo_value dy)
{
    const int64_t *at = pl_lower_node(l, i)->attr.i;
    size_t shape[] = {(size_t)at[0], (size_t)at[1], (size_t)at[2]};

    if (pl_lower_wants(l, i, 0))
        pl_lower_add(l, i, 0,
                     pl_hlo_reduce(l->h, "add", pl_hlo_reshape(l->h, dy, 3, shape), 1u << 1));
}
