/* SPDX-License-Identifier: MIT */
/* Ops that choose elements by their position, or find positions: gather, scatter, the largest,
 * running sums, one-hot rows. Each works along one dimension: a tensor is [outer, n, inner]. */
#include "runtime/engine/ops/op_private.h"

int pl_op_split_at(const struct pl_op_request *req,
                   const plume_tensor *x,
                   int64_t dim,
                   int64_t ret[3],
                   struct pl_error *err)
{
    if (!pl_dtype_is_real(x->dtype) || x->count == 0)
        return pl_op_refuse(req, "needs real numbers", err);
    if (dim < 0 || (uint64_t)dim >= x->rank)
        return pl_op_refuse_as(req, err, "there is no dimension %lld", (long long)dim);
    ret[0] = ret[1] = ret[2] = 1;
    for (size_t d = 0; d < x->rank; d++)
        ret[(int64_t)d < dim ? 0 : (int64_t)d > dim ? 2 : 1] *= (int64_t)x->shape[d];
    return 0;
}

/* gather: attr.i[0..3] are outer, n, m, inner; i[4] has the flags, i[5] what is skipped */

#define SHARED 1
#define SKIPS 2

static struct pl_gather_args gather_args(const struct pl_call *c)
{
    const int64_t *i = c->attr->i;

    return (struct pl_gather_args){
        .outer = (size_t)i[0],
        .n = (size_t)i[1],
        .m = (size_t)i[2],
        .inner = (size_t)i[3],
        .shared = i[4] & SHARED,
        .skips = i[4] & SKIPS,
        .dx_add = c->add[0],
        .skip = (int32_t)i[5],
        .index = c->in[1],
        .x = c->in[0],
        .dy = c->out_grad,
        .y = c->out,
        .dx = c->in_grad[0],
    };
}

static void gather_forward(const struct pl_call *c)
{
    struct pl_gather_args args = gather_args(c);

    c->k->gather_forward(&args);
}

static void gather_backward(const struct pl_call *c)
{
    struct pl_gather_args args = gather_args(c);

    c->k->gather_backward(&args);
}

static const struct pl_op op_gather = {
    .name = "gather",
    .needs = PL_NEEDS_IN(1),
    .forward = gather_forward,
    .backward = gather_backward,
};

/* True if the index has x's shape in all dimensions but `dim`. */
static bool index_fits(const plume_tensor *x, const plume_tensor *index, int64_t dim)
{
    for (size_t d = 0; d < x->rank && x->rank == index->rank; d++)
        if ((int64_t)d != dim && x->shape[d] != index->shape[d])
            return false;
    return x->rank == index->rank;
}

int pl_build_gather(struct pl_tape *tape,
                    const struct pl_op_request *req,
                    plume_tensor **ret,
                    struct pl_error *err)
{
    const plume_tensor *x = req->in[0], *index = req->in[1];
    struct pl_apply what = pl_op_like(&op_gather, req, x);
    int64_t dim = req->args.i[0], size[3];
    bool shared = req->args.i[1], skips = req->args.i[2];
    int r = pl_op_split_at(req, x, dim, size, err);

    if (r < 0)
        return r;
    if (index->dtype != PLUME_I32 || index->count == 0 ||
        (shared ? index->rank != 1 : !index_fits(x, index, dim)))
        return pl_op_refuse(req,
                            shared ? "wanted: x, index i32[m]"
                                   : "the index must be i32 and have x's other dimensions",
                            err);
    if (skips && (req->args.i[3] < INT32_MIN || req->args.i[3] > INT32_MAX))
        return pl_error_set(err, -EINVAL, "%s: %lld is not an index to skip", req->name,
                            (long long)req->args.i[3]);
    what.shape[dim] = index->shape[shared ? 0 : dim];
    what.attr =
        (struct pl_attr){{size[0], size[1], (int64_t)what.shape[dim], size[2],
                          (shared ? SHARED : 0) | (skips ? SKIPS : 0), skips ? req->args.i[3] : 0},
                         {0}};
    return pl_tape_apply(tape, &what, ret, err);
}

/* scatter_add: x, index, src; the attributes are gather's, x in the place of its x, src in that of
 * its y. What gather does backward is this op's forward, and the other way round. */

/* gather's arguments with an array of x's shape and one of src's; NULL: not of this call. */
static struct pl_gather_args
scatter_args(const struct pl_call *c, const void *sums_of, void *sums, const void *x, void *y)
{
    struct pl_gather_args args = gather_args(c);

    args.x = x;
    args.dy = sums_of;
    args.y = y;
    args.dx = sums;
    args.dx_add = true;
    return args;
}

/* Zero, or NaN if an index is out of range, as one element in the scratch: what is gathered from
 * zeros, added up. */
static void *mark(const struct pl_call *c)
{
    size_t n = (size_t)c->attr->i[1], m = c->node->in[1]->count;
    char *zeros = c->scratch, *found = zeros + n * sizeof(double);
    void *ret = found + m * sizeof(double);

    pl_device_zero(c->tape->dev, zeros, n * sizeof(double));
    c->k->gather_forward(&(struct pl_gather_args){
        .outer = 1, .n = n, .m = m, .inner = 1, .index = c->in[1], .x = zeros, .y = found});
    c->k->reduce_forward(
        &(struct pl_reduce_args){.outer = 1, .n = m, .inner = 1, .scale = 1, .x = found, .y = ret});
    return ret;
}

static void scatter_forward(const struct pl_call *c)
{
    const int64_t *i = c->attr->i;
    struct pl_gather_args args = scatter_args(c, c->in[2], c->out, NULL, NULL);

    c->k->binary_forward(&(struct pl_binary_args){.n = c->node->out->count,
                                                  .m = 1,
                                                  .op = PL_BINARY_ADD,
                                                  .a = c->in[0],
                                                  .b = mark(c),
                                                  .y = c->out});
    /* Sorts the indices, where gather's compares each of them with each element. */
    if (args.shared && args.outer == 1)
        c->k->embedding_backward(&(struct pl_embedding_args){.rows = (size_t)i[2],
                                                             .vocab = (size_t)i[1],
                                                             .dim = (size_t)i[3],
                                                             .dtable_add = true,
                                                             .ids = c->in[1],
                                                             .dy = c->in[2],
                                                             .dtable = c->out});
    else
        c->k->gather_backward(&args);
}

static void scatter_backward(const struct pl_call *c)
{
    size_t n = c->node->in[2]->count;
    void *to = c->add[2] ? c->scratch : c->in_grad[2];
    struct pl_gather_args args = scatter_args(c, NULL, NULL, c->out_grad, to);

    if (c->in_grad[0])
        c->k->affine(&(struct pl_affine_args){.n = c->node->out->count,
                                              .scale = 1,
                                              .add = c->add[0],
                                              .x = c->out_grad,
                                              .y = c->in_grad[0]});
    if (!c->in_grad[2])
        return;
    c->k->gather_forward(&args);
    if (c->add[2])
        c->k->add(&(struct pl_add_args){
            .n = n, .scale = 1, .a = c->in_grad[2], .b = to, .dst = c->in_grad[2]});
}

static double scatter_flops(const struct pl_node *node, bool backward)
{
    return backward ? 0 : (double)(node->in[2]->count + node->out->count);
}

static const struct pl_op op_scatter = {
    .name = "scatter_add",
    .needs = PL_NEEDS_IN(1),
    .forward = scatter_forward,
    .backward = scatter_backward,
    .flops = scatter_flops,
};

int pl_build_scatter(struct pl_tape *tape,
                     const struct pl_op_request *req,
                     plume_tensor **ret,
                     struct pl_error *err)
{
    const plume_tensor *x = req->in[0], *index = req->in[1], *src = req->in[2];
    struct pl_apply what = pl_op_like(&op_scatter, req, x);
    int64_t dim = req->args.i[0], size[3];
    bool shared = req->args.i[1];
    size_t m;
    int r = pl_op_split_at(req, x, dim, size, err);

    if (r < 0)
        return r;
    if (!pl_dtype_is_real(src->dtype) || index->dtype != PLUME_I32 || index->count == 0 ||
        !index_fits(x, src, dim) || (shared && index->rank != 1))
        return pl_op_refuse(req, "wanted: x, index i32, src with x's other dimensions", err);
    m = src->shape[dim];
    if (shared ? index->shape[0] != m : !index_fits(x, index, dim) || index->shape[dim] != m)
        return pl_op_refuse(req, "each element of src must have an index", err);
    what.attr = (struct pl_attr){{size[0], size[1], (int64_t)m, size[2], shared ? SHARED : 0}, {0}};
    what.scratch_bytes = PL_MAX((size_t)size[1] + index->count + 1, src->count) * sizeof(double);
    return pl_tape_apply(tape, &what, ret, err);
}

/* top: attr.i[0..3] are outer, n, inner, k; i[4] and i[5] as the kernel's flags */

static void top_forward(const struct pl_call *c)
{
    const int64_t *i = c->attr->i;

    c->k->top(&(struct pl_top_args){.outer = (size_t)i[0],
                                    .n = (size_t)i[1],
                                    .inner = (size_t)i[2],
                                    .k = (size_t)i[3],
                                    .least = i[4],
                                    .nan_first = i[5],
                                    .x = c->in[0],
                                    .index = c->out});
}

static const struct pl_op op_top = {
    .name = "top",
    .cast = PL_CAST_NONE,
    .no_grad = true,
    .forward = top_forward,
};

int pl_build_top(struct pl_tape *tape,
                 const struct pl_op_request *req,
                 plume_tensor **ret,
                 struct pl_error *err)
{
    struct pl_apply what = pl_op_like(&op_top, req, req->in[0]);
    int64_t dim = req->args.i[0], k = req->args.i[1], size[3];
    int r = pl_op_split_at(req, req->in[0], dim, size, err);

    if (r < 0)
        return r;
    if (k < 1 || k > size[1] || size[1] > INT32_MAX)
        return pl_error_set(err, -EINVAL,
                            "%s: %lld elements are asked for, and dimension %lld has %lld",
                            req->name, (long long)k, (long long)dim, (long long)size[1]);
    what.dtype = PLUME_I32;
    what.shape[dim] = (size_t)k;
    what.attr = (struct pl_attr){
        {size[0], size[1], size[2], k, req->args.i[2] != 0, req->args.i[3] != 0}, {0}};
    return pl_tape_apply(tape, &what, ret, err);
}

/* cumsum: attr.i[0..2] are outer, n, inner; i[3] is 1 from the end */

static void running_sums(const struct pl_call *c, bool back)
{
    const int64_t *i = c->attr->i;

    c->k->cumsum(&(struct pl_cumsum_args){.outer = (size_t)i[0],
                                          .n = (size_t)i[1],
                                          .inner = (size_t)i[2],
                                          .reverse = (i[3] != 0) != back,
                                          .add = back && c->add[0],
                                          .x = back ? c->out_grad : c->in[0],
                                          .y = back ? c->in_grad[0] : c->out});
}

static void cumsum_forward(const struct pl_call *c)
{
    running_sums(c, false);
}

static void cumsum_backward(const struct pl_call *c)
{
    running_sums(c, true);
}

static double one_flop(const struct pl_node *node, bool backward)
{
    (void)backward;
    return (double)node->out->count;
}

static const struct pl_op op_cumsum = {
    .name = "cumsum",
    .cast = PL_CAST_F32,
    .forward = cumsum_forward,
    .backward = cumsum_backward,
    .flops = one_flop,
};

int pl_build_cumsum(struct pl_tape *tape,
                    const struct pl_op_request *req,
                    plume_tensor **ret,
                    struct pl_error *err)
{
    struct pl_apply what = pl_op_like(&op_cumsum, req, req->in[0]);
    int r = pl_op_split_at(req, req->in[0], req->args.i[0], what.attr.i, err);

    if (r < 0)
        return r;
    what.attr.i[3] = req->args.i[1] != 0;
    return pl_tape_apply(tape, &what, ret, err);
}

/* one_hot */

static void one_hot_forward(const struct pl_call *c)
{
    c->k->one_hot(&(struct pl_one_hot_args){.rows = c->node->in[0]->count,
                                            .classes = pl_op_last(c->node->out),
                                            .labels = c->in[0],
                                            .y = c->out});
}

static const struct pl_op op_one_hot = {
    .name = "one_hot",
    .cast = PL_CAST_NONE,
    .no_grad = true,
    .forward = one_hot_forward,
};

int pl_build_one_hot(struct pl_tape *tape,
                     const struct pl_op_request *req,
                     plume_tensor **ret,
                     struct pl_error *err)
{
    const plume_tensor *labels = req->in[0];
    struct pl_apply what = pl_op_like(&op_one_hot, req, labels);
    int64_t classes = req->args.i[0];

    if (labels->dtype != PLUME_I32 || labels->count == 0 || labels->rank + 1 > PLUME_RANK_MAX)
        return pl_op_refuse(req, "needs labels of i32, and room for one more dimension", err);
    if (classes < 1 || classes > INT32_MAX)
        return pl_error_set(err, -EINVAL, "%s: %lld is not a number of classes", req->name,
                            (long long)classes);
    what.dtype = pl_op_real_of(tape);
    what.shape[what.rank++] = (size_t)classes;
    return pl_tape_apply(tape, &what, ret, err);
}

/* whole: attr.i[0] is the operation, of the kernel's numbers */

static void whole_forward(const struct pl_call *c)
{
    bool real = c->attr->i[0] >= PL_WHOLE_LT;

    c->k->whole(&(struct pl_whole_args){.n = c->node->out->count,
                                        .m = c->node->in[1]->count,
                                        .op = (enum pl_whole)c->attr->i[0],
                                        .a = c->in[0],
                                        .b = c->in[1],
                                        .y = real ? NULL : c->out,
                                        .real = real ? c->out : NULL});
}

static const struct pl_op op_whole = {
    .name = "whole",
    .cast = PL_CAST_NONE,
    .no_grad = true,
    .forward = whole_forward,
};

/* True if b's shape is the end of a's, or b has one element. */
static bool ends_with(const plume_tensor *a, const plume_tensor *b)
{
    for (size_t d = 1; d <= b->rank && b->count != 1; d++)
        if (d > a->rank || a->shape[a->rank - d] != b->shape[b->rank - d])
            return false;
    return true;
}

int pl_build_whole(struct pl_tape *tape,
                   const struct pl_op_request *req,
                   plume_tensor **ret,
                   struct pl_error *err)
{
    const plume_tensor *a = req->in[0], *b = req->in[1];
    struct pl_apply what = pl_op_like(&op_whole, req, a);
    int64_t op = req->args.i[0];

    if (op < PL_WHOLE_ADD || op > PL_WHOLE_VALUE)
        return pl_error_set(err, -EINVAL, "%s: unknown operation %lld", req->name, (long long)op);
    if (a->dtype != PLUME_I32 || b->dtype != PLUME_I32 || a->count == 0 || b->count == 0)
        return pl_op_refuse(req, "needs numbers of i32", err);
    if (!ends_with(a, b))
        return pl_op_refuse(req, "the second's shape must be the end of the first's, or one number",
                            err);
    what.dtype = op < PL_WHOLE_LT ? PLUME_I32 : pl_op_real_of(tape);
    what.attr.i[0] = op;
    return pl_tape_apply(tape, &what, ret, err);
}

bool pl_op_labels_of_index(const struct pl_node *node, struct pl_op_labels *ret)
{
    if (node->op == &op_gather || node->op == &op_scatter)
        *ret = (struct pl_op_labels){.input = 1,
                                     .end = (size_t)node->attr.i[1],
                                     .skips = node->attr.i[4] & SKIPS,
                                     .skip = (int32_t)node->attr.i[5]};
    else if (node->op == &op_one_hot)
        *ret = (struct pl_op_labels){.input = 0, .end = pl_op_last(node->out)};
    else
        return false;
    return true;
}
