/* SPDX-License-Identifier: MIT */
/* Ops on rows: losses, layernorm, softmax, embedding. */
#include "runtime/engine/xla/lower_private.h"

#include <math.h>

/* A number of each row [rows], in the shape of x [rows, n]. */
static struct pl_hlo_value each_row(struct pl_hlo *h, struct pl_hlo_value v, struct pl_hlo_value x)
{
    return pl_hlo_along(h, v, 0, x);
}

static struct pl_hlo_value row_sums(struct pl_hlo *h, struct pl_hlo_value x)
{
    return pl_hlo_reduce(h, "add", x, 1u << 1);
}

/* x - log(sum e^x) of each row. */
static struct pl_hlo_value log_softmax(struct pl_hlo *h, struct pl_hlo_value x)
{
    struct pl_hlo_value sum;

    x = pl_hlo_two(h, "subtract", x, each_row(h, pl_hlo_reduce(h, "maximum", x, 1u << 1), x));
    sum = pl_hlo_one(h, "log", row_sums(h, pl_hlo_one(h, "exponential", x)));
    return pl_hlo_two(h, "subtract", x, each_row(h, sum, x));
}

/* ---- cross entropy: kept[] = log of the probabilities, and where the labels are [rows, classes];
 * a label that is no class makes a NaN, as in the kernels ---- */

/* True at the label of each row of x. */
static struct pl_hlo_value
at_label(struct pl_hlo *h, struct pl_hlo_value labels, struct pl_hlo_value x)
{
    labels = pl_hlo_reshape(h, labels, 1, &x.shape[0]);
    return pl_hlo_compare(h, "EQ", pl_hlo_iota(h, "i32", 2, x.shape, 1), each_row(h, labels, x));
}

void pl_lower_cross_entropy_forward(struct pl_lower *l, size_t i)
{
    struct pl_hlo *h = l->h;
    struct pl_hlo_value x = pl_lower_rows(h, pl_lower_in(l, i, 0));
    struct pl_hlo_value labels = pl_hlo_reshape(h, pl_lower_in(l, i, 1), 1, &x.shape[0]);
    struct pl_hlo_value p = log_softmax(h, x), hot = at_label(h, labels, x), loss, good;

    l->kept[i][0] = p;
    l->kept[i][1] = hot;
    loss = row_sums(h, pl_hlo_select(h, hot, p, pl_hlo_fill_like(h, p, 0)));
    good = pl_hlo_two(
        h, "and", pl_hlo_compare(h, "GE", labels, pl_hlo_fill_like(h, labels, 0)),
        pl_hlo_compare(h, "LT", labels, pl_hlo_fill_like(h, labels, (double)x.shape[1])));
    loss = pl_hlo_select(h, good, loss, pl_hlo_fill_like(h, loss, NAN));
    loss = pl_hlo_reduce(h, "add", loss, 1);
    pl_lower_set(l, i, pl_hlo_with(h, "multiply", loss, -1 / (double)x.shape[0]));
}

void pl_lower_cross_entropy_backward(struct pl_lower *l, size_t i, struct pl_hlo_value dy)
{
    struct pl_hlo *h = l->h;
    struct pl_hlo_value p = l->kept[i][0], d = pl_hlo_one(h, "exponential", p);

    d = pl_hlo_two(h, "subtract", d, pl_hlo_convert(h, l->kept[i][1], "f32"));
    dy = pl_hlo_with(h, "multiply", dy, 1 / (double)p.shape[0]);
    pl_lower_add(l, i, 0, pl_hlo_two(h, "multiply", d, pl_hlo_repeat(h, dy, d)));
}

/* The number of rows whose first largest element is at the label. */
void pl_lower_correct_forward(struct pl_lower *l, size_t i)
{
    struct pl_hlo *h = l->h;
    struct pl_hlo_value x = pl_lower_rows(h, pl_lower_in(l, i, 0)), largest, place, best;

    largest = each_row(h, pl_hlo_reduce(h, "maximum", x, 1u << 1), x);
    place = pl_hlo_iota(h, "f32", 2, x.shape, 1);
    best = pl_hlo_select(h, pl_hlo_compare(h, "EQ", x, largest), pl_hlo_one(h, "negate", place),
                         pl_hlo_fill_like(h, x, -INFINITY));
    best = pl_hlo_one(h, "negate", pl_hlo_reduce(h, "maximum", best, 1u << 1));
    best = pl_hlo_compare(
        h, "EQ", pl_hlo_convert(h, best, "f32"),
        pl_hlo_convert(h, pl_hlo_reshape(h, pl_lower_in(l, i, 1), 1, &x.shape[0]), "f32"));
    pl_lower_set(l, i, pl_hlo_reduce(h, "add", pl_hlo_convert(h, best, "f32"), 1));
}

/* ---- mse: kept[0] = a - b ---- */

void pl_lower_mse_forward(struct pl_lower *l, size_t i)
{
    size_t n = pl_lower_node(l, i)->in[0]->count;
    struct pl_hlo_value d =
        pl_hlo_two(l->h, "subtract", pl_hlo_reshape(l->h, pl_lower_in(l, i, 0), 1, &n),
                   pl_hlo_reshape(l->h, pl_lower_in(l, i, 1), 1, &n));

    l->kept[i][0] = d;
    d = pl_hlo_reduce(l->h, "add", pl_hlo_two(l->h, "multiply", d, d), 1);
    pl_lower_set(l, i, pl_hlo_with(l->h, "multiply", d, 1 / (double)n));
}

void pl_lower_mse_backward(struct pl_lower *l, size_t i, struct pl_hlo_value dy)
{
    struct pl_hlo_value d = l->kept[i][0];

    d = pl_hlo_two(l->h, "multiply", d, pl_hlo_repeat(l->h, dy, d));
    d = pl_hlo_with(l->h, "multiply", d, 2 / (double)d.shape[0]);
    pl_lower_add(l, i, 0, d);
    pl_lower_add(l, i, 1, pl_hlo_one(l->h, "negate", d));
}

/* ---- layernorm: kept[] = z = (x - mean) rstd [rows, n], and rstd [rows] ---- */

void pl_lower_layernorm_forward(struct pl_lower *l, size_t i)
{
    const struct pl_node *node = pl_lower_node(l, i);
    struct pl_hlo *h = l->h;
    struct pl_hlo_value x = pl_lower_rows(h, pl_lower_in(l, i, 0)), rstd;
    double share = 1 / (double)x.shape[1];

    if (!node->attr.i[0])
        x = pl_hlo_two(h, "subtract", x,
                       each_row(h, pl_hlo_with(h, "multiply", row_sums(h, x), share), x));
    rstd = pl_hlo_with(h, "multiply", row_sums(h, pl_hlo_two(h, "multiply", x, x)), share);
    rstd = pl_hlo_one(h, "rsqrt", pl_hlo_with(h, "add", rstd, node->attr.f[0]));
    x = pl_hlo_two(h, "multiply", x, each_row(h, rstd, x));
    l->kept[i][0] = x;
    l->kept[i][1] = rstd;
    if (node->n_in > 1)
        x = pl_hlo_two(h, "multiply", x, pl_hlo_along(h, pl_lower_in(l, i, 1), 1, x));
    if (node->n_in > 2)
        x = pl_hlo_two(h, "add", x, pl_hlo_along(h, pl_lower_in(l, i, 2), 1, x));
    pl_lower_set(l, i, x);
}

/* With g = dy gamma: dx = rstd (g - mean(g) - z mean(g z)). */
void pl_lower_layernorm_backward(struct pl_lower *l, size_t i, struct pl_hlo_value dy)
{
    struct pl_hlo *h = l->h;
    struct pl_hlo_value z = l->kept[i][0], rstd = l->kept[i][1], g, of_z;
    double share = 1 / (double)z.shape[1];

    g = dy = pl_hlo_reshape_like(h, dy, z);
    if (pl_lower_node(l, i)->n_in > 1)
        g = pl_hlo_two(h, "multiply", dy, pl_hlo_along(h, pl_lower_in(l, i, 1), 1, dy));
    if (pl_lower_wants(l, i, 1))
        pl_lower_add(l, i, 1, pl_hlo_reduce(h, "add", pl_hlo_two(h, "multiply", dy, z), 1));
    if (pl_lower_wants(l, i, 2))
        pl_lower_add(l, i, 2, pl_hlo_reduce(h, "add", dy, 1));
    if (!pl_lower_wants(l, i, 0))
        return;
    of_z = pl_hlo_with(h, "multiply", row_sums(h, pl_hlo_two(h, "multiply", g, z)), share);
    of_z = pl_hlo_two(h, "multiply", z, each_row(h, of_z, z));
    if (!pl_lower_node(l, i)->attr.i[0])
        g = pl_hlo_two(h, "subtract", g,
                       each_row(h, pl_hlo_with(h, "multiply", row_sums(h, g), share), g));
    g = pl_hlo_two(h, "subtract", g, of_z);
    pl_lower_add(l, i, 0, pl_hlo_two(h, "multiply", g, each_row(h, rstd, g)));
}

/* ---- softmax: kept[] = the probabilities, or their logarithms ---- */

void pl_lower_softmax_forward(struct pl_lower *l, size_t i)
{
    struct pl_hlo_value y = log_softmax(l->h, pl_lower_rows(l->h, pl_lower_in(l, i, 0)));

    if (!pl_lower_node(l, i)->attr.i[0])
        y = pl_hlo_one(l->h, "exponential", y);
    l->kept[i][0] = y;
    pl_lower_set(l, i, y);
}

/* y (dy - sum(y dy)), or dy - e^y sum(dy) */
void pl_lower_softmax_backward(struct pl_lower *l, size_t i, struct pl_hlo_value dy)
{
    struct pl_hlo *h = l->h;
    struct pl_hlo_value y = l->kept[i][0], sum;

    dy = pl_hlo_reshape_like(h, dy, y);
    if (pl_lower_node(l, i)->attr.i[0]) {
        sum = pl_hlo_two(h, "multiply", pl_hlo_one(h, "exponential", y),
                         each_row(h, row_sums(h, dy), y));
        pl_lower_add(l, i, 0, pl_hlo_two(h, "subtract", dy, sum));
        return;
    }
    sum = each_row(h, row_sums(h, pl_hlo_two(h, "multiply", y, dy)), y);
    pl_lower_add(l, i, 0, pl_hlo_two(h, "multiply", y, pl_hlo_two(h, "subtract", dy, sum)));
}

/* ---- normalize: kept[] = y, the length and the divisor of each row ---- */

void pl_lower_normalize_forward(struct pl_lower *l, size_t i)
{
    struct pl_hlo *h = l->h;
    struct pl_hlo_value x = pl_lower_rows(h, pl_lower_in(l, i, 0)), *kept = l->kept[i];

    kept[1] = pl_hlo_one(h, "sqrt", row_sums(h, pl_hlo_two(h, "multiply", x, x)));
    kept[2] = pl_hlo_with(h, "maximum", kept[1], pl_lower_node(l, i)->attr.f[0]);
    kept[0] = pl_hlo_two(h, "divide", x, each_row(h, kept[2], x));
    pl_lower_set(l, i, kept[0]);
}

/* (dy - y sum(y dy)) / |x|, or dy / eps if |x| <= eps */
void pl_lower_normalize_backward(struct pl_lower *l, size_t i, struct pl_hlo_value dy)
{
    struct pl_hlo *h = l->h;
    struct pl_hlo_value y = l->kept[i][0], length = l->kept[i][1], along, longer;

    dy = pl_hlo_reshape_like(h, dy, y);
    longer = pl_hlo_compare(h, "GT", length,
                            pl_hlo_fill_like(h, length, pl_lower_node(l, i)->attr.f[0]));
    along = row_sums(h, pl_hlo_two(h, "multiply", y, dy));
    along = pl_hlo_select(h, longer, along, pl_hlo_fill_like(h, along, 0));
    dy = pl_hlo_two(h, "subtract", dy, pl_hlo_two(h, "multiply", y, each_row(h, along, y)));
    pl_lower_add(l, i, 0, pl_hlo_two(h, "divide", dy, each_row(h, l->kept[i][2], y)));
}

/* ---- embedding: kept[0] = the row numbers [rows, 1] ---- */

/* A row number that is none makes NaNs, where a gather would take the nearest row. */
void pl_lower_embedding_forward(struct pl_lower *l, size_t i)
{
    struct pl_hlo *h = l->h;
    struct pl_hlo_value table = pl_lower_in(l, i, 0), ids = pl_lower_in(l, i, 1), y, good;
    size_t rows = pl_hlo_count(&ids), width = table.shape[1];

    ids = pl_hlo_reshape2(h, ids, rows, 1);
    l->kept[i][0] = ids;
    y = pl_hlo_new(h, "f32", 2, (size_t[]){rows, width});
    pl_hlo_line(
        h,
        "    %%%u = \"stablehlo.gather\"(%%%u, %%%u) <{dimension_numbers = "
        "#stablehlo.gather<offset_dims = [1], collapsed_slice_dims = [0], start_index_map = "
        "[0], index_vector_dim = 1>, slice_sizes = array<i64: 1, %zu>}> : "
        "(tensor<%zux%zuxf32>, tensor<%zux1xi32>) -> tensor<%zux%zuxf32>\n",
        y.id, table.id, ids.id, width, table.shape[0], width, rows, rows, width);
    ids = pl_hlo_reshape(h, ids, 1, &rows);
    good =
        pl_hlo_two(h, "and", pl_hlo_compare(h, "GE", ids, pl_hlo_fill_like(h, ids, 0)),
                   pl_hlo_compare(h, "LT", ids, pl_hlo_fill_like(h, ids, (double)table.shape[0])));
    pl_lower_set(l, i, pl_hlo_select(h, each_row(h, good, y), y, pl_hlo_fill_like(h, y, NAN)));
}

/* A scatter skips row numbers that are none. */
void pl_lower_embedding_backward(struct pl_lower *l, size_t i, struct pl_hlo_value dy)
{
    struct pl_hlo *h = l->h;
    const plume_tensor *table = pl_lower_node(l, i)->in[0];
    struct pl_hlo_value ids = l->kept[i][0], zero, d;
    size_t rows = ids.shape[0], width = table->shape[1];

    if (!pl_lower_wants(l, i, 0))
        return;
    dy = pl_hlo_reshape2(h, dy, rows, width);
    zero = pl_hlo_fill(h, "f32", 2, table->shape, 0);
    d = pl_hlo_new(h, "f32", 2, table->shape);
    pl_hlo_line(h,
                "    %%%u = \"stablehlo.scatter\"(%%%u, %%%u, %%%u) <{scatter_dimension_numbers = "
                "#stablehlo.scatter<update_window_dims = [1], inserted_window_dims = [0], "
                "scatter_dims_to_operand_dims = [0], index_vector_dim = 1>}> ({\n"
                "    ^bb0(%%a: tensor<f32>, %%b: tensor<f32>):\n"
                "      %%s = stablehlo.add %%a, %%b : tensor<f32>\n"
                "      stablehlo.return %%s : tensor<f32>\n",
                d.id, zero.id, ids.id, dy.id);
    pl_hlo_line(h,
                "    }) : (tensor<%zux%zuxf32>, tensor<%zux1xi32>, tensor<%zux%zuxf32>) -> "
                "tensor<%zux%zuxf32>\n",
                table->shape[0], width, rows, rows, width, table->shape[0], width);
    pl_lower_add(l, i, 0, d);
}
