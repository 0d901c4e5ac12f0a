/* SPDX-License-Identifier: MIT */
/* Windows of images as rows, their sums, and resampling. */
#include "runtime/engine/xla/lower_private.h"

#include <stdlib.h>

enum { HEIGHT, WIDTH };

/* ---- unfold and fold: attr.i as in op_conv.c ---- */

struct windows {
    size_t kernel[2], stride[2], pad[2], dilation[2], groups;
    size_t batch, channels, size[2], places[2]; /* of the image; of windows */
};

static void unpack(int64_t packed, size_t ret[2])
{
    ret[HEIGHT] = (uint64_t)packed & UINT32_MAX;
    ret[WIDTH] = (uint64_t)packed >> 32;
}

static struct windows windows_of(const struct pl_node *node, const plume_tensor *image)
{
    struct windows w = {
        .groups = (size_t)node->attr.i[4], .batch = image->shape[0], .channels = image->shape[1]};

    unpack(node->attr.i[0], w.kernel);
    unpack(node->attr.i[1], w.stride);
    unpack(node->attr.i[2], w.pad);
    unpack(node->attr.i[3], w.dilation);
    for (size_t d = 0; d < 2; d++) {
        w.size[d] = image->shape[2 + d];
        w.places[d] = pl_window_count(w.size[d], w.kernel[d], w.stride[d], w.pad[d], w.dilation[d]);
    }
    return w;
}

/* The element of each window at tap (u, v): [batch, channels, places, places, 1]. */
static struct pl_hlo_value
tap_of(struct pl_hlo *h, const struct windows *w, struct pl_hlo_value padded, size_t u, size_t v)
{
    size_t at[] = {u * w->dilation[HEIGHT], v * w->dilation[WIDTH]};
    size_t first[] = {0, 0, at[HEIGHT], at[WIDTH]}, step[] = {1, 1, w->stride[0], w->stride[1]};
    size_t end[] = {w->batch, w->channels, at[HEIGHT] + (w->places[HEIGHT] - 1) * w->stride[0] + 1,
                    at[WIDTH] + (w->places[WIDTH] - 1) * w->stride[1] + 1};
    size_t shape[] = {w->batch, w->channels, w->places[HEIGHT], w->places[WIDTH], 1};

    return pl_hlo_reshape(h, pl_hlo_strided_slice(h, padded, first, end, step), 5, shape);
}

/* Rows are [groups, batch, places, places, channels / groups, taps]; in the other order of
 * dimensions here: [batch, groups, channels / groups, places, places, taps]. */
static const size_t to_rows[] = {1, 0, 3, 4, 2, 5}, from_rows[] = {1, 0, 4, 2, 3, 5};

static struct pl_hlo_value
unfold(struct pl_lower *l, const struct windows *w, struct pl_hlo_value x)
{
    struct pl_hlo *h = l->h;
    size_t taps = w->kernel[HEIGHT] * w->kernel[WIDTH];
    size_t shape[] = {w->batch,          w->groups,        w->channels / w->groups,
                      w->places[HEIGHT], w->places[WIDTH], taps};
    int64_t pad[] = {0, 0, (int64_t)w->pad[HEIGHT], (int64_t)w->pad[WIDTH]}, none[4] = {0};
    struct pl_hlo_value *tap = calloc(taps, sizeof(*tap)), all = x;

    if (!tap) {
        h->failed = -ENOMEM;
        return x;
    }
    x = pl_hlo_pad(h, x, pad, pad, none);
    for (size_t k = 0; k < taps; k++)
        tap[k] = tap_of(h, w, x, k / w->kernel[WIDTH], k % w->kernel[WIDTH]);
    all = pl_hlo_reshape(h, pl_hlo_concat(h, tap, taps, 4), 6, shape);
    free(tap);
    return pl_hlo_transpose(h, all, to_rows);
}

/* One tap's part of the image: its windows' elements spread by the stride. */
static struct pl_hlo_value
spread(struct pl_hlo *h, const struct windows *w, struct pl_hlo_value rows, size_t k)
{
    size_t shape[] = {w->batch, w->channels, w->places[HEIGHT], w->places[WIDTH]};
    size_t at[] = {k / w->kernel[WIDTH] * w->dilation[HEIGHT],
                   k % w->kernel[WIDTH] * w->dilation[WIDTH]};
    int64_t low[4] = {0}, high[4] = {0}, between[4] = {0};

    for (size_t d = 0; d < 2; d++) {
        between[2 + d] = (int64_t)w->stride[d] - 1;
        low[2 + d] = (int64_t)at[d] - (int64_t)w->pad[d];
        high[2 + d] = (int64_t)w->size[d] - low[2 + d] -
                      ((int64_t)(w->places[d] - 1) * (int64_t)w->stride[d] + 1);
    }
    rows = pl_hlo_reshape(h, pl_hlo_slice(h, rows, 5, k, 1), 4, shape);
    return pl_hlo_pad(h, rows, low, high, between);
}

static struct pl_hlo_value
fold(struct pl_lower *l, const struct windows *w, struct pl_hlo_value rows)
{
    struct pl_hlo *h = l->h;
    size_t taps = w->kernel[HEIGHT] * w->kernel[WIDTH];
    size_t shape[] = {
        w->groups, w->batch, w->places[HEIGHT], w->places[WIDTH], w->channels / w->groups, taps};
    struct pl_hlo_value sum;

    rows = pl_hlo_transpose(h, pl_hlo_reshape(h, rows, 6, shape), from_rows);
    sum = spread(h, w, rows, 0);
    for (size_t k = 1; k < taps; k++)
        sum = pl_hlo_two(h, "add", sum, spread(h, w, rows, k));
    return sum;
}

void pl_lower_unfold_forward(struct pl_lower *l, size_t i)
{
    struct windows w = windows_of(pl_lower_node(l, i), pl_lower_node(l, i)->in[0]);

    pl_lower_set(l, i, unfold(l, &w, pl_lower_in(l, i, 0)));
}

void pl_lower_unfold_backward(struct pl_lower *l, size_t i, struct pl_hlo_value dy)
{
    struct windows w = windows_of(pl_lower_node(l, i), pl_lower_node(l, i)->in[0]);

    if (pl_lower_wants(l, i, 0))
        pl_lower_add(l, i, 0, fold(l, &w, dy));
}

void pl_lower_fold_forward(struct pl_lower *l, size_t i)
{
    struct windows w = windows_of(pl_lower_node(l, i), pl_lower_node(l, i)->out);

    pl_lower_set(l, i, fold(l, &w, pl_lower_in(l, i, 0)));
}

void pl_lower_fold_backward(struct pl_lower *l, size_t i, struct pl_hlo_value dy)
{
    struct windows w = windows_of(pl_lower_node(l, i), pl_lower_node(l, i)->out);

    if (pl_lower_wants(l, i, 0))
        pl_lower_add(l, i, 0, unfold(l, &w, dy));
}

/* ---- resample: a product with a matrix of weights [m, n]. attr.i = outer, n, m, inner, mode ----
 */

static struct pl_hlo_value weights(struct pl_lower *l, const int64_t *at)
{
    size_t n = (size_t)at[1], m = (size_t)at[2];
    float *w = calloc(m * n + 1, sizeof(*w));
    struct pl_hlo_value v;

    for (size_t i = 0; w && i < m; i++) {
        struct pl_taps t = pl_taps_of((enum pl_resample)at[4], n, m, i);

        for (size_t k = 0; k < t.count; k++)
            w[i * n + t.first + k] += (float)(k ? t.others : t.weight);
    }
    if (!w)
        l->h->failed = -ENOMEM;
    v = w ? pl_hlo_numbers(l->h, 2, (size_t[]){m, n}, w)
          : pl_hlo_fill(l->h, "f32", 2, (size_t[]){m, n}, 0);
    free(w);
    return v;
}

/* x [outer, from, inner] by the weights' other dimension. */
static struct pl_hlo_value resample(struct pl_lower *l, size_t i, struct pl_hlo_value x, bool back)
{
    const int64_t *at = pl_lower_node(l, i)->attr.i;
    size_t shape[] = {(size_t)at[0], (size_t)at[back ? 2 : 1], (size_t)at[3]};

    x = pl_hlo_dot(l->h, pl_hlo_reshape(l->h, x, 3, shape), weights(l, at),
                   &(struct pl_hlo_dot){.a_sum = 1, .b_sum = back ? 0 : 1});
    return pl_hlo_transpose(l->h, x, (size_t[]){0, 2, 1});
}

void pl_lower_resample_forward(struct pl_lower *l, size_t i)
{
    pl_lower_set(l, i, resample(l, i, pl_lower_in(l, i, 0), false));
}

void pl_lower_resample_backward(struct pl_lower *l, size_t i, struct pl_hlo_value dy)
{
    if (pl_lower_wants(l, i, 0))
        pl_lower_add(l, i, 0, resample(l, i, dy, true));
}
