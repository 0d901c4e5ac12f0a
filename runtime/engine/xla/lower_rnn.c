/* SPDX-License-Identifier: MIT */
/* Layers of LSTM and GRU, their times written out. kept[] of an LSTM = gates [time, batch, 4
 * hidden], h and c [time, batch, hidden]; of a GRU gates [time, batch, 3 hidden], the products of
 * the state before they are gated, and h [time, batch, hidden]. */
#include "runtime/engine/xla/lower_private.h"

#include <errno.h>
#include <stdlib.h>

/* `n` values for each time. A lack of memory shows in the text's `failed`. */
static struct pl_hlo_value *values_of_times(struct pl_hlo *h, size_t times, size_t n)
{
    struct pl_hlo_value *list = calloc(times * n, sizeof(*list));

    if (!list)
        h->failed = -ENOMEM;
    return list;
}

/* A list of [batch, columns], one per time, as [time, batch, columns]. */
static struct pl_hlo_value stack(struct pl_hlo *h, struct pl_hlo_value *list, size_t n)
{
    for (size_t t = 0; t < n; t++)
        list[t] = pl_hlo_reshape(h, list[t], 3, (size_t[]){1, list[t].shape[0], list[t].shape[1]});
    return pl_hlo_concat(h, list, n, 0);
}

/* [batch, time, columns] and [time, batch, columns] */
static struct pl_hlo_value turn(struct pl_hlo *h, struct pl_hlo_value v)
{
    return pl_hlo_transpose(h, v, (const size_t[]){1, 0, 2});
}

static struct pl_hlo_value at_time(struct pl_hlo *h, struct pl_hlo_value all, size_t t)
{
    return pl_hlo_reshape2(h, pl_hlo_slice(h, all, 0, t, 1), all.shape[1], all.shape[2]);
}

/* Part `part` of a row's `n`. */
static struct pl_hlo_value nth_of(struct pl_hlo *h, struct pl_hlo_value row, size_t part, size_t n)
{
    return pl_hlo_slice(h, row, 1, part * (row.shape[1] / n), row.shape[1] / n);
}

static struct pl_hlo_value part_of(struct pl_hlo *h, struct pl_hlo_value gates, size_t part)
{
    return nth_of(h, gates, part, 4);
}

static struct pl_hlo_value times(struct pl_hlo *h, struct pl_hlo_value a, struct pl_hlo_value b)
{
    return pl_hlo_two(h, "multiply", a, b);
}

/* The gates of one time, and its h and c in place of those before it (none: zeros). */
static struct pl_hlo_value cell(struct pl_hlo *h,
                                struct pl_hlo_value z,
                                struct pl_hlo_value w,
                                struct pl_hlo_value *hidden,
                                struct pl_hlo_value *c)
{
    struct pl_hlo_value part[4], sum;

    if (hidden->id)
        z = pl_hlo_two(h, "add", z,
                       pl_hlo_dot(h, *hidden, w, &(struct pl_hlo_dot){.a_sum = 1, .b_sum = 1}));
    for (size_t k = 0; k < 4; k++)
        part[k] = pl_hlo_one(h, k == 2 ? "tanh" : "logistic", part_of(h, z, k));
    sum = times(h, part[0], part[2]);
    *c = c->id ? pl_hlo_two(h, "add", times(h, part[1], *c), sum) : sum;
    *hidden = times(h, part[3], pl_hlo_one(h, "tanh", *c));
    return pl_hlo_concat(h, part, 4, 1);
}

void pl_lower_lstm_forward(struct pl_lower *l, size_t i)
{
    const struct pl_node *node = pl_lower_node(l, i);
    struct pl_hlo *h = l->h;
    struct pl_hlo_value x = turn(h, pl_lower_in(l, i, 0)), w = pl_lower_in(l, i, 1), y;
    struct pl_hlo_value hidden = {0}, c = {0}, *list = values_of_times(h, x.shape[0], 3);
    size_t n = x.shape[0];

    if (!list) {
        pl_lower_set(l, i, pl_hlo_fill(h, "f32", node->out->rank, node->out->shape, 0));
        return;
    }
    if (node->n_in > 2) {
        hidden = pl_lower_in(l, i, 2);
        c = pl_lower_in(l, i, 3);
    }
    for (size_t t = 0; t < n; t++) {
        list[t] = cell(h, at_time(h, x, t), w, &hidden, &c);
        list[n + t] = hidden;
        list[2 * n + t] = c;
    }
    for (size_t k = 0; k < 3; k++)
        l->kept[i][k] = stack(h, list + k * n, n);
    free(list);
    y = turn(h, l->kept[i][1]);
    if (node->attr.i[0]) {
        c = pl_hlo_reshape(h, c, 3, (size_t[]){y.shape[0], 1, y.shape[2]});
        y = pl_hlo_concat(h, (struct pl_hlo_value[]){y, c}, 2, 1);
    }
    pl_lower_set(l, i, y);
}

/* v (1 - v), times d */
static struct pl_hlo_value
sigmoid_back(struct pl_hlo *h, struct pl_hlo_value v, struct pl_hlo_value d)
{
    struct pl_hlo_value rest = pl_hlo_two(h, "subtract", pl_hlo_fill_like(h, v, 1), v);

    return times(h, d, times(h, v, rest));
}

/* (1 - v^2), times d */
static struct pl_hlo_value tanh_back(struct pl_hlo *h, struct pl_hlo_value v, struct pl_hlo_value d)
{
    struct pl_hlo_value one = pl_hlo_fill_like(h, v, 1);

    return times(h, d, pl_hlo_two(h, "subtract", one, times(h, v, v)));
}

/* The gradient of z of one time; dc becomes that of the c before it. */
static struct pl_hlo_value cell_back(struct pl_hlo *h,
                                     struct pl_hlo_value gates,
                                     struct pl_hlo_value c,
                                     struct pl_hlo_value before,
                                     struct pl_hlo_value dh,
                                     struct pl_hlo_value *dc)
{
    struct pl_hlo_value part[4], t = pl_hlo_one(h, "tanh", c), sum, dz[4];

    for (size_t k = 0; k < 4; k++)
        part[k] = part_of(h, gates, k);
    sum = tanh_back(h, t, times(h, dh, part[3]));
    sum = dc->id ? pl_hlo_two(h, "add", sum, *dc) : sum;
    dz[0] = sigmoid_back(h, part[0], times(h, sum, part[2]));
    dz[1] = before.id ? sigmoid_back(h, part[1], times(h, sum, before))
                      : pl_hlo_fill_like(h, part[1], 0);
    dz[2] = tanh_back(h, part[2], times(h, sum, part[0]));
    dz[3] = sigmoid_back(h, part[3], times(h, dh, t));
    *dc = times(h, sum, part[1]);
    return pl_hlo_concat(h, dz, 4, 1);
}

/* Sums over the rows of all times: dz [rows, 4 hidden] and the h before each. */
static void add_weight(struct pl_lower *l, size_t i, struct pl_hlo_value dz, struct pl_hlo_value h)
{
    pl_lower_add(l, i, 1, pl_hlo_dot(l->h, dz, h, &(struct pl_hlo_dot){.a_sum = 0, .b_sum = 0}));
}

void pl_lower_lstm_backward(struct pl_lower *l, size_t i, struct pl_hlo_value dy)
{
    const struct pl_node *node = pl_lower_node(l, i);
    struct pl_hlo *h = l->h;
    const struct pl_hlo_value *kept = l->kept[i];
    struct pl_hlo_value w = pl_lower_in(l, i, 1), dh = {0}, dc = {0}, dz, first[2] = {0};
    struct pl_hlo_value *list = values_of_times(h, kept[0].shape[0], 1);
    size_t n = kept[0].shape[0], batch = kept[0].shape[1], hidden = w.shape[1];

    if (!list)
        return;
    dy = turn(h, dy);
    if (node->attr.i[0])
        dc = at_time(h, dy, n);
    for (size_t k = 0; k < 2 && node->n_in > 2; k++)
        first[k] = pl_lower_in(l, i, 2 + k);
    for (size_t t = n; t-- > 0;) {
        struct pl_hlo_value d = at_time(h, dy, t);

        if (dh.id)
            d = pl_hlo_two(h, "add", d, dh);
        list[t] = cell_back(h, at_time(h, kept[0], t), at_time(h, kept[2], t),
                            t ? at_time(h, kept[2], t - 1) : first[1], d, &dc);
        dh = pl_hlo_dot(h, list[t], w, &(struct pl_hlo_dot){.a_sum = 1, .b_sum = 0});
    }
    if (node->n_in > 2) {
        pl_lower_add(l, i, 2, dh);
        pl_lower_add(l, i, 3, dc);
        if (pl_lower_wants(l, i, 1))
            add_weight(l, i, list[0], first[0]);
    }
    dz = stack(h, list, n);
    free(list);
    if (pl_lower_wants(l, i, 1) && n > 1)
        add_weight(
            l, i, pl_hlo_reshape2(h, pl_hlo_slice(h, dz, 0, 1, n - 1), (n - 1) * batch, 4 * hidden),
            pl_hlo_reshape2(h, pl_hlo_slice(h, kept[1], 0, 0, n - 1), (n - 1) * batch, hidden));
    else if (pl_lower_wants(l, i, 1) && node->n_in == 2)
        pl_lower_add(l, i, 1, pl_hlo_fill_like(h, w, 0));
    pl_lower_add(l, i, 0, turn(h, dz));
}

/* ---- gru ---- */

static struct pl_hlo_value plus(struct pl_hlo *h, struct pl_hlo_value a, struct pl_hlo_value b)
{
    return pl_hlo_two(h, "add", a, b);
}

static struct pl_hlo_value minus(struct pl_hlo *h, struct pl_hlo_value a, struct pl_hlo_value b)
{
    return pl_hlo_two(h, "subtract", a, b);
}

struct gru {
    struct pl_hlo_value x, w, b, first; /* b, first: id 0 if there is none */
    size_t n, batch, hidden;
    unsigned bias, first_in; /* inputs */
};

static struct gru gru_of(struct pl_lower *l, size_t i)
{
    const struct pl_node *node = pl_lower_node(l, i);
    unsigned biased = node->attr.i[0] != 0;
    struct gru g = {.x = turn(l->h, pl_lower_in(l, i, 0)),
                    .w = pl_lower_in(l, i, 1),
                    .bias = 2,
                    .first_in = 2 + biased};

    if (biased)
        g.b = pl_lower_in(l, i, 2);
    if (node->n_in > 2 + biased)
        g.first = pl_lower_in(l, i, g.first_in);
    g.n = g.x.shape[0];
    g.batch = g.x.shape[1];
    g.hidden = g.w.shape[1];
    return g;
}

/* One time: ret[0] has the gates, ret[1] the part of the state's product, ret[2] h. */
static void gru_cell(struct pl_hlo *h,
                     const struct gru *g,
                     struct pl_hlo_value x,
                     struct pl_hlo_value hidden,
                     struct pl_hlo_value ret[3])
{
    struct pl_hlo_value p = pl_hlo_fill_like(h, x, 0), gate[3], rest;

    if (hidden.id)
        p = pl_hlo_dot(h, hidden, g->w, &(struct pl_hlo_dot){.a_sum = 1, .b_sum = 1});
    if (g->b.id)
        p = plus(h, p, pl_hlo_along(h, g->b, 1, p));
    for (size_t k = 0; k < 2; k++)
        gate[k] = pl_hlo_one(h, "logistic", plus(h, nth_of(h, x, k, 3), nth_of(h, p, k, 3)));
    ret[1] = nth_of(h, p, 2, 3);
    gate[2] = pl_hlo_one(h, "tanh", plus(h, nth_of(h, x, 2, 3), times(h, gate[0], ret[1])));
    rest = times(h, minus(h, pl_hlo_fill_like(h, gate[1], 1), gate[1]), gate[2]);
    ret[2] = hidden.id ? plus(h, rest, times(h, gate[1], hidden)) : rest;
    ret[0] = pl_hlo_concat(h, gate, 3, 1);
}

void pl_lower_gru_forward(struct pl_lower *l, size_t i)
{
    const struct pl_node *node = pl_lower_node(l, i);
    struct pl_hlo *h = l->h;
    struct gru g = gru_of(l, i);
    struct pl_hlo_value *list = values_of_times(h, g.n, 3), hidden = g.first, of_time[3];

    if (!list) {
        pl_lower_set(l, i, pl_hlo_fill(h, "f32", node->out->rank, node->out->shape, 0));
        return;
    }
    for (size_t t = 0; t < g.n; t++) {
        gru_cell(h, &g, at_time(h, g.x, t), hidden, of_time);
        hidden = of_time[2];
        for (size_t k = 0; k < 3; k++)
            list[k * g.n + t] = of_time[k];
    }
    for (size_t k = 0; k < 3; k++)
        l->kept[i][k] = stack(h, list + k * g.n, g.n);
    free(list);
    pl_lower_set(l, i, turn(h, l->kept[i][2]));
}

/* One time, from d of its h: *dx and *dp of its products, and what of d goes to the h before. */
static struct pl_hlo_value gru_cell_back(struct pl_hlo *h,
                                         struct pl_hlo_value gates,
                                         struct pl_hlo_value kept,
                                         struct pl_hlo_value before,
                                         struct pl_hlo_value d,
                                         struct pl_hlo_value *dx,
                                         struct pl_hlo_value *dp)
{
    struct pl_hlo_value r = nth_of(h, gates, 0, 3), z = nth_of(h, gates, 1, 3);
    struct pl_hlo_value n = nth_of(h, gates, 2, 3), one = pl_hlo_fill_like(h, z, 1), part[3];

    if (!before.id)
        before = pl_hlo_fill_like(h, n, 0);
    part[2] = tanh_back(h, n, times(h, d, minus(h, one, z)));
    part[1] = sigmoid_back(h, z, times(h, d, minus(h, before, n)));
    part[0] = sigmoid_back(h, r, times(h, part[2], kept));
    *dx = pl_hlo_concat(h, part, 3, 1);
    part[2] = times(h, part[2], r);
    *dp = pl_hlo_concat(h, part, 3, 1);
    return times(h, d, z);
}

/* The gradients of the weight and the bias, from those of all products. */
static void gru_sums(struct pl_lower *l, size_t i, const struct gru *g, struct pl_hlo_value dp)
{
    struct pl_hlo *h = l->h;
    size_t rest = (g->n - 1) * g->batch, columns = 3 * g->hidden;
    bool wants = pl_lower_wants(l, i, 1);

    if (wants && g->first.id)
        add_weight(l, i, at_time(h, dp, 0), g->first);
    if (wants && g->n > 1)
        add_weight(
            l, i, pl_hlo_reshape2(h, pl_hlo_slice(h, dp, 0, 1, g->n - 1), rest, columns),
            pl_hlo_reshape2(h, pl_hlo_slice(h, l->kept[i][2], 0, 0, g->n - 1), rest, g->hidden));
    else if (wants && !g->first.id)
        pl_lower_add(l, i, 1, pl_hlo_fill_like(h, g->w, 0));
    if (g->b.id && pl_lower_wants(l, i, g->bias))
        pl_lower_add(l, i, g->bias, pl_hlo_reduce(h, "add", dp, 3));
}

void pl_lower_gru_backward(struct pl_lower *l, size_t i, struct pl_hlo_value dy)
{
    struct pl_hlo *h = l->h;
    struct gru g = gru_of(l, i);
    const struct pl_hlo_value *kept = l->kept[i];
    struct pl_hlo_value *list = values_of_times(h, g.n, 2), dh = {0};

    if (!list)
        return;
    dy = turn(h, dy);
    for (size_t t = g.n; t-- > 0;) {
        struct pl_hlo_value d = at_time(h, dy, t), *dp = &list[g.n + t];

        if (dh.id)
            d = plus(h, d, dh);
        dh = gru_cell_back(h, at_time(h, kept[0], t), at_time(h, kept[1], t),
                           t ? at_time(h, kept[2], t - 1) : g.first, d, &list[t], dp);
        dh = plus(h, dh, pl_hlo_dot(h, *dp, g.w, &(struct pl_hlo_dot){.a_sum = 1, .b_sum = 0}));
    }
    if (g.first.id)
        pl_lower_add(l, i, g.first_in, dh);
    gru_sums(l, i, &g, stack(h, list + g.n, g.n));
    pl_lower_add(l, i, 0, turn(h, stack(h, list, g.n)));
    free(list);
}
