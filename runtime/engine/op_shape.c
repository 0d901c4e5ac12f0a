/* SPDX-License-Identifier: MIT */
/* Views (nothing runs) and joining. */
#include "runtime/engine/op_private.h"

#include <string.h>

static const struct pl_op op_reshape = {.name = "reshape", .cast = PL_CAST_NONE, .view = true};
static const struct pl_op op_slice = {.name = "slice", .cast = PL_CAST_NONE, .view = true};
static const struct pl_op op_permute = {.name = "permute", .cast = PL_CAST_NONE, .view = true};

/* A view's own: the dimensions of x to begin with. */
static struct pl_apply view_of(const struct pl_op *op, const struct pl_op_request *req)
{
    const plume_tensor *x = req->in[0];
    struct pl_apply what = pl_op_like(op, req, x);

    memcpy(what.stride, x->stride, sizeof(what.stride));
    what.dtype = x->dtype;
    return what;
}

/* Strides for `shape` over x's elements in row-major order; false where they need a copy. Walks
 * both shapes from the front over groups of dimensions with as many elements. */
static bool reshape_strides(const plume_tensor *x, struct pl_apply *what)
{
    size_t i = 0, k = 0;

    while (i < x->rank || k < what->rank) {
        size_t first_i = i, first_k = k, have = i < x->rank ? x->shape[i++] : 1;
        size_t want = k < what->rank ? what->shape[k++] : 1, step;

        while (have != want)
            if (have < want && i < x->rank)
                have *= x->shape[i++];
            else if (want < have && k < what->rank)
                want *= what->shape[k++];
            else
                return false;                    /* cannot be: the counts are equal and not 0 */
        for (size_t d = first_i; d + 1 < i; d++) /* one run of equal steps? */
            if (x->shape[d] != 1 && x->stride[d] != x->stride[d + 1] * x->shape[d + 1])
                return false;
        step = i > first_i ? x->stride[i - 1] : 1;
        for (size_t d = k; d-- > first_k; step *= what->shape[d])
            what->stride[d] = step;
    }
    return true;
}

int pl_build_reshape(struct pl_tape *tape,
                     const struct pl_op_request *req,
                     plume_tensor **ret,
                     struct pl_error *err)
{
    struct pl_apply what = view_of(&op_reshape, req);
    size_t count = 1, open = SIZE_MAX;

    what.rank = (size_t)req->args.i[0];
    if (what.rank > PLUME_RANK_MAX || req->in[0]->count == 0)
        return pl_op_refuse(req, "too many dimensions, or no elements", err);
    for (size_t i = 0; i < what.rank; i++) {
        what.shape[i] = (size_t)req->args.i[i + 1];
        if (what.shape[i] == 0 && open == SIZE_MAX) {
            open = i;
            what.shape[i] = 1;
        }
        if (__builtin_mul_overflow(count, what.shape[i], &count) || count > req->in[0]->count)
            return pl_op_refuse(req, "the new shape has another number of elements", err);
    }
    if (count == 0 || req->in[0]->count % count || (open == SIZE_MAX && count != req->in[0]->count))
        return pl_op_refuse(req, "the new shape has another number of elements", err);
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

    if (dim >= what.rank || count == 0 || first >= what.shape[dim] ||
        count > what.shape[dim] - first)
        return pl_op_refuse(req, "reaches beyond the tensor", err);
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
            return pl_op_refuse(req, "the order does not name each dimension once", err);
        seen |= 1u << from;
        what.shape[i] = x->shape[from];
        what.stride[i] = x->stride[from];
    }
    return pl_tape_apply(tape, &what, ret, err);
}

/* cat: along dimension 0, where the parts lie one behind the other */

static size_t part_bytes(const struct pl_call *c, size_t i)
{
    size_t size = pl_dtype_is_real(c->node->out->dtype) ? pl_real_size(c->k->real)
                                                        : pl_dtype_size(c->node->out->dtype);

    return c->node->in[i]->count * size;
}

static void cat_forward(const struct pl_call *c)
{
    char *out = c->out;

    for (size_t i = 0; i < c->node->n_in; i++) {
        memcpy(out, c->in[i], part_bytes(c, i));
        out += part_bytes(c, i);
    }
}

static void cat_backward(const struct pl_call *c)
{
    const char *dy = c->out_grad;

    for (size_t i = 0; i < c->node->n_in; i++) {
        if (c->in_grad[i] && c->add[i])
            c->k->add(&(struct pl_add_args){.n = c->node->in[i]->count,
                                            .scale = 1,
                                            .a = c->in_grad[i],
                                            .b = dy,
                                            .dst = c->in_grad[i]});
        else if (c->in_grad[i])
            memcpy(c->in_grad[i], dy, part_bytes(c, i));
        dy += part_bytes(c, i);
    }
}

static const struct pl_op op_cat = {
    .name = "cat",
    .forward = cat_forward,
    .backward = cat_backward,
};

int pl_build_cat(struct pl_tape *tape,
                 const struct pl_op_request *req,
                 plume_tensor **ret,
                 struct pl_error *err)
{
    const plume_tensor *first = req->in[0];
    struct pl_apply what = pl_op_like(&op_cat, req, first);

    what.shape[0] = 0;
    for (size_t i = 0; i < req->n_in; i++) {
        const plume_tensor *t = req->in[i];

        if (t->rank == 0 || t->rank != first->rank ||
            (t->dtype != first->dtype && !pl_op_all_real(req)) ||
            memcmp(t->shape + 1, first->shape + 1, (t->rank - 1) * sizeof(t->shape[0])) != 0)
            return pl_op_refuse(req, "shapes differ behind dimension 0, or types", err);
        what.shape[0] += t->shape[0];
    }
    return pl_tape_apply(tape, &what, ret, err);
}
