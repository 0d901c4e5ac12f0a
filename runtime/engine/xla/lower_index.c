/* SPDX-License-Identifier: MIT */
/* Ops that choose elements by their position, or find positions, along the middle dimension of
 * [outer, n, inner]. */
#include "runtime/engine/xla/lower_private.h"

#include <math.h>

/* ---- gather: attr.i = outer, n, m, inner, flags (1: all share an index [m], 2: one index is
 * skipped), what is skipped. kept[] = the positions [elements, 3], and which are good [elements]
 * ----
 */

static struct pl_hlo_value column(struct pl_hlo *h, struct pl_hlo_value v)
{
    return pl_hlo_reshape2(h, v, pl_hlo_count(&v), 1);
}

/* The index of each element of y, [outer, m, inner]. */
static struct pl_hlo_value indices(struct pl_lower *l, size_t i)
{
    const int64_t *at = pl_lower_node(l, i)->attr.i;
    size_t shape[] = {(size_t)at[0], (size_t)at[2], (size_t)at[3]};
    struct pl_hlo_value index = pl_lower_in(l, i, 1);

    if (at[4] & 1)
        return pl_hlo_broadcast(l->h, index, (size_t[]){1}, 3, shape);
    return pl_hlo_reshape(l->h, index, 3, shape);
}

/* The positions of all elements of y in x [elements, 3], and which of these are in x, for an index
 * [outer, m, inner] of n: l->kept[i]. */
static void keep_places(struct pl_lower *l, size_t i, struct pl_hlo_value index, size_t n)
{
    struct pl_hlo *h = l->h;
    struct pl_hlo_value place[3], good;
    size_t count = pl_hlo_count(&index);

    good = pl_hlo_two(h, "and", pl_hlo_compare(h, "GE", index, pl_hlo_fill_like(h, index, 0)),
                      pl_hlo_compare(h, "LT", index, pl_hlo_fill_like(h, index, (double)n)));
    place[0] = column(h, pl_hlo_iota(h, "i32", 3, index.shape, 0));
    place[1] = column(h, index);
    place[2] = column(h, pl_hlo_iota(h, "i32", 3, index.shape, 2));
    l->kept[i][0] = pl_hlo_concat(h, place, 3, 1);
    l->kept[i][1] = pl_hlo_reshape(h, good, 1, &count);
}

/* The elements of x [a, b, c] at the places; where x has no such place, `none`. */
static struct pl_hlo_value
take(struct pl_lower *l, size_t i, struct pl_hlo_value x, struct pl_hlo_value none)
{
    struct pl_hlo *h = l->h;
    size_t count = pl_hlo_count(&none);
    struct pl_hlo_value y = pl_hlo_new(h, "f32", 1, &count);

    pl_hlo_line(h,
                "    %%%u = \"stablehlo.gather\"(%%%u, %%%u) <{dimension_numbers = "
                "#stablehlo.gather<collapsed_slice_dims = [0, 1, 2], start_index_map = [0, 1, 2], "
                "index_vector_dim = 1>, slice_sizes = array<i64: 1, 1, 1>}> : "
                "(tensor<%zux%zux%zuxf32>, tensor<%zux3xi32>) -> tensor<%zuxf32>\n",
                y.id, x.id, l->kept[i][0].id, x.shape[0], x.shape[1], x.shape[2], count, count);
    return pl_hlo_select(h, l->kept[i][1], y, none);
}

/* x [a, b, c] plus the elements of dy [elements] at the places. One that has none is skipped. */
static struct pl_hlo_value
put(struct pl_lower *l, size_t i, struct pl_hlo_value x, struct pl_hlo_value dy)
{
    struct pl_hlo *h = l->h;
    size_t count = pl_hlo_count(&dy);
    struct pl_hlo_value ret;

    dy = pl_hlo_reshape(h, dy, 1, &count);
    dy = pl_hlo_select(h, l->kept[i][1], dy, pl_hlo_fill_like(h, dy, 0));
    ret = pl_hlo_new(h, "f32", 3, x.shape);
    pl_hlo_line(h,
                "    %%%u = \"stablehlo.scatter\"(%%%u, %%%u, %%%u) <{scatter_dimension_numbers = "
                "#stablehlo.scatter<inserted_window_dims = [0, 1, 2], "
                "scatter_dims_to_operand_dims = [0, 1, 2], index_vector_dim = 1>}> ({\n"
                "    ^bb0(%%a: tensor<f32>, %%b: tensor<f32>):\n"
                "      %%s = stablehlo.add %%a, %%b : tensor<f32>\n"
                "      stablehlo.return %%s : tensor<f32>\n",
                ret.id, x.id, l->kept[i][0].id, dy.id);
    pl_hlo_line(h,
                "    }) : (tensor<%zux%zux%zuxf32>, tensor<%zux3xi32>, tensor<%zuxf32>) -> "
                "tensor<%zux%zux%zuxf32>\n",
                x.shape[0], x.shape[1], x.shape[2], count, count, x.shape[0], x.shape[1],
                x.shape[2]);
    return ret;
}

void pl_lower_gather_forward(struct pl_lower *l, size_t i)
{
    const int64_t *at = pl_lower_node(l, i)->attr.i;
    struct pl_hlo *h = l->h;
    size_t shape[] = {(size_t)at[0], (size_t)at[1], (size_t)at[3]};
    struct pl_hlo_value x = pl_hlo_reshape(h, pl_lower_in(l, i, 0), 3, shape), none;
    struct pl_hlo_value index = indices(l, i);
    size_t count = pl_hlo_count(&index);

    keep_places(l, i, index, shape[1]);
    none = pl_hlo_fill(h, "f32", 1, &count, NAN);
    if (at[4] & 2) {
        struct pl_hlo_value skipped =
            pl_hlo_compare(h, "EQ", index, pl_hlo_fill_like(h, index, (double)at[5]));

        skipped = pl_hlo_reshape(h, skipped, 1, &count);
        none = pl_hlo_select(h, skipped, pl_hlo_fill(h, "f32", 1, &count, 0), none);
        l->kept[i][1] = pl_hlo_two(h, "and", l->kept[i][1], pl_hlo_one(h, "not", skipped));
    }
    pl_lower_set(l, i, take(l, i, x, none));
}

/* An index out of range becomes one that a scatter skips. */
void pl_lower_gather_backward(struct pl_lower *l, size_t i, struct pl_hlo_value dy)
{
    const int64_t *at = pl_lower_node(l, i)->attr.i;
    size_t shape[] = {(size_t)at[0], (size_t)at[1], (size_t)at[3]};

    if (pl_lower_wants(l, i, 0))
        pl_lower_add(l, i, 0, put(l, i, pl_hlo_fill(l->h, "f32", 3, shape, 0), dy));
}

/* ---- scatter_add: x, index, src; attr.i and kept[] are gather's. An index out of range makes all
 * of y NaN ---- */

void pl_lower_scatter_forward(struct pl_lower *l, size_t i)
{
    const int64_t *at = pl_lower_node(l, i)->attr.i;
    struct pl_hlo *h = l->h;
    size_t shape[] = {(size_t)at[0], (size_t)at[1], (size_t)at[3]};
    struct pl_hlo_value x = pl_hlo_reshape(h, pl_lower_in(l, i, 0), 3, shape), bad, zero, y;
    struct pl_hlo_value index = indices(l, i);

    keep_places(l, i, index, shape[1]);
    y = put(l, i, x, pl_lower_in(l, i, 2));
    bad = pl_hlo_one(h, "not", l->kept[i][1]);
    bad = pl_hlo_reduce(h, "add", pl_hlo_convert(h, bad, "f32"), 1);
    zero = pl_hlo_fill_like(h, y, 0);
    bad = pl_hlo_broadcast(h, bad, NULL, 3, shape);
    pl_lower_set(
        l, i, pl_hlo_select(h, pl_hlo_compare(h, "GT", bad, zero), pl_hlo_fill_like(h, y, NAN), y));
}

void pl_lower_scatter_backward(struct pl_lower *l, size_t i, struct pl_hlo_value dy)
{
    const int64_t *at = pl_lower_node(l, i)->attr.i;
    struct pl_hlo *h = l->h;
    size_t shape[] = {(size_t)at[0], (size_t)at[1], (size_t)at[3]};
    size_t count = shape[0] * (size_t)at[2] * shape[2];

    pl_lower_add(l, i, 0, dy);
    if (pl_lower_wants(l, i, 2))
        pl_lower_add(
            l, i, 2,
            take(l, i, pl_hlo_reshape(h, dy, 3, shape), pl_hlo_fill(h, "f32", 1, &count, NAN)));
}

/* ---- top: attr.i = outer, n, inner, k, least, nan_first: a stable sort by pl_top_before() ---- */

void pl_lower_top_forward(struct pl_lower *l, size_t i)
{
    const int64_t *at = pl_lower_node(l, i)->attr.i;
    struct pl_hlo *h = l->h;
    size_t shape[] = {(size_t)at[0], (size_t)at[1], (size_t)at[2]};
    struct pl_hlo_value x = pl_hlo_reshape(h, pl_lower_in(l, i, 0), 3, shape);
    struct pl_hlo_value place = pl_hlo_iota(h, "i32", 3, shape, 1), sorted, y;
    bool nans_first = !at[4] || at[5];

    sorted = pl_hlo_new(h, "i32", 3, shape);
    pl_hlo_line(
        h,
        "    %%%u:2 = \"stablehlo.sort\"(%%%u, %%%u) <{dimension = 1 : i64, is_stable = "
        "true}> ({\n"
        "    ^bb0(%%a: tensor<f32>, %%b: tensor<f32>, %%c: tensor<i32>, %%d: tensor<i32>):\n"
        "      %%before = stablehlo.compare %s, %%a, %%b : (tensor<f32>, tensor<f32>) -> "
        "tensor<i1>\n",
        sorted.id, x.id, place.id, at[4] ? "LT" : "GT");
    pl_hlo_line(h,
                "      %%na = stablehlo.compare NE, %%a, %%a : (tensor<f32>, tensor<f32>) -> "
                "tensor<i1>\n"
                "      %%nb = stablehlo.compare NE, %%b, %%b : (tensor<f32>, tensor<f32>) -> "
                "tensor<i1>\n"
                "      %%other = stablehlo.xor %%na, %%nb : tensor<i1>\n"
                "      %%nan = stablehlo.and %%other, %s : tensor<i1>\n"
                "      %%r = stablehlo.or %%before, %%nan : tensor<i1>\n"
                "      stablehlo.return %%r : tensor<i1>\n"
                "    }) : (",
                nans_first ? "%na" : "%nb");
    pl_hlo_type_text(h, &h->text, &x);
    pl_hlo_line(h, ", ");
    pl_hlo_type_text(h, &h->text, &sorted);
    pl_hlo_line(h, ") -> (");
    pl_hlo_type_text(h, &h->text, &x);
    pl_hlo_line(h, ", ");
    pl_hlo_type_text(h, &h->text, &sorted);
    y = pl_hlo_new(h, "i32", 3, shape);
    y.shape[1] = (size_t)at[3];
    pl_hlo_line(h, ")\n    %%%u = stablehlo.slice %%%u#1 [0:%zu, 0:%zu, 0:%zu] : (", y.id,
                sorted.id, shape[0], y.shape[1], shape[2]);
    pl_hlo_type_text(h, &h->text, &sorted);
    pl_hlo_line(h, ") -> ");
    pl_hlo_type_text(h, &h->text, &y);
    pl_hlo_line(h, "\n");
    pl_lower_set(l, i, y);
}

/* ---- cumsum: attr.i = outer, n, inner, from the end ---- */

static struct pl_hlo_value running(struct pl_lower *l, size_t i, struct pl_hlo_value x, bool back)
{
    const int64_t *at = pl_lower_node(l, i)->attr.i;
    struct pl_hlo *h = l->h;
    size_t shape[] = {(size_t)at[0], (size_t)at[1], (size_t)at[2]};
    struct pl_hlo_value zero = pl_hlo_fill(h, "f32", 0, NULL, 0), y;
    bool from_end = (at[3] != 0) != back;

    x = pl_hlo_reshape(h, x, 3, shape);
    y = pl_hlo_new(h, "f32", 3, shape);
    pl_hlo_line(h,
                "    %%%u = \"stablehlo.reduce_window\"(%%%u, %%%u) <{window_dimensions = "
                "array<i64: 1, %zu, 1>, padding = dense<[[0, 0], [%zu, %zu], [0, 0]]> : "
                "tensor<3x2xi64>}> ({\n"
                "    ^bb0(%%a: tensor<f32>, %%b: tensor<f32>):\n"
                "      %%s = stablehlo.add %%a, %%b : tensor<f32>\n"
                "      stablehlo.return %%s : tensor<f32>\n    }) : (",
                y.id, x.id, zero.id, shape[1], from_end ? 0 : shape[1] - 1,
                from_end ? shape[1] - 1 : 0);
    pl_hlo_type_text(h, &h->text, &x);
    pl_hlo_line(h, ", tensor<f32>) -> ");
    pl_hlo_type_text(h, &h->text, &y);
    pl_hlo_line(h, "\n");
    return y;
}

void pl_lower_cumsum_forward(struct pl_lower *l, size_t i)
{
    pl_lower_set(l, i, running(l, i, pl_lower_in(l, i, 0), false));
}

void pl_lower_cumsum_backward(struct pl_lower *l, size_t i, struct pl_hlo_value dy)
{
    pl_lower_add(l, i, 0, running(l, i, dy, true));
}

/* ---- one_hot: a label that is no class makes a row of NaNs ---- */

void pl_lower_one_hot_forward(struct pl_lower *l, size_t i)
{
    const plume_tensor *out = pl_lower_node(l, i)->out;
    struct pl_hlo *h = l->h;
    size_t classes = out->shape[out->rank - 1], rows = out->count / classes;
    size_t shape[] = {rows, classes};
    struct pl_hlo_value labels = pl_hlo_reshape(h, pl_lower_in(l, i, 0), 1, &rows), y, good;

    y = pl_hlo_iota(h, "i32", 2, shape, 1);
    y = pl_hlo_convert(h, pl_hlo_compare(h, "EQ", y, pl_hlo_along(h, labels, 0, y)), "f32");
    good =
        pl_hlo_two(h, "and", pl_hlo_compare(h, "GE", labels, pl_hlo_fill_like(h, labels, 0)),
                   pl_hlo_compare(h, "LT", labels, pl_hlo_fill_like(h, labels, (double)classes)));
    pl_lower_set(l, i,
                 pl_hlo_select(h, pl_hlo_along(h, good, 0, y), y, pl_hlo_fill_like(h, y, NAN)));
}

/* ---- whole: attr.i[0] is the operation (pl_whole) ---- */

/* Rounded down, or the rest of that, as Python's; INT32_MIN by 0. The compiler's are rounded to
 * zero, and open by 0 and for INT32_MIN by -1. */
static struct pl_hlo_value
divided(struct pl_hlo *h, struct pl_hlo_value a, struct pl_hlo_value b, bool rest)
{
    struct pl_hlo_value zero = pl_hlo_fill_like(h, a, 0), one = pl_hlo_fill_like(h, a, 1), q, r;
    struct pl_hlo_value none = pl_hlo_compare(h, "EQ", b, zero), other, minus;

    minus = pl_hlo_compare(h, "EQ", b, pl_hlo_fill_like(h, a, -1));
    q = pl_hlo_two(h, "divide", a, pl_hlo_select(h, pl_hlo_two(h, "or", none, minus), one, b));
    q = pl_hlo_select(h, minus, pl_hlo_two(h, "subtract", zero, a), q);
    r = pl_hlo_two(h, "subtract", a, pl_hlo_two(h, "multiply", q, b));
    other =
        pl_hlo_two(h, "xor", pl_hlo_compare(h, "LT", r, zero), pl_hlo_compare(h, "LT", b, zero));
    other = pl_hlo_two(h, "and", other, pl_hlo_compare(h, "NE", r, zero));
    q = pl_hlo_select(h, other, pl_hlo_two(h, "subtract", q, one), q);
    r = pl_hlo_select(h, other, pl_hlo_two(h, "add", r, b), r);
    return pl_hlo_select(h, none, pl_hlo_fill_like(h, a, INT32_MIN), rest ? r : q);
}

void pl_lower_whole_forward(struct pl_lower *l, size_t i)
{
    static const char *const names[] = {
        [PL_WHOLE_ADD] = "add", [PL_WHOLE_SUB] = "subtract", [PL_WHOLE_MUL] = "multiply",
        [PL_WHOLE_LT] = "LT",   [PL_WHOLE_LE] = "LE",        [PL_WHOLE_EQ] = "EQ",
        [PL_WHOLE_NE] = "NE"};
    const struct pl_node *node = pl_lower_node(l, i);
    enum pl_whole op = (enum pl_whole)node->attr.i[0];
    struct pl_hlo *h = l->h;
    size_t m = node->in[1]->count, shape[] = {node->out->count / m, m};
    struct pl_hlo_value a = pl_hlo_reshape(h, pl_lower_in(l, i, 0), 2, shape), y;
    struct pl_hlo_value b = pl_hlo_along(h, pl_hlo_reshape(h, pl_lower_in(l, i, 1), 1, &m), 1, a);

    if (op == PL_WHOLE_VALUE)
        y = pl_hlo_convert(h, a, "f32");
    else if (op >= PL_WHOLE_LT)
        y = pl_hlo_convert(h, pl_hlo_compare(h, names[op], a, b), "f32");
    else if (op >= PL_WHOLE_DIV)
        y = divided(h, a, b, op == PL_WHOLE_MOD);
    else
        y = pl_hlo_two(h, names[op], a, b);
    pl_lower_set(l, i, y);
}
