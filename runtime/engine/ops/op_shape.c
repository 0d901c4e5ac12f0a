/* SPDX-License-Identifier: MIT */
/* Views (nothing runs) and concatenation. */
#include "runtime/engine/ops/op_private.h"

#include <string.h>

static const struct pl_op op_reshape = {
    .name = "reshape", .cast = PL_CAST_NONE, .view = true, .split = PL_SPLIT_RESHAPE};
static const struct pl_op op_slice = {
    .name = "slice", .cast = PL_CAST_NONE, .view = true, .split = PL_SPLIT_SLICE};
static const struct pl_op op_permute = {
    .name = "permute", .cast = PL_CAST_NONE, .view = true, .split = PL_SPLIT_PERMUTE};

/* A view that begins with the dimensions of x. */
static struct pl_apply view_of(const struct pl_op *op, const struct pl_op_request *req)
{
    const plume_tensor *x = req->in[0];
    struct pl_apply what = pl_op_like(op, req, x);

    memcpy(what.stride, x->stride, sizeof(what.stride));
    what.dtype = x->dtype;
    return what;
}

/* Copies x's shape and strides without the dimensions of 1, whose strides have no meaning. The rest
 * of *ret is not set. */
static void drop_units(const plume_tensor *x, plume_tensor *ret)
{
    ret->rank = 0;
    for (size_t d = 0; d < x->rank; d++) {
        if (x->shape[d] == 1)
            continue;
        ret->shape[ret->rank] = x->shape[d];
        ret->stride[ret->rank++] = x->stride[d];
    }
}

/* Computes the strides of `shape` over x's elements in row-major order; false if a copy is needed.
 * Walks both shapes from the front over groups of dimensions with equal numbers of elements. */
static bool reshape_strides(const plume_tensor *t, struct pl_apply *what)
{
    plume_tensor x;
    size_t i = 0, k = 0;

    drop_units(t, &x);
    while (i < x.rank || k < what->rank) {
        size_t first_i = i, first_k = k, have = i < x.rank ? x.shape[i++] : 1;
        size_t want = k < what->rank ? what->shape[k++] : 1, step;

        while (have != want)
            if (have < want && i < x.rank)
                have *= x.shape[i++];
            else if (want < have && k < what->rank)
                want *= what->shape[k++];
            else
                return false;                    /* cannot happen: the counts are equal and not 0 */
        for (size_t d = first_i; d + 1 < i; d++) /* is it one run of equal steps? */
            if (x.stride[d] != x.stride[d + 1] * x.shape[d + 1])
                return false;
        step = i > first_i ? x.stride[i - 1] : 1;
        for (size_t d = k; d-- > first_k; step *= what->shape[d])
            what->stride[d] = step;
    }
    return true;
}

/* The shape that a module asks for. */
static int refuse_shape(const struct pl_op_request *req, struct pl_error *err)
{
    plume_tensor asked = {.rank = (size_t)req->args.i[0]};
    char text[128];

    for (size_t i = 0; i < asked.rank; i++)
        asked.shape[i] = (size_t)req->args.i[i + 1];
    return pl_op_refuse_as(req, err, "the new shape %s has another number of elements",
                           strchr(pl_tensor_text(&asked, text, sizeof(text)), '['));
}

int pl_build_reshape(struct pl_tape *tape,
                     const struct pl_op_request *req,
                     plume_tensor **ret,
                     struct pl_error *err)
{
    struct pl_apply what = view_of(&op_reshape, req);
    size_t count = 1, open = SIZE_MAX;

    what.rank = (size_t)req->args.i[0];
    if (what.rank > PLUME_RANK_MAX)
        return pl_op_refuse_as(req, err, "%lld dimensions are more than %d",
                               (long long)req->args.i[0], PLUME_RANK_MAX);
    if (req->in[0]->count == 0)
        return pl_op_refuse(req, "it has no elements", err);
    for (size_t i = 0; i < what.rank; i++) {
        what.shape[i] = (size_t)req->args.i[i + 1];
        if (what.shape[i] == 0 && open == SIZE_MAX) {
            open = i;
            what.shape[i] = 1;
        }
        if (__builtin_mul_overflow(count, what.shape[i], &count) || count > req->in[0]->count)
            return refuse_shape(req, err);
    }
    if (count == 0 || req->in[0]->count % count || (open == SIZE_MAX && count != req->in[0]->count))
        return refuse_shape(req, err);
    if (open != SIZE_MAX)
        what.shape[open] = req->in[0]->count / count;
    if (!reshape_strides(req->in[0], &what)) {
        plume_tensor *dense = req->in[0];
        struct pl_op_request again = *req;
        int r = pl_tape_dense(tape, &dense, err);

        if (r < 0)
            return r;
        again.in = &dense;
        return pl_build_reshape(tape, &again, ret, err);
    }
    return pl_tape_apply(tape, &what, ret, err);
}

int pl_build_slice(struct pl_tape *tape,
                   const struct pl_op_request *req,
                   plume_tensor **ret,
                   struct pl_error *err)
{
    struct pl_apply what = view_of(&op_slice, req);
    uint64_t dim = (uint64_t)req->args.i[0], first = (uint64_t)req->args.i[1];
    uint64_t count = (uint64_t)req->args.i[2];

    if (dim >= what.rank)
        return pl_op_refuse_as(req, err, "there is no dimension %lld", (long long)dim);
    if (count == 0 || first >= what.shape[dim] || count > what.shape[dim] - first)
        return pl_op_refuse_as(req, err,
                               "%lld elements from element %lld of dimension %llu on are asked for",
                               (long long)count, (long long)first, (unsigned long long)dim);
    what.shape[dim] = count;
    what.offset = first * what.stride[dim];
    return pl_tape_apply(tape, &what, ret, err);
}

int pl_build_permute(struct pl_tape *tape,
                     const struct pl_op_request *req,
                     plume_tensor **ret,
                     struct pl_error *err)
{
    struct pl_apply what = view_of(&op_permute, req);
    const plume_tensor *x = req->in[0];
    unsigned seen = 0;

    for (size_t i = 0; i < x->rank; i++) {
        uint64_t from = (uint64_t)req->args.i[i];

        if (from >= x->rank || seen & 1u << from)
            return pl_op_refuse_as(req, err,
                                   "the order does not name each dimension once: element %zu is "
                                   "%lld",
                                   i, (long long)req->args.i[i]);
        seen |= 1u << from;
        what.attr.i[0] |= (int64_t)(from << (4 * i));
        what.shape[i] = x->shape[from];
        what.stride[i] = x->stride[from];
    }
    return pl_tape_apply(tape, &what, ret, err);
}

/* cat: for each index of the dimensions before the concatenated one (`outer` in total), one run of
 * each input */

static size_t cat_outer(const struct pl_call *c)
{
    size_t outer = 1;

    for (int64_t d = 0; d < c->attr->i[0]; d++)
        outer *= c->node->out->shape[d];
    return outer;
}

static size_t element_bytes(const struct pl_call *c)
{
    return pl_dtype_is_real(c->node->out->dtype) ? pl_real_size(c->k->real)
                                                 : pl_dtype_size(c->node->out->dtype);
}

/* Copies input i from or to the output: `n` elements of each of the output's rows of `row`, from
 * element `first` on. */
static void cat_copy(const struct pl_call *c, size_t i, size_t first, bool back)
{
    size_t outer = cat_outer(c), n = c->node->in[i]->count / outer, size = element_bytes(c);
    size_t row = c->node->out->count / outer;
    struct pl_copy_args a = {
        .rank = 2,
        .shape = {outer, n},
        .src_stride = {back ? row : n, 1},
        .dst_stride = {back ? n : row, 1},
        .bytes = size,
        .add = back && c->add[i],
        .src = back ? (const char *)c->out_grad + first * size : c->in[i],
        .dst = back ? c->in_grad[i] : (char *)c->out + first * size,
    };

    c->k->copy(&a);
}

static void cat_forward(const struct pl_call *c)
{
    size_t outer = cat_outer(c), first = 0;

    for (size_t i = 0; i < c->node->n_in; first += c->node->in[i++]->count / outer)
        cat_copy(c, i, first, false);
}

static void cat_backward(const struct pl_call *c)
{
    size_t outer = cat_outer(c), first = 0;

    for (size_t i = 0; i < c->node->n_in; first += c->node->in[i++]->count / outer)
        if (c->in_grad[i])
            cat_copy(c, i, first, true);
}

static const struct pl_op op_cat = {
    .name = "cat",
    .forward = cat_forward,
    .backward = cat_backward,
};

/* True if all dimensions except `dim` are equal. */
static bool fits(const plume_tensor *a, const plume_tensor *b, uint64_t dim)
{
    for (size_t d = 0; d < a->rank && a->rank == b->rank; d++)
        if (d != dim && a->shape[d] != b->shape[d])
            return false;
    return a->rank == b->rank;
}

int pl_build_cat(struct pl_tape *tape,
                 const struct pl_op_request *req,
                 plume_tensor **ret,
                 struct pl_error *err)
{
    const plume_tensor *first = req->in[0];
    struct pl_apply what = pl_op_like(&op_cat, req, first);
    uint64_t dim = (uint64_t)req->args.i[0];

    if (dim >= first->rank)
        return pl_op_refuse_as(req, err, "there is no dimension %lld", (long long)dim);
    what.attr.i[0] = (int64_t)dim;
    what.shape[dim] = 0;
    for (size_t i = 0; i < req->n_in; i++) {
        const plume_tensor *t = req->in[i];

        if (t->count == 0 || !fits(t, first, dim) ||
            (t->dtype != first->dtype && !pl_op_all_real(req)))
            return pl_op_refuse_as(req, err,
                                   "along dimension %llu, input %zu differs from input 0 in "
                                   "another dimension, or in its type",
                                   (unsigned long long)dim, i);
        what.shape[dim] += t->shape[dim];
    }
    return pl_tape_apply(tape, &what, ret, err);
}

/* arange, range: attr.i[0], and on by attr.i[1], as labels */

static void arange_forward(const struct pl_call *c)
{
    c->k->arange(&(struct pl_arange_args){.n = c->node->out->count,
                                          .first = (int32_t)c->attr->i[0],
                                          .step = (int32_t)c->attr->i[1],
                                          .y = c->out});
}

static const struct pl_op op_arange = {
    .name = "arange",
    .cast = PL_CAST_NONE,
    .no_grad = true,
    .forward = arange_forward,
};

static int apply_range(struct pl_tape *tape,
                       const struct pl_op_request *req,
                       int64_t first,
                       int64_t step,
                       plume_tensor **ret,
                       struct pl_error *err)
{
    int64_t n = req->args.i[0];

    if (n < 1 || n > INT32_MAX)
        return pl_error_set(err, -EINVAL, "%s: %lld is not a valid number of labels", req->name,
                            (long long)n);
    if (first < INT32_MIN || first > INT32_MAX || step < INT32_MIN || step > INT32_MAX ||
        first + (n - 1) * step < INT32_MIN || first + (n - 1) * step > INT32_MAX)
        return pl_error_set(err, -EINVAL,
                            "%s: %lld numbers from %lld by %lld: not all of them have 32 bits",
                            req->name, (long long)n, (long long)first, (long long)step);
    return pl_tape_apply(tape,
                         &(struct pl_apply){.op = &op_arange,
                                            .dtype = PLUME_I32,
                                            .rank = 1,
                                            .shape = {(size_t)n},
                                            .attr = {{first, step}, {0}}},
                         ret, err);
}

int pl_build_arange(struct pl_tape *tape,
                    const struct pl_op_request *req,
                    plume_tensor **ret,
                    struct pl_error *err)
{
    return apply_range(tape, req, 0, 1, ret, err);
}

int pl_build_range(struct pl_tape *tape,
                   const struct pl_op_request *req,
                   plume_tensor **ret,
                   struct pl_error *err)
{
    return apply_range(tape, req, req->args.i[1], req->args.i[2], ret, err);
}
