/* SPDX-License-Identifier: MIT */
/* Images [batch, channels, height, width]: convolution, pooling; and batch norm. */
#include "runtime/engine/xla/lower_private.h"

#include <math.h>

enum { STRIDE_H, STRIDE_W, PAD_H, PAD_W, REST }; /* numbers of a node, as in op_image.c */

/* ---- convolution ---- */

/* The differences between the three convolutions of a layer; index 0 is the height. */
struct window {
    const char *dims; /* layouts of the operands and of the result */
    int64_t stride[2], low[2], high[2], x_step[2], w_step[2]; /* steps: between elements */
    bool reversed;
};

static struct pl_hlo_value convolve(struct pl_hlo *h,
                                    struct pl_hlo_value x,
                                    struct pl_hlo_value w,
                                    const struct window *win,
                                    const size_t *shape)
{
    struct pl_hlo_value y = pl_hlo_new(h, "f32", 4, shape);
    const char *reversed = win->reversed ? "true, true" : "false, false";
    const char *precision = h->low ? "DEFAULT" : "HIGHEST";

    pl_hlo_line(
        h,
        "    %%%u = stablehlo.convolution(%%%u, %%%u) dim_numbers = %s, window = {stride = [%lld, "
        "%lld], pad = [[%lld, %lld], [%lld, %lld]], lhs_dilate = [%lld, %lld], rhs_dilate = [%lld, "
        "%lld], reverse = [%s]} {batch_group_count = 1 : i64, feature_group_count = 1 : i64, "
        "precision_config = [#stablehlo<precision %s>, #stablehlo<precision %s>]} : ",
        y.id, x.id, w.id, win->dims, (long long)win->stride[0], (long long)win->stride[1],
        (long long)win->low[0], (long long)win->high[0], (long long)win->low[1],
        (long long)win->high[1], (long long)win->x_step[0], (long long)win->x_step[1],
        (long long)win->w_step[0], (long long)win->w_step[1], reversed, precision, precision);
    pl_hlo_line(h, "(");
    pl_hlo_type_text(h, &h->text, &x);
    pl_hlo_line(h, ", ");
    pl_hlo_type_text(h, &h->text, &w);
    pl_hlo_line(h, ") -> ");
    pl_hlo_type_text(h, &h->text, &y);
    pl_hlo_line(h, "\n");
    return y;
}

/* kept[0] = the sum before relu */
void pl_lower_conv2d_forward(struct pl_lower *l, size_t i)
{
    const struct pl_node *node = pl_lower_node(l, i);
    const int64_t *at = node->attr.i;
    struct window win = {.dims = "[b, f, 0, 1]x[o, i, 0, 1]->[b, f, 0, 1]"};
    struct pl_hlo_value y;

    for (size_t d = 0; d < 2; d++) {
        win.stride[d] = at[STRIDE_H + d];
        win.low[d] = win.high[d] = at[PAD_H + d];
        win.x_step[d] = win.w_step[d] = 1;
    }
    y = convolve(l->h, pl_lower_in(l, i, 0), pl_lower_in(l, i, 1), &win, node->out->shape);
    if (node->n_in > 2)
        y = pl_hlo_two(l->h, "add", y, pl_hlo_along(l->h, pl_lower_in(l, i, 2), 1, y));
    l->kept[i][0] = y;
    pl_lower_set(l, i, pl_lower_activate(l->h, (enum pl_activation)at[REST], y));
}

/* x's gradient is a convolution of dz, spread by the stride, with the reversed kernel. */
static struct pl_hlo_value conv_dx(struct pl_lower *l, size_t i, struct pl_hlo_value dz)
{
    const struct pl_node *node = pl_lower_node(l, i);
    const plume_tensor *x = node->in[0], *w = node->in[1];
    struct window win = {.dims = "[b, f, 0, 1]x[i, o, 0, 1]->[b, f, 0, 1]", .reversed = true};

    for (size_t d = 0; d < 2; d++) {
        int64_t k = (int64_t)w->shape[2 + d], stride = node->attr.i[STRIDE_H + d];
        int64_t spread = ((int64_t)dz.shape[2 + d] - 1) * stride + 1;

        win.stride[d] = win.w_step[d] = 1;
        win.x_step[d] = stride;
        win.low[d] = k - 1 - node->attr.i[PAD_H + d];
        win.high[d] = (int64_t)x->shape[2 + d] + k - 1 - spread - win.low[d];
    }
    return convolve(l->h, dz, pl_lower_in(l, i, 1), &win, x->shape);
}

/* w's gradient is a convolution of x with dz, the batch being the channels. */
static struct pl_hlo_value conv_dw(struct pl_lower *l, size_t i, struct pl_hlo_value dz)
{
    const struct pl_node *node = pl_lower_node(l, i);
    const plume_tensor *x = node->in[0], *w = node->in[1];
    struct window win = {.dims = "[f, b, 0, 1]x[i, o, 0, 1]->[f, b, 0, 1]"};

    for (size_t d = 0; d < 2; d++) {
        int64_t stride = node->attr.i[STRIDE_H + d];
        int64_t spread = ((int64_t)dz.shape[2 + d] - 1) * stride + 1;

        win.stride[d] = win.x_step[d] = 1;
        win.w_step[d] = stride;
        win.low[d] = node->attr.i[PAD_H + d];
        win.high[d] = (int64_t)w->shape[2 + d] - 1 - (int64_t)x->shape[2 + d] - win.low[d] + spread;
    }
    return convolve(l->h, pl_lower_in(l, i, 0), dz, &win, w->shape);
}

void pl_lower_conv2d_backward(struct pl_lower *l, size_t i, struct pl_hlo_value dy)
{
    struct pl_hlo_value dz = pl_lower_slope(
        l->h, (enum pl_activation)pl_lower_node(l, i)->attr.i[REST], l->kept[i][0], dy);

    if (pl_lower_wants(l, i, 0))
        pl_lower_add(l, i, 0, conv_dx(l, i, dz));
    if (pl_lower_wants(l, i, 1))
        pl_lower_add(l, i, 1, conv_dw(l, i, dz));
    if (pl_lower_wants(l, i, 2))
        pl_lower_add(l, i, 2, pl_hlo_reduce(l->h, "add", dz, 1u | 1u << 2 | 1u << 3));
}

/* ---- pooling ---- */

static void body(struct pl_hlo *h, const char *op, const char *how)
{
    pl_hlo_line(h,
                "{\n    ^bb0(%%a: tensor<f32>, %%b: tensor<f32>):\n"
                "      %%s = stablehlo.%s%s %%a, %%b : %s\n"
                "      stablehlo.return %%s : tensor<%s>\n    }",
                op, how, *how ? "(tensor<f32>, tensor<f32>) -> tensor<i1>" : "tensor<f32>",
                *how ? "i1" : "f32");
}

/* window_dimensions, window_strides and padding. */
static void
window_text(struct pl_hlo *h, const int64_t *k, const int64_t *stride, const int64_t *pad)
{
    pl_hlo_line(
        h,
        "<{window_dimensions = array<i64: 1, 1, %lld, %lld>, window_strides = array<i64: 1, "
        "1, %lld, %lld>, padding = dense<[[0, 0], [0, 0], [%lld, %lld], [%lld, %lld]]> : "
        "tensor<4x2xi64>}>",
        (long long)k[0], (long long)k[1], (long long)stride[0], (long long)stride[1],
        (long long)pad[0], (long long)pad[0], (long long)pad[1], (long long)pad[1]);
}

/* op over each window: "maximum" or "add". */
static struct pl_hlo_value over_windows(struct pl_hlo *h,
                                        const char *op,
                                        struct pl_hlo_value x,
                                        struct pl_hlo_value init,
                                        const int64_t *k,
                                        const int64_t *stride,
                                        const int64_t *pad,
                                        const size_t *shape)
{
    struct pl_hlo_value y = pl_hlo_new(h, "f32", 4, shape);

    pl_hlo_line(h, "    %%%u = \"stablehlo.reduce_window\"(%%%u, %%%u) ", y.id, x.id, init.id);
    window_text(h, k, stride, pad);
    pl_hlo_line(h, " (");
    body(h, op, "");
    pl_hlo_line(h, ") : (");
    pl_hlo_type_text(h, &h->text, &x);
    pl_hlo_line(h, ", tensor<f32>) -> ");
    pl_hlo_type_text(h, &h->text, &y);
    pl_hlo_line(h, "\n");
    return y;
}

static void pool_forward(struct pl_lower *l, size_t i, bool max)
{
    const struct pl_node *node = pl_lower_node(l, i);
    const int64_t *at = node->attr.i, k[] = {at[REST], at[REST]};
    struct pl_hlo_value init = pl_hlo_fill(l->h, "f32", 0, NULL, max ? -INFINITY : 0), y;

    y = over_windows(l->h, max ? "maximum" : "add", pl_lower_in(l, i, 0), init, k, &at[STRIDE_H],
                     &at[PAD_H], node->out->shape);
    pl_lower_set(l, i, max ? y : pl_hlo_with(l->h, "multiply", y, 1 / (double)(k[0] * k[1])));
}

void pl_lower_max_pool2d_forward(struct pl_lower *l, size_t i)
{
    pool_forward(l, i, true);
}

void pl_lower_avg_pool2d_forward(struct pl_lower *l, size_t i)
{
    pool_forward(l, i, false);
}

/* The first of equals gets the gradient. */
void pl_lower_max_pool2d_backward(struct pl_lower *l, size_t i, struct pl_hlo_value dy)
{
    const struct pl_node *node = pl_lower_node(l, i);
    const int64_t *at = node->attr.i, k[] = {at[REST], at[REST]};
    struct pl_hlo *h = l->h;
    struct pl_hlo_value zero, dx, x;

    if (!pl_lower_wants(l, i, 0))
        return;
    x = pl_lower_in(l, i, 0);
    zero = pl_hlo_fill(h, "f32", 0, NULL, 0);
    dx = pl_hlo_new(h, "f32", 4, x.shape);
    pl_hlo_line(h, "    %%%u = \"stablehlo.select_and_scatter\"(%%%u, %%%u, %%%u) ", dx.id, x.id,
                dy.id, zero.id);
    window_text(h, k, &at[STRIDE_H], &at[PAD_H]);
    pl_hlo_line(h, " (");
    body(h, "compare", " GE,");
    pl_hlo_line(h, ", ");
    body(h, "add", "");
    pl_hlo_line(h, ") : (");
    pl_hlo_type_text(h, &h->text, &x);
    pl_hlo_line(h, ", ");
    pl_hlo_type_text(h, &h->text, &dy);
    pl_hlo_line(h, ", tensor<f32>) -> ");
    pl_hlo_type_text(h, &h->text, &dx);
    pl_hlo_line(h, "\n");
    pl_lower_add(l, i, 0, dx);
}

/* Each element of x gets the sum of the windows over it: those of dy, spread by the stride. */
void pl_lower_avg_pool2d_backward(struct pl_lower *l, size_t i, struct pl_hlo_value dy)
{
    static const int64_t one[] = {1, 1}, none[] = {0, 0};
    const struct pl_node *node = pl_lower_node(l, i);
    const int64_t k[] = {node->attr.i[REST], node->attr.i[REST]};
    int64_t low[4] = {0}, high[4] = {0}, between[4] = {0};

    if (!pl_lower_wants(l, i, 0))
        return;
    for (size_t d = 0; d < 2; d++) {
        int64_t stride = node->attr.i[STRIDE_H + d];
        int64_t spread = ((int64_t)dy.shape[2 + d] - 1) * stride + 1;

        between[2 + d] = stride - 1;
        low[2 + d] = k[d] - 1 - node->attr.i[PAD_H + d];
        high[2 + d] = (int64_t)node->in[0]->shape[2 + d] + k[d] - 1 - spread - low[2 + d];
    }
    dy = pl_hlo_with(l->h, "multiply", dy, 1 / (double)(k[0] * k[1]));
    dy = pl_hlo_pad(l->h, dy, low, high, between);
    pl_lower_add(l, i, 0,
                 over_windows(l->h, "add", dy, pl_hlo_fill(l->h, "f32", 0, NULL, 0), k, one, none,
                              node->in[0]->shape));
}

/* ---- batch norm: kept[] = x - mean, and inv_std, [batch, channels, inner]; and y ---- */

#define SAMPLE 16 /* images, and values of each */

static const unsigned all_but_channels = 1u | 1u << 2;

/* The mean over all but the channels, and over the replicas that share statistics. */
static struct pl_hlo_value mean_of(struct pl_lower *l, struct pl_hlo_value x)
{
    unsigned replicas = PL_MAX(l->normed, 1u);
    double share = 1 / (double)(x.shape[0] * x.shape[2] * replicas);
    struct pl_hlo_value sum = pl_hlo_reduce(l->h, "add", x, all_but_channels);

    if (replicas > 1)
        sum = pl_hlo_all_reduce(l->h, sum, replicas);
    return pl_hlo_with(l->h, "multiply", sum, share);
}

/* running = (1 - momentum) running + momentum value */
static void run_on(struct pl_lower *l, size_t i, size_t k, struct pl_hlo_value value)
{
    double momentum = pl_lower_node(l, i)->attr.f[1];
    struct pl_lower_leaf *leaf = pl_lower_leaf(l, pl_lower_node(l, i)->in[k]);

    if (leaf)
        leaf->value =
            pl_hlo_two(l->h, "add", pl_hlo_with(l->h, "multiply", leaf->value, 1 - momentum),
                       pl_hlo_with(l->h, "multiply", value, momentum));
}

/* Some values of some images. The steps are odd: rows of an image, whose ends are often alike, have
 * even sizes. */
static struct pl_hlo_value sample_of(struct pl_hlo *h, struct pl_hlo_value x)
{
    static const size_t first[3];
    size_t step[] = {x.shape[0] / SAMPLE | 1, 1, x.shape[2] / SAMPLE | 1};

    return pl_hlo_strided_slice(h, x, first, x.shape, step);
}

/* The mean and variance of x, and x less the mean. Far from 0 a sum of x has an error of many
 * deviations in f32, which grows with the number of its terms. So the mean of a sample is taken off
 * first. Then two passes over x each find what is left of the mean, and the second one the squares
 * too. */
static struct pl_hlo_value statistics_of(struct pl_lower *l,
                                         struct pl_hlo_value x,
                                         struct pl_hlo_value *ret_mean,
                                         struct pl_hlo_value *ret_var)
{
    struct pl_hlo *h = l->h;
    struct pl_hlo_value mean = mean_of(l, sample_of(h, x)), off, rest, var;

    x = pl_hlo_two(h, "subtract", x, pl_hlo_along(h, mean, 1, x));
    off = mean_of(l, x);
    x = pl_hlo_two(h, "subtract", x, pl_hlo_along(h, off, 1, x));
    rest = mean_of(l, x);
    var = mean_of(l, pl_hlo_two(h, "multiply", x, x));
    var = pl_hlo_two(h, "subtract", var, pl_hlo_two(h, "multiply", rest, rest));
    *ret_var = pl_hlo_with(h, "maximum", var, 0); /* by rounding; NaN stays */
    *ret_mean = pl_hlo_two(h, "add", mean, pl_hlo_two(h, "add", off, rest));
    return pl_hlo_two(h, "subtract", x, pl_hlo_along(h, rest, 1, x));
}

void pl_lower_batchnorm_forward(struct pl_lower *l, size_t i)
{
    const struct pl_node *node = pl_lower_node(l, i);
    struct pl_hlo *h = l->h;
    struct pl_hlo_value x = pl_lower_in(l, i, 0), mean = pl_lower_in(l, i, 3);
    struct pl_hlo_value var = pl_lower_in(l, i, 4), inv_std;
    size_t inner = node->in[0]->count / (x.shape[0] * x.shape[1]);
    double n = (double)(x.shape[0] * inner * PL_MAX(l->normed, 1u));

    x = pl_hlo_reshape(h, x, 3, (size_t[]){x.shape[0], x.shape[1], inner});
    if (l->tape->want_grad) {
        x = statistics_of(l, x, &mean, &var);
        run_on(l, i, 3, mean);
        run_on(l, i, 4, pl_hlo_with(h, "multiply", var, n / (n > 1 ? n - 1 : 1)));
    } else {
        x = pl_hlo_two(h, "subtract", x, pl_hlo_along(h, mean, 1, x));
    }
    inv_std = pl_hlo_one(h, "rsqrt", pl_hlo_with(h, "add", var, node->attr.f[0]));
    inv_std = pl_hlo_along(h, inv_std, 1, x);
    l->kept[i][0] = x;
    l->kept[i][1] = inv_std;
    x = pl_hlo_two(h, "multiply", x, inv_std);
    x = pl_hlo_two(h, "multiply", x, pl_hlo_along(h, pl_lower_in(l, i, 1), 1, x));
    x = pl_hlo_two(h, "add", x, pl_hlo_along(h, pl_lower_in(l, i, 2), 1, x));
    l->kept[i][2] = x;
    pl_lower_set(l, i, pl_lower_activate(h, (enum pl_activation)node->attr.i[0], x));
}

/* With z = (x - mean) inv_std: dx = w inv_std (dz - mean(dz) - z mean(dz z)). */
void pl_lower_batchnorm_backward(struct pl_lower *l, size_t i, struct pl_hlo_value dy)
{
    struct pl_hlo *h = l->h;
    struct pl_hlo_value inv_std = l->kept[i][1], z, dz, of_z, w;

    z = pl_hlo_two(h, "multiply", l->kept[i][0], inv_std);
    dz = pl_lower_slope(h, (enum pl_activation)pl_lower_node(l, i)->attr.i[0], l->kept[i][2],
                        pl_hlo_reshape_like(h, dy, z));
    of_z = pl_hlo_two(h, "multiply", dz, z);
    if (pl_lower_wants(l, i, 1))
        pl_lower_add(l, i, 1, pl_hlo_reduce(h, "add", of_z, all_but_channels));
    if (pl_lower_wants(l, i, 2))
        pl_lower_add(l, i, 2, pl_hlo_reduce(h, "add", dz, all_but_channels));
    if (!pl_lower_wants(l, i, 0))
        return;
    of_z = pl_hlo_two(h, "multiply", z, pl_hlo_along(h, mean_of(l, of_z), 1, z));
    dz = pl_hlo_two(h, "subtract", dz, pl_hlo_along(h, mean_of(l, dz), 1, dz));
    dz = pl_hlo_two(h, "multiply", pl_hlo_two(h, "subtract", dz, of_z), inv_std);
    w = pl_hlo_along(h, pl_lower_in(l, i, 1), 1, dz);
    pl_lower_add(l, i, 0, pl_hlo_two(h, "multiply", dz, w));
}
