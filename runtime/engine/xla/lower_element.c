/* SPDX-License-Identifier: MIT */
/* Elementwise ops, and sums over dimensions. */
#include "runtime/engine/xla/lower_private.h"

#include <math.h>

/* A polynomial in x, from its highest coefficient to its lowest. */
static struct pl_hlo_value
polynomial(struct pl_hlo *h, struct pl_hlo_value x, const double *c, size_t n)
{
    struct pl_hlo_value sum = pl_hlo_fill_like(h, x, c[0]);

    for (size_t i = 1; i < n; i++)
        sum = pl_hlo_with(h, "add", pl_hlo_two(h, "multiply", sum, x), c[i]);
    return sum;
}

/* erf(x) in f32: x P(x^2) / Q(x^2) for |x| < 3.83, where it reaches 1. The coefficients are those
 * of Eigen (unsupported/Eigen/SpecialFunctions), as XLA's own expansion has them; StableHLO has no
 * erf. */
struct pl_hlo_value pl_lower_erf(struct pl_hlo *h, struct pl_hlo_value x)
{
    static const double p[] = {0.00022905065861350646, 0.0034082910107109506, 0.050955695062380861,
                               0.18520832239976145, 1.128379143519084};
    static const double q[] = {-1.1791602954361697e-7,
                               0.000023547966471313185,
                               0.0010179625278914885,
                               0.014070470171167667,
                               0.11098505178285362,
                               0.49746925110067538,
                               1};
    const double most = 3.832506856900711;
    struct pl_hlo_value square;

    x = pl_hlo_with(h, "minimum", pl_hlo_with(h, "maximum", x, -most), most);
    square = pl_hlo_two(h, "multiply", x, x);
    return pl_hlo_two(h, "divide",
                      pl_hlo_two(h, "multiply", x, polynomial(h, square, p, PL_COUNT(p))),
                      polynomial(h, square, q, PL_COUNT(q)));
}

/* Phi(x), the normal distribution. */
static struct pl_hlo_value normal_of(struct pl_hlo *h, struct pl_hlo_value x)
{
    struct pl_hlo_value e = pl_lower_erf(h, pl_hlo_with(h, "multiply", x, M_SQRT1_2));

    return pl_hlo_with(h, "multiply", pl_hlo_with(h, "add", e, 1), 0.5);
}

/* tanh(sqrt(2/pi) (x + 0.044715 x^3)) */
static struct pl_hlo_value gelu_tanh_of(struct pl_hlo *h, struct pl_hlo_value x)
{
    struct pl_hlo_value t = pl_hlo_two(h, "multiply", x, x);

    t = pl_hlo_with(h, "add", pl_hlo_with(h, "multiply", t, 0.044715), 1);
    t = pl_hlo_with(h, "multiply", pl_hlo_two(h, "multiply", t, x), sqrt(2 / M_PI));
    return pl_hlo_one(h, "tanh", t);
}

struct pl_hlo_value
pl_lower_activate(struct pl_hlo *h, enum pl_activation act, struct pl_hlo_value x)
{
    switch (act) {
    case PL_ACT_RELU:
        return pl_hlo_with(h, "maximum", x, 0);
    case PL_ACT_GELU:
        return pl_hlo_two(h, "multiply", x, normal_of(h, x));
    case PL_ACT_GELU_TANH:
        x = pl_hlo_with(h, "multiply",
                        pl_hlo_two(h, "multiply", x, pl_hlo_with(h, "add", gelu_tanh_of(h, x), 1)),
                        0.5);
        return x;
    case PL_ACT_SILU:
        return pl_hlo_two(h, "multiply", x, pl_hlo_one(h, "logistic", x));
    case PL_ACT_TANH:
        return pl_hlo_one(h, "tanh", x);
    case PL_ACT_SIGMOID:
        return pl_hlo_one(h, "logistic", x);
    case PL_ACT_NONE: /* no default: the compiler names an activation that has no case */
        break;
    }
    return x;
}

/* 1 - t^2 */
static struct pl_hlo_value one_less_square(struct pl_hlo *h, struct pl_hlo_value t)
{
    return pl_hlo_two(h, "subtract", pl_hlo_fill_like(h, t, 1), pl_hlo_two(h, "multiply", t, t));
}

static struct pl_hlo_value slope_of(struct pl_hlo *h, enum pl_activation act, struct pl_hlo_value x)
{
    struct pl_hlo_value t, u, square = {0};

    switch (act) {
    case PL_ACT_GELU: /* Phi(x) + x e^(-x^2 / 2) / sqrt(2 pi) */
        square = pl_hlo_two(h, "multiply", x, x);
        t = pl_hlo_one(h, "exponential", pl_hlo_with(h, "multiply", square, -0.5));
        t = pl_hlo_two(h, "multiply", x, pl_hlo_with(h, "multiply", t, 1 / sqrt(2 * M_PI)));
        return pl_hlo_two(h, "add", normal_of(h, x), t);
    case PL_ACT_GELU_TANH: /* (1 + t) / 2 + x (1 - t^2) sqrt(2/pi) (1 + 3 0.044715 x^2) / 2 */
        /* beyond +-10 it is 0 or 1, and x^2 may be infinite */
        x = pl_hlo_two(h, "maximum", x, pl_hlo_fill_like(h, x, -10));
        x = pl_hlo_two(h, "minimum", x, pl_hlo_fill_like(h, x, 10));
        t = gelu_tanh_of(h, x);
        square = pl_hlo_two(h, "multiply", x, x);
        u = pl_hlo_with(h, "add", pl_hlo_with(h, "multiply", square, 3 * 0.044715), 1);
        u = pl_hlo_two(h, "multiply", pl_hlo_two(h, "multiply", u, x), one_less_square(h, t));
        u = pl_hlo_with(h, "multiply", u, sqrt(2 / M_PI));
        return pl_hlo_with(h, "multiply", pl_hlo_two(h, "add", pl_hlo_with(h, "add", t, 1), u),
                           0.5);
    case PL_ACT_SILU: /* s + x s (1 - s) */
        t = pl_hlo_one(h, "logistic", x);
        u = pl_hlo_two(h, "subtract", t, pl_hlo_two(h, "multiply", t, t));
        return pl_hlo_two(h, "add", t, pl_hlo_two(h, "multiply", x, u));
    case PL_ACT_TANH:
        return one_less_square(h, pl_hlo_one(h, "tanh", x));
    case PL_ACT_SIGMOID:
        t = pl_hlo_one(h, "logistic", x);
        return pl_hlo_two(h, "subtract", t, pl_hlo_two(h, "multiply", t, t));
    case PL_ACT_NONE:
    case PL_ACT_RELU: /* the caller's */
        break;
    }
    return pl_hlo_fill_like(h, x, 1);
}

struct pl_hlo_value pl_lower_slope(struct pl_hlo *h,
                                   enum pl_activation act,
                                   struct pl_hlo_value x,
                                   struct pl_hlo_value dy)
{
    struct pl_hlo_value zero;

    if (act == PL_ACT_NONE)
        return dy;
    if (act != PL_ACT_RELU)
        return pl_hlo_two(h, "multiply", dy, slope_of(h, act, x));
    zero = pl_hlo_fill_like(h, x, 0);
    return pl_hlo_select(h, pl_hlo_compare(h, "LE", x, zero), zero, dy); /* a NaN passes dy */
}

void pl_lower_activation_forward(struct pl_lower *l, size_t i)
{
    enum pl_activation act = (enum pl_activation)pl_lower_node(l, i)->attr.i[0];

    pl_lower_set(l, i, pl_lower_activate(l->h, act, pl_lower_in(l, i, 0)));
}

void pl_lower_activation_backward(struct pl_lower *l, size_t i, struct pl_hlo_value dy)
{
    enum pl_activation act = (enum pl_activation)pl_lower_node(l, i)->attr.i[0];

    pl_lower_add(l, i, 0, pl_lower_slope(l->h, act, pl_lower_in(l, i, 0), dy));
}

/* a op b: b's elements are repeated along a's leading dimensions. kept[0] = a [n / m, m], kept[1] =
 * b, repeated. */

void pl_lower_binary_forward(struct pl_lower *l, size_t i)
{
    static const char *const ops[] = {[PL_BINARY_ADD] = "add",
                                      [PL_BINARY_SUB] = "subtract",
                                      [PL_BINARY_MUL] = "multiply",
                                      [PL_BINARY_DIV] = "divide"};
    const struct pl_node *node = pl_lower_node(l, i);
    size_t n = node->out->count, m = node->in[1]->count;
    struct pl_hlo_value a = pl_hlo_reshape2(l->h, pl_lower_in(l, i, 0), n / m, m);
    struct pl_hlo_value b = pl_hlo_reshape(l->h, pl_lower_in(l, i, 1), 1, &m);

    b = pl_hlo_along(l->h, b, 1, a);
    l->kept[i][0] = a;
    l->kept[i][1] = b;
    pl_lower_set(l, i, pl_hlo_two(l->h, ops[node->attr.i[0]], a, b));
}

void pl_lower_binary_backward(struct pl_lower *l, size_t i, struct pl_hlo_value dy)
{
    enum pl_binary op = (enum pl_binary)pl_lower_node(l, i)->attr.i[0];
    struct pl_hlo_value a = l->kept[i][0], b = l->kept[i][1], da, db;

    da = db = dy = pl_hlo_reshape_like(l->h, dy, a);
    if (op == PL_BINARY_SUB)
        db = pl_hlo_one(l->h, "negate", dy);
    if (op == PL_BINARY_MUL) {
        da = pl_hlo_two(l->h, "multiply", dy, b);
        db = pl_hlo_two(l->h, "multiply", dy, a);
    }
    /* b^2 and dy / b may overflow or underflow. XLA turns (a / b) / b into a / b^2; not so if a
     * sign changes in between. */
    if (op == PL_BINARY_DIV) {
        da = pl_hlo_two(l->h, "divide", dy, b);
        db = pl_hlo_one(l->h, "negate", pl_hlo_two(l->h, "divide", a, b));
        db = pl_hlo_two(l->h, "multiply", dy, pl_hlo_two(l->h, "divide", db, b));
    }
    pl_lower_add(l, i, 0, da);
    if (pl_lower_wants(l, i, 1))
        pl_lower_add(l, i, 1, pl_hlo_reduce(l->h, "add", db, 1));
}

void pl_lower_affine_forward(struct pl_lower *l, size_t i)
{
    const struct pl_attr *at = &pl_lower_node(l, i)->attr;
    struct pl_hlo_value x = pl_hlo_with(l->h, "multiply", pl_lower_in(l, i, 0), at->f[0]);

    pl_lower_set(l, i, at->f[1] != 0 ? pl_hlo_with(l->h, "add", x, at->f[1]) : x);
}

void pl_lower_affine_backward(struct pl_lower *l, size_t i, struct pl_hlo_value dy)
{
    pl_lower_add(l, i, 0, pl_hlo_with(l->h, "multiply", dy, pl_lower_node(l, i)->attr.f[0]));
}

/* ---- sums ---- */

void pl_lower_reduce_forward(struct pl_lower *l, size_t i)
{
    const struct pl_attr *at = &pl_lower_node(l, i)->attr;
    size_t shape[] = {(size_t)at->i[3], (size_t)at->i[4], (size_t)at->i[5]};
    struct pl_hlo_value x = pl_hlo_reshape(l->h, pl_lower_in(l, i, 0), 3, shape);

    l->kept[i][0] = x;
    x = pl_hlo_reduce(l->h, "add", x, 1u << 1);
    pl_lower_set(l, i, at->f[0] != 1 ? pl_hlo_with(l->h, "multiply", x, at->f[0]) : x);
}

void pl_lower_reduce_backward(struct pl_lower *l, size_t i, struct pl_hlo_value dy)
{
    struct pl_hlo_value x = l->kept[i][0];

    dy = pl_hlo_reshape2(l->h, dy, x.shape[0], x.shape[2]);
    dy = pl_hlo_with(l->h, "multiply", dy, pl_lower_node(l, i)->attr.f[0]);
    pl_lower_add(l, i, 0, pl_hlo_broadcast(l->h, dy, (size_t[]){0, 2}, 3, x.shape));
}
