/* SPDX-License-Identifier: MIT */
/* Broadcasting as numpy's: dimensions are compared from the last one on, and one of size 1, or a
 * missing one, is repeated. Made of the kernels of sums, whose gradient is a repetition. */
#include "runtime/engine/ops/op_private.h"

#include <string.h>

/* expand: y [outer, n, inner] repeats x [outer, inner]; the sizes are in attr.i[0..2] */

static struct pl_reduce_args sizes(const struct pl_call *c)
{
    return (struct pl_reduce_args){
        .outer = (size_t)c->attr->i[0],
        .n = (size_t)c->attr->i[1],
        .inner = (size_t)c->attr->i[2],
        .scale = 1,
    };
}

static void expand_forward(const struct pl_call *c)
{
    struct pl_reduce_args a = sizes(c);

    a.dy = c->in[0];
    a.dx = c->out;
    c->k->reduce_backward(&a);
}

/* A sum only writes, so that one that is added goes by way of the scratch. */
static void expand_backward(const struct pl_call *c)
{
    struct pl_reduce_args a = sizes(c);

    a.x = c->out_grad;
    a.y = c->add[0] ? c->scratch : c->in_grad[0];
    c->k->reduce_forward(&a);
    if (c->add[0])
        c->k->add(&(struct pl_add_args){.n = c->node->in[0]->count,
                                        .scale = 1,
                                        .a = c->in_grad[0],
                                        .b = c->scratch,
                                        .dst = c->in_grad[0]});
}

static double flops(const struct pl_node *node, bool backward)
{
    return backward ? (double)node->out->count : 0;
}

static const struct pl_op op_expand = {
    .name = "expand",
    .forward = expand_forward,
    .backward = expand_backward,
    .flops = flops,
    .split = PL_SPLIT_EXPAND,
};

/* Repeats dimensions first .. end - 1 of *t, all of size 1, to the sizes of `shape`. */
static int expand(struct pl_tape *tape,
                  plume_tensor **t,
                  size_t first,
                  size_t end,
                  const size_t *shape,
                  struct pl_error *err)
{
    struct pl_apply what = {.op = &op_expand, .in = t, .n_in = 1, .rank = (*t)->rank};
    int64_t size[3] = {1, 1, 1};

    for (size_t d = 0; d < what.rank; d++) {
        bool inside = d >= first && d < end;

        what.shape[d] = inside ? shape[d] : (*t)->shape[d];
        size[d < first ? 0 : inside ? 1 : 2] *= (int64_t)what.shape[d];
    }
    memcpy(what.attr.i, size, sizeof(size));
    what.scratch_bytes = (*t)->count * sizeof(double);
    return pl_tape_apply(tape, &what, t, err);
}

/* Gives *t this rank by dimensions of size 1 that are put in front, or taken away there. */
static int set_rank(struct pl_tape *tape, plume_tensor **t, size_t rank, struct pl_error *err)
{
    struct pl_op_request req = {.name = "reshape", .in = t, .n_in = 1};
    size_t have = (*t)->rank;

    if (have == rank)
        return 0;
    req.args.i[0] = (int64_t)rank;
    for (size_t d = 0; d < rank; d++)
        req.args.i[1 + d] = d + have < rank ? 1 : (int64_t)(*t)->shape[d + have - rank];
    return pl_build_reshape(tape, &req, t, err);
}

/* Repeats *t to `shape` in the dimensions from `from` on. */
static int expand_to(struct pl_tape *tape,
                     plume_tensor **t,
                     size_t rank,
                     const size_t *shape,
                     size_t from,
                     struct pl_error *err)
{
    int r = set_rank(tape, t, rank, err);

    for (size_t d = from, end; d < rank && r == 0; d = end) {
        end = d + 1;
        if ((*t)->shape[d] == shape[d])
            continue;
        while (end < rank && (*t)->shape[end] == 1)
            end++;
        r = expand(tape, t, d, end, shape, err);
    }
    return r;
}

/* The size of t's dimension d, counted as one of `rank`. */
static size_t size_at(const plume_tensor *t, size_t rank, size_t d)
{
    return d + t->rank < rank ? 1 : t->shape[d + t->rank - rank];
}

/* The shape that all broadcast to. -EINVAL. */
static int common_shape(const struct pl_op_request *req,
                        plume_tensor *const *list,
                        size_t n,
                        size_t *ret_rank,
                        size_t *shape,
                        struct pl_error *err)
{
    size_t rank = 0;

    for (size_t i = 0; i < n; i++)
        rank = PL_MAX(rank, list[i]->rank);
    for (size_t d = 0; d < rank; d++) {
        shape[d] = 1;
        for (size_t i = 0; i < n; i++) {
            size_t size = size_at(list[i], rank, d);

            if (size != 1 && shape[d] != 1 && size != shape[d])
                return pl_op_refuse(
                    req, "from the last dimension on, sizes must be equal, or one of them 1", err);
            if (size != 1)
                shape[d] = size;
        }
    }
    *ret_rank = rank;
    return 0;
}

int pl_op_broadcast_all(struct pl_tape *tape,
                        const struct pl_op_request *req,
                        plume_tensor **ret,
                        struct pl_error *err)
{
    size_t rank = 0, shape[PLUME_RANK_MAX];
    int r = common_shape(req, ret, req->n_in, &rank, shape, err);

    for (size_t i = 0; i < req->n_in && r == 0; i++)
        r = expand_to(tape, &ret[i], rank, shape, 0, err);
    return r;
}

int pl_op_broadcast(struct pl_tape *tape,
                    const struct pl_op_request *req,
                    plume_tensor *ret[2],
                    struct pl_error *err)
{
    size_t rank = 0, shape[PLUME_RANK_MAX], ones = 0;
    int r = common_shape(req, ret, 2, &rank, shape, err);

    if (r < 0)
        return r;
    while (ones < rank && size_at(ret[1], rank, ones) == 1)
        ones++;
    r = expand_to(tape, &ret[0], rank, shape, 0, err);
    if (r == 0)
        r = expand_to(tape, &ret[1], rank, shape, ones, err);
    return r < 0 ? r : set_rank(tape, &ret[1], rank - ones, err);
}

int pl_build_expand(struct pl_tape *tape,
                    const struct pl_op_request *req,
                    plume_tensor **ret,
                    struct pl_error *err)
{
    plume_tensor *t = req->in[0];
    struct pl_apply what = {0};
    int r = pl_op_given_shape(req, 0, &what, err);

    if (r < 0)
        return r;
    if (!pl_op_all_real(req) || t->rank > what.rank)
        return pl_op_refuse_as(req, err, "needs real numbers, and at most %zu dimensions",
                               what.rank);
    for (size_t d = 0; d < what.rank; d++)
        if (size_at(t, what.rank, d) != 1 && size_at(t, what.rank, d) != what.shape[d])
            return pl_op_refuse_as(req, err,
                                   "only dimensions of 1 are repeated, and dimension %zu is to be "
                                   "%zu",
                                   d, what.shape[d]);
    r = expand_to(tape, &t, what.rank, what.shape, 0, err);
    if (r == 0)
        *ret = t;
    return r;
}
