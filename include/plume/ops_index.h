/* SPDX-License-Identifier: MIT */
/* The rest of plume/ops.h, which includes this: elements by position, positions of elements,
 * running sums, padding, and losses that leave rows out. Indices and labels are tensors of
 * PLUME_I32. One out of range makes NaNs; if it came with the batch, training ends with its value
 * and row. Values and gradients are PyTorch's unless noted. */
#ifndef PL_OPS_INDEX_H
#define PL_OPS_INDEX_H

#include "plume/ops.h" /* which includes this at its end; whichever is first, both are there */

#include <errno.h>
#include <stdio.h>

/* Element (.., j, ..) is x at (.., index(.., j, ..), ..), in dimension dim. The index has x's shape
 * but for that dimension. Gradients of an element that was chosen several times add up. An index
 * out of range gives NaN. x has real numbers; labels are chosen as plume_argmax() of what is chosen
 * of plume_one_hot(). */
static inline plume_tensor *
plume_gather(struct plume_context *pl, plume_tensor *x, size_t dim, plume_tensor *index)
{
    plume_tensor *in[] = {x, index};
    struct plume_op_args args = {{(int64_t)dim}, {0}};

    return plume_op_call(pl, PLUME_OP_GATHER, in, 2, &args);
}

/* The elements of dimension dim whose numbers are in index [m], in its order. plume_embedding() is
 * faster for the rows of a large table. */
static inline plume_tensor *
plume_index_select(struct plume_context *pl, plume_tensor *x, size_t dim, plume_tensor *index)
{
    plume_tensor *in[] = {x, index};
    struct plume_op_args args = {{(int64_t)dim, 1}, {0}};

    return plume_op_call(pl, PLUME_OP_GATHER, in, 2, &args);
}

/* Both, but an index equal to `skip`, such as -100, gives 0 and has no gradient. `shared`: the
 * index is plume_index_select()'s. */
static inline plume_tensor *plume_gather_but(struct plume_context *pl,
                                             plume_tensor *x,
                                             size_t dim,
                                             plume_tensor *index,
                                             int shared,
                                             int32_t skip)
{
    plume_tensor *in[] = {x, index};
    struct plume_op_args args = {{(int64_t)dim, shared, 1, skip}, {0}};

    return plume_op_call(pl, PLUME_OP_GATHER, in, 2, &args);
}

/* x, and to its element (.., index(.., j, ..), ..), in dimension dim, is added src at (.., j, ..):
 * what plume_gather() does the other way round. The index has src's shape, and both have x's but
 * for that dimension. Equal indices add up, in the order of j. An index out of range makes all NaN.
 */
static inline plume_tensor *plume_scatter_add(
    struct plume_context *pl, plume_tensor *x, size_t dim, plume_tensor *index, plume_tensor *src)
{
    plume_tensor *in[] = {x, index, src};
    struct plume_op_args args = {{(int64_t)dim}, {0}};

    return plume_op_call(pl, PLUME_OP_SCATTER_ADD, in, 3, &args);
}

/* The same with one index [m] for all, as plume_index_select(): element j of src's dimension dim is
 * added to element index[j] of x's. Rows (dim 0) are the fastest on a GPU: other dimensions compare
 * each index with each element. */
static inline plume_tensor *plume_index_add(
    struct plume_context *pl, plume_tensor *x, size_t dim, plume_tensor *index, plume_tensor *src)
{
    plume_tensor *in[] = {x, index, src};
    struct plume_op_args args = {{(int64_t)dim, 1}, {0}};

    return plume_op_call(pl, PLUME_OP_SCATTER_ADD, in, 3, &args);
}

/* 1 at the label of each row, else 0: labels [...], result [..., classes]; no gradient. */
static inline plume_tensor *
plume_one_hot(struct plume_context *pl, plume_tensor *labels, size_t classes)
{
    struct plume_op_args args = {{(int64_t)classes}, {0}};

    return plume_op_call(pl, PLUME_OP_ONE_HOT, &labels, 1, &args);
}

/* x without dimension dim, whose size is 1; [1] if it is the only one. */
static inline plume_tensor *plume_drop_dim(struct plume_context *pl, plume_tensor *x, size_t dim)
{
    size_t shape[PLUME_RANK_MAX + 1] = {1}, rank = x ? pl->api->shape(x, shape) : 0;

    if (!x || rank < 2)
        return x;
    for (size_t d = dim; d + 1 < rank; d++)
        shape[d] = shape[d + 1];
    return plume_reshape(pl, x, rank - 1, shape);
}

/* Positions (PLUME_I32, no gradient) of the k largest elements along dimension dim, the largest
 * first, of equal ones the first (PyTorch leaves that open); a NaN counts as the largest. dim has
 * size k then. */
static inline plume_tensor *
plume_topk_index(struct plume_context *pl, plume_tensor *x, size_t dim, size_t k)
{
    struct plume_op_args args = {{(int64_t)dim, (int64_t)k, 0, 1}, {0}};

    return plume_op_call(pl, PLUME_OP_TOP, &x, 1, &args);
}

/* The k smallest, the smallest first; a NaN comes last. */
static inline plume_tensor *
plume_smallest_index(struct plume_context *pl, plume_tensor *x, size_t dim, size_t k)
{
    struct plume_op_args args = {{(int64_t)dim, (int64_t)k, 1, 0}, {0}};

    return plume_op_call(pl, PLUME_OP_TOP, &x, 1, &args);
}

/* The k largest elements along dimension dim, in order; *ret_index (may be NULL) is set to their
 * positions. */
static inline plume_tensor *plume_topk(
    struct plume_context *pl, plume_tensor *x, size_t dim, size_t k, plume_tensor **ret_index)
{
    plume_tensor *index = plume_topk_index(pl, x, dim, k);

    if (ret_index)
        *ret_index = index;
    return plume_gather(pl, x, dim, index);
}

/* Position of the largest element along dimension dim, which is removed from the shape (one
 * element: [1]); PLUME_I32, no gradient. A NaN is the largest. */
static inline plume_tensor *plume_argmax(struct plume_context *pl, plume_tensor *x, size_t dim)
{
    return plume_drop_dim(pl, plume_topk_index(pl, x, dim, 1), dim);
}

static inline plume_tensor *
plume_first_smallest(struct plume_context *pl, plume_tensor *x, size_t dim)
{
    struct plume_op_args args = {{(int64_t)dim, 1, 1, 1}, {0}};

    return plume_op_call(pl, PLUME_OP_TOP, &x, 1, &args);
}

/* The same of the smallest; a NaN is the smallest. */
static inline plume_tensor *plume_argmin(struct plume_context *pl, plume_tensor *x, size_t dim)
{
    return plume_drop_dim(pl, plume_first_smallest(pl, x, dim), dim);
}

/* The largest element along dimension dim, which is removed; the gradient goes to the first of
 * equal ones. */
static inline plume_tensor *plume_max(struct plume_context *pl, plume_tensor *x, size_t dim)
{
    return plume_drop_dim(pl, plume_topk(pl, x, dim, 1, NULL), dim);
}

static inline plume_tensor *plume_min(struct plume_context *pl, plume_tensor *x, size_t dim)
{
    return plume_drop_dim(pl, plume_gather(pl, x, dim, plume_first_smallest(pl, x, dim)), dim);
}

/* Running sums along dimension dim, each element itself included. */
static inline plume_tensor *plume_cumsum(struct plume_context *pl, plume_tensor *x, size_t dim)
{
    struct plume_op_args args = {{(int64_t)dim}, {0}};

    return plume_op_call(pl, PLUME_OP_CUMSUM, &x, 1, &args);
}

/* x with `before` and `after` elements of `value` at the ends of dimension dim. */
static inline plume_tensor *plume_pad(struct plume_context *pl,
                                      plume_tensor *x,
                                      size_t dim,
                                      size_t before,
                                      size_t after,
                                      double value)
{
    size_t shape[PLUME_RANK_MAX] = {1}, rank = x ? pl->api->shape(x, shape) : 0, n = 0;
    plume_tensor *list[3];

    if (!x)
        return plume_refuse_null(pl, "pad: x is NULL");
    if (dim >= rank) {
        pl->api->fail(pl, -EINVAL, "plume_pad: the tensor does not have this dimension");
        return NULL;
    }
    if (before) {
        shape[dim] = before;
        list[n++] = plume_full(pl, rank, shape, value);
    }
    list[n++] = x;
    if (after) {
        shape[dim] = after;
        list[n++] = plume_full(pl, rank, shape, value);
    }
    return n == 1 ? x : plume_cat_along(pl, dim, n, list);
}

/* Fails the hook with the text and both shapes: for functions made of ops. Returns NULL. */
static inline plume_tensor *
plume_refuse_two(struct plume_context *pl, const char *text, plume_tensor *a, plume_tensor *b)
{
    char all[640], *at = all, *end = all + sizeof(all);
    size_t shape[PLUME_RANK_MAX] = {0}, rank;

    at += snprintf(at, 192, "%.190s", text);
    for (int k = 0; k < 2; k++) {
        rank = pl->api->shape(k ? b : a, shape);
        at += snprintf(at, (size_t)(end - at), k ? ", [" : ": [");
        for (size_t d = 0; d < rank; d++)
            at += snprintf(at, (size_t)(end - at), d ? ", %zu" : "%zu", shape[d]);
        at += snprintf(at, (size_t)(end - at), "]");
    }
    pl->api->fail(pl, -EINVAL, all);
    return NULL;
}

/* 0 if labels [...] have as many dimensions (but those of 1) as the rows of x [..., classes], and
 * other sizes: one is likely transposed, and labels and rows of one place do not belong together.
 * Their numbers are not compared. */
static inline int plume_labels_fit(struct plume_context *pl, plume_tensor *x, plume_tensor *labels)
{
    size_t rows[PLUME_RANK_MAX] = {0}, own[PLUME_RANK_MAX] = {0}, i = 0, k = 0;
    size_t n = pl->api->shape(x, rows), n_own = pl->api->shape(labels, own);
    int differ = 0;

    for (n = n ? n - 1 : 0;; i++, k++) {
        while (i < n && rows[i] == 1)
            i++;
        while (k < n_own && own[k] == 1)
            k++;
        if (i == n || k == n_own)
            return !differ || i < n || k < n_own;
        differ |= rows[i] != own[k];
    }
}

/* Negative log likelihood: the mean over rows of -log_p[label], each counted by the weight of its
 * label: log_p [..., classes], labels [...], weights [classes] or NULL (all 1). Rows whose label is
 * `ignore` (PyTorch's default is -100) count nothing; NaN if that is all. One element. */
static inline plume_tensor *plume_nll(struct plume_context *pl,
                                      plume_tensor *log_p,
                                      plume_tensor *labels,
                                      plume_tensor *weights,
                                      int32_t ignore)
{
    size_t shape[PLUME_RANK_MAX] = {1}, rank = log_p ? pl->api->shape(log_p, shape) : 1;
    size_t last = rank ? rank - 1 : 0, column[2] = {0, 1}, flat[2] = {0, shape[last]}, all = 0;
    plume_tensor *own, *weight;

    if (log_p && labels && !plume_labels_fit(pl, log_p, labels))
        return plume_refuse_two(
            pl, "nll: the labels have other dimensions than the rows: is one transposed?", log_p,
            labels);
    labels = plume_reshape(pl, labels, 1, &all);
    own = pl_f32_gather(pl, plume_reshape(pl, log_p, 2, flat), 1,
                        plume_reshape(pl, labels, 2, column), 0, 1, ignore);
    own = plume_reshape(pl, own, 1, &all);
    if (!weights)
        weights = plume_full(pl, 1, &shape[last], 1);
    weight = pl_f32_gather(pl, weights, 0, labels, 1, 1, ignore);
    own = pl_f32_sum(pl, pl_f32_mul(pl, own, weight), 0, 1);
    return pl_f32_div(pl, pl_f32_scale(pl, own, -1, 0), pl_f32_sum(pl, weight, 0, 1));
}

/* plume_nll() of log softmax(logits): plume_cross_entropy() with classes' weights and rows to
 * ignore. */
static inline plume_tensor *plume_cross_entropy_but(struct plume_context *pl,
                                                    plume_tensor *logits,
                                                    plume_tensor *labels,
                                                    plume_tensor *weights,
                                                    int32_t ignore)
{
    return plume_nll(pl, plume_log_softmax(pl, logits), labels, weights, ignore);
}

#endif
