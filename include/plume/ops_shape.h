/* SPDX-License-Identifier: MIT */
/* Other arrangements of a tensor's elements, made of the ops of plume/ops.h: include it after
 * plume/module.h. Values and gradients are PyTorch's. */
#ifndef PL_OPS_SHAPE_H
#define PL_OPS_SHAPE_H

#include "plume/ops.h"
#include "plume/ops_whole.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>

/* first, first + step, first + 2 step, ...: PLUME_I32 [n], no gradient. All have 32 bits. */
static inline plume_tensor *
plume_range(struct plume_context *pl, size_t n, int64_t first, int64_t step)
{
    struct plume_op_args args = {{(int64_t)n, first, step}, {0}};

    return plume_op_call(pl, PLUME_OP_RANGE, NULL, 0, &args);
}

/* x repeated to [shape[0], ... shape[rank-1]], of real numbers: as plume_add() would, from the last
 * dimension on. A copy, not a view. */
static inline plume_tensor *
plume_expand(struct plume_context *pl, plume_tensor *x, size_t rank, const size_t *shape)
{
    struct plume_op_args args = {{(int64_t)rank}, {0}};

    if (rank && !shape)
        return plume_refuse_null(pl, "expand: the shape is NULL");
    for (size_t i = 0; i < rank && i < PLUME_RANK_MAX; i++)
        args.i[i + 1] = (int64_t)shape[i];
    return plume_op_call(pl, PLUME_OP_EXPAND, &x, 1, &args);
}

/* Fails the hook: the function of this name was asked for a dimension that is not among `rank`. For
 * functions made of ops. Returns NULL. */
static inline plume_tensor *
plume_refuse_dims(struct plume_context *pl, const char *name, size_t dim, size_t rank)
{
    char all[192];

    snprintf(all, sizeof(all), "%.100s: there is no dimension %zu among %zu", name, dim, rank);
    pl->api->fail(pl, -EINVAL, all);
    return NULL;
}

/* x with a dimension of 1 before dimension dim, or after the last one (torch.unsqueeze). */
static inline plume_tensor *plume_add_dim(struct plume_context *pl, plume_tensor *x, size_t dim)
{
    size_t shape[PLUME_RANK_MAX + 1] = {1}, rank = x ? pl->api->shape(x, shape) : 0;

    if (!x)
        return plume_refuse_null(pl, "add_dim: x is NULL");
    if (dim > rank)
        return plume_refuse_dims(pl, "add_dim", dim, rank + 1);
    for (size_t d = rank; d > dim; d--)
        shape[d] = shape[d - 1];
    shape[dim] = 1;
    return plume_reshape(pl, x, rank + 1, shape);
}

/* n tensors of one shape along a new dimension dim: [.., n, ..] has element k of the list at k. n
 * is at most 4096. */
static inline plume_tensor *
plume_stack(struct plume_context *pl, size_t dim, size_t n, plume_tensor *const *list)
{
    plume_tensor *part[64], *all[64];
    size_t n_all = 0;

    if (n == 0 || n > 64 * 64) {
        pl->api->fail(pl, -EINVAL, "stack: takes 1 to 4096 tensors");
        return NULL;
    }
    if (!list)
        return plume_refuse_null(pl, "stack: the list of tensors is NULL");
    for (size_t first = 0; first < n; first += 64) {
        size_t count = n - first < 64 ? n - first : 64;

        for (size_t i = 0; i < count; i++)
            part[i] = plume_add_dim(pl, list[first + i], dim);
        all[n_all++] = count == 1 ? part[0] : plume_cat_along(pl, dim, count, part);
    }
    return n_all == 1 ? all[0] : plume_cat_along(pl, dim, n_all, all);
}

/* x, of real numbers, with the elements of dimension dim in the opposite order. */
static inline plume_tensor *plume_flip(struct plume_context *pl, plume_tensor *x, size_t dim)
{
    size_t shape[PLUME_RANK_MAX] = {1}, rank = x ? pl->api->shape(x, shape) : 0;

    if (!x)
        return plume_refuse_null(pl, "flip: x is NULL");
    if (dim >= rank)
        return plume_refuse_dims(pl, "flip", dim, rank);
    return plume_index_select(pl, x, dim, plume_range(pl, shape[dim], (int64_t)shape[dim] - 1, -1));
}

/* x with the elements of dimension dim moved `shift` places towards its end; those that leave it
 * come in again at the start. A negative shift moves them the other way. */
static inline plume_tensor *
plume_roll(struct plume_context *pl, plume_tensor *x, size_t dim, int64_t shift)
{
    size_t shape[PLUME_RANK_MAX] = {1}, rank = x ? pl->api->shape(x, shape) : 0, tail;
    plume_tensor *list[2];
    int64_t n, by;

    if (!x)
        return plume_refuse_null(pl, "roll: x is NULL");
    if (dim >= rank)
        return plume_refuse_dims(pl, "roll", dim, rank);
    n = (int64_t)shape[dim];
    by = n ? shift % n : 0;
    tail = (size_t)(by < 0 ? by + n : by);
    if (tail == 0)
        return x;
    list[0] = plume_slice(pl, x, dim, shape[dim] - tail, tail);
    list[1] = plume_slice(pl, x, dim, 0, shape[dim] - tail);
    return plume_cat_along(pl, dim, 2, list);
}

/* Column minus row of the elements of x's last two dimensions: PLUME_I32 [rows, columns]. `name` is
 * the function that needs it, for a refusal. */
static inline plume_tensor *
plume_columns_less_rows(struct plume_context *pl, plume_tensor *x, const char *name)
{
    size_t shape[PLUME_RANK_MAX] = {1}, rank = x ? pl->api->shape(x, shape) : 2, *last;
    plume_tensor *place, *width;

    if (!x)
        return plume_refuse_null(pl, "tril or triu: x is NULL");
    if (rank < 2)
        return plume_refuse_dims(pl, name, 1, rank);
    last = shape + rank - 2;
    place = plume_reshape(pl, plume_range(pl, last[0] * last[1], 0, 1), 2, last);
    width = plume_whole_number(pl, (int32_t)last[1]);
    return plume_whole_sub(pl, plume_whole_mod(pl, place, width),
                           plume_whole_div(pl, place, width));
}

/* x, but 0 above a diagonal of its last two dimensions: where the column is larger than the row
 * plus `diagonal`. */
static inline plume_tensor *plume_tril(struct plume_context *pl, plume_tensor *x, int32_t diagonal)
{
    const size_t one = 1;
    plume_tensor *mask = plume_whole_le(pl, plume_columns_less_rows(pl, x, "tril"),
                                        plume_whole_number(pl, diagonal));

    return plume_where(pl, mask, x, plume_full(pl, 1, &one, 0));
}

/* x, but 0 below a diagonal: where the column is smaller than the row plus `diagonal`. */
static inline plume_tensor *plume_triu(struct plume_context *pl, plume_tensor *x, int32_t diagonal)
{
    plume_tensor *mask = plume_whole_lt(pl, plume_columns_less_rows(pl, x, "triu"),
                                        plume_whole_number(pl, diagonal));

    return plume_masked_fill(pl, x, mask, 0);
}

/* x, but src in place of the elements that the index names; shapes as plume_scatter_add()'s. An
 * element that is named twice is NaN (PyTorch takes one of the two, and does not tell which). */
static inline plume_tensor *plume_scatter(
    struct plume_context *pl, plume_tensor *x, size_t dim, plume_tensor *index, plume_tensor *src)
{
    size_t sx[PLUME_RANK_MAX] = {0}, ss[PLUME_RANK_MAX] = {0}, one = 1;
    size_t rx = x ? pl->api->shape(x, sx) : 0, rs = src ? pl->api->shape(src, ss) : 0;
    plume_tensor *none, *times, *put;

    if (!x || !src)
        return plume_refuse_null(pl, "scatter: x or src is NULL");
    none = plume_full(pl, rx, sx, 0);
    times = plume_scatter_add(pl, none, dim, index, plume_full(pl, rs, ss, 1));
    put = plume_scatter_add(pl, none, dim, index, src);
    put = plume_where(pl, plume_le(pl, times, plume_full(pl, 1, &one, 1)), put,
                      plume_full(pl, 1, &one, (double)NAN));
    return plume_where(pl, times, put, x);
}

#endif
