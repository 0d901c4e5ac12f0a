/* SPDX-License-Identifier: MIT */
/* Elementwise ops, and sums over dimensions. */
#include "runtime/engine/ops/op_private.h"

#include <string.h>

static struct pl_relu_args relu_args(const struct pl_call *c)
{
    return (struct pl_relu_args){
        .n = c->node->out->count,
        .dx_add = c->add[0],
        .x = c->in[0],
        .y = c->out,
        .dy = c->out_grad,
        .dx = c->in_grad[0],
    };
}

static void relu_forward(const struct pl_call *c)
{
    struct pl_relu_args args = relu_args(c);

    c->k->relu_forward(&args);
}

static void relu_backward(const struct pl_call *c)
{
    struct pl_relu_args args = relu_args(c);

    c->k->relu_backward(&args);
}

static double one_flop(const struct pl_node *node, bool backward)
{
    return (double)node->out->count;
}

static const struct pl_op op_relu = {
    .name = "relu",
    .is_relu = true,
    .layout = PL_LAYOUT_EACH,
    .needs = PL_NEEDS_OUT,
    .forward = relu_forward,
    .backward = relu_backward,
    .flops = one_flop,
    .split = PL_SPLIT_EACH,
};

static struct pl_unary_args unary_args(const struct pl_call *c)
{
    return (struct pl_unary_args){
        .n = c->node->out->count,
        .act = (enum pl_activation)c->attr->i[0],
        .dx_add = c->add[0],
        .x = c->in[0],
        .y = c->out,
        .dy = c->out_grad,
        .dx = c->in_grad[0],
    };
}

static void unary_forward(const struct pl_call *c)
{
    struct pl_unary_args args = unary_args(c);

    c->k->unary_forward(&args);
}

static void unary_backward(const struct pl_call *c)
{
    struct pl_unary_args args = unary_args(c);

    c->k->unary_backward(&args);
}

static double ten_flops(const struct pl_node *node, bool backward)
{
    return 10.0 * (double)node->out->count;
}

static const struct pl_op op_unary = {
    .name = "activation",
    .layout = PL_LAYOUT_EACH,
    .needs = PL_NEEDS_IN(0),
    .forward = unary_forward,
    .backward = unary_backward,
    .flops = ten_flops,
    .split = PL_SPLIT_EACH,
};

int pl_build_unary(struct pl_tape *tape,
                   const struct pl_op_request *req,
                   plume_tensor **ret,
                   struct pl_error *err)
{
    enum plume_activation act = (enum plume_activation)req->args.i[0];
    struct pl_apply what = pl_op_like(act == PLUME_RELU ? &op_relu : &op_unary, req, req->in[0]);

    if (!pl_op_all_real(req))
        return pl_op_refuse(req, "needs real numbers", err);
    if ((unsigned)act > PLUME_SIGMOID)
        return pl_error_set(err, -EINVAL, "%s: unknown activation %d", req->name, (int)act);
    what.attr.i[0] = act;
    return pl_tape_apply(tape, &what, ret, err);
}

/* add, sub, mul, div: the kernel repeats the second operand along the first's leading dimensions;
 * pl_op_broadcast() makes all other shapes such a pair */

static struct pl_binary_args binary_args(const struct pl_call *c)
{
    return (struct pl_binary_args){
        .n = c->node->out->count,
        .m = c->node->in[1]->count,
        .op = (enum pl_binary)c->attr->i[0],
        .da_add = c->add[0],
        .db_add = c->add[1],
        .a = c->in[0],
        .b = c->in[1],
        .y = c->out,
        .dy = c->out_grad,
        .da = c->in_grad[0],
        .db = c->in_grad[1],
    };
}

static void binary_forward(const struct pl_call *c)
{
    struct pl_binary_args args = binary_args(c);

    c->k->binary_forward(&args);
}

static void binary_backward(const struct pl_call *c)
{
    struct pl_binary_args args = binary_args(c);

    /* Sums and differences have no f32 copies of 16-bit operands then. Kernels may load what they
     * do not use: any array of that length will do. */
    args.a = args.a ? args.a : args.dy;
    args.b = args.b ? args.b : args.dy;
    c->k->binary_backward(&args);
}

/* da is dy; db, too, if it is added and not repeated. */
static uint64_t sum_same_grad(const struct pl_node *node)
{
    bool b = node->attr.i[0] == PL_BINARY_ADD && node->in[1]->count == node->out->count;

    return PL_NEEDS_IN(0) | (b ? PL_NEEDS_IN(1) : 0);
}

static bool is_sum(const struct pl_node *node)
{
    return node->attr.i[0] == PL_BINARY_ADD;
}

static const struct pl_op op_sum_of_two = {
    /* add and sub: backward reads no input */
    .name = "add",
    .layout = PL_LAYOUT_EACH,
    .forward = binary_forward,
    .backward = binary_backward,
    .same_grad = sum_same_grad,
    .is_sum = is_sum,
    .flops = one_flop,
    .split = PL_SPLIT_EACH,
};

static const struct pl_op op_product_of_two = {
    .name = "mul",
    .layout = PL_LAYOUT_EACH,
    .needs = PL_NEEDS_IN(0) | PL_NEEDS_IN(1),
    .forward = binary_forward,
    .backward = binary_backward,
    .flops = one_flop,
    .split = PL_SPLIT_EACH,
};

bool pl_op_divides(const struct pl_node *node)
{
    return node->op == &op_product_of_two && node->attr.i[0] == PL_BINARY_DIV;
}

static bool is_suffix(const plume_tensor *a, const plume_tensor *b)
{
    if (b->rank > a->rank)
        return false;
    for (size_t i = 0; i < b->rank; i++)
        if (a->shape[a->rank - 1 - i] != b->shape[b->rank - 1 - i])
            return b->count == 1;
    return true;
}

int pl_build_binary(struct pl_tape *tape,
                    const struct pl_op_request *req,
                    plume_tensor **ret,
                    struct pl_error *err)
{
    const plume_tensor *a = req->in[0], *b = req->in[1];
    enum pl_binary op = (enum pl_binary)req->args.i[0];
    struct pl_apply what =
        pl_op_like(op <= PL_BINARY_SUB ? &op_sum_of_two : &op_product_of_two, req, a);
    plume_tensor *given[] = {req->in[0], req->in[1]}, *swapped[] = {req->in[1], req->in[0]};

    if ((unsigned)op > PL_BINARY_DIV)
        return pl_error_set(err, -EINVAL, "%s: unknown operation %d", req->name, (int)op);
    if (!pl_op_all_real(req) || a->count == 0 || b->count == 0)
        return pl_op_refuse(req, "needs real numbers", err);
    if (!is_suffix(a, b)) {
        bool commutes = op == PL_BINARY_ADD || op == PL_BINARY_MUL;
        bool fits = commutes && is_suffix(b, a);
        plume_tensor **two = fits || (commutes && a->count < b->count) ? swapped : given;

        if (!fits) {
            int r = pl_op_broadcast(tape, req, two, err);

            if (r < 0)
                return r;
        }
        what = pl_op_like(what.op, req, two[0]);
        what.in = two;
    }
    what.attr.i[0] = op;
    return pl_tape_apply(tape, &what, ret, err);
}

/* scale x + shift */

static void affine_forward(const struct pl_call *c)
{
    c->k->affine(&(struct pl_affine_args){.n = c->node->out->count,
                                          .scale = c->attr->f[0],
                                          .shift = c->attr->f[1],
                                          .x = c->in[0],
                                          .y = c->out});
}

static void affine_backward(const struct pl_call *c)
{
    c->k->affine(&(struct pl_affine_args){.n = c->node->out->count,
                                          .scale = c->attr->f[0],
                                          .add = c->add[0],
                                          .x = c->out_grad,
                                          .y = c->in_grad[0]});
}

static const struct pl_op op_affine = {
    .name = "scale",
    .forward = affine_forward,
    .backward = affine_backward,
    .flops = one_flop,
    .split = PL_SPLIT_EACH,
};

int pl_build_affine(struct pl_tape *tape,
                    const struct pl_op_request *req,
                    plume_tensor **ret,
                    struct pl_error *err)
{
    struct pl_apply what = pl_op_like(&op_affine, req, req->in[0]);

    if (!pl_op_all_real(req))
        return pl_op_refuse(req, "needs real numbers", err);
    what.attr.f[0] = req->args.f[0];
    what.attr.f[1] = req->args.f[1];
    return pl_tape_apply(tape, &what, ret, err);
}

/* A copy: as a view it would share the gradient of what it is a view of. */
static const struct pl_op op_detach = {
    .name = "detach",
    .no_grad = true,
    .forward = affine_forward,
    .split = PL_SPLIT_EACH,
};

int pl_build_detach(struct pl_tape *tape,
                    const struct pl_op_request *req,
                    plume_tensor **ret,
                    struct pl_error *err)
{
    struct pl_apply what = pl_op_like(&op_detach, req, req->in[0]);

    if (!pl_op_all_real(req))
        return pl_op_refuse(req, "needs real numbers", err);
    what.attr.f[0] = 1;
    return pl_tape_apply(tape, &what, ret, err);
}

/* dropout: forward and backward use the same random numbers, from seed, step and the number of the
 * dropout in the step. A rank's part of a tensor is runs of i[1] elements, i[2] apart in the whole,
 * from element i[3] on; i[1] = 0: the tensor is whole. */

static void
dropout_run(const struct pl_call *c, bool add, size_t first, size_t n, const void *src, void *dst)
{
    c->k->dropout(&(struct pl_dropout_args){
        .n = n,
        .p = c->attr->f[0],
        .key = c->tape->seed,
        .counter = {((uint64_t)c->attr->i[0] << 32) + first / 4, c->tape->step},
        .skip = first % 4,
        .add = add,
        .src = src,
        .dst = dst,
        .draw = c->tape->device_step});
}

static void dropout(const struct pl_call *c, bool add, const void *src, void *dst)
{
    size_t n = c->node->out->count, run = (size_t)c->attr->i[1], size = pl_real_size(c->k->real);
    size_t apart = (size_t)c->attr->i[2], first = pl_op_first_element(c);

    if (!run) {
        dropout_run(c, add, first, n, src, dst);
        return;
    }
    first *= apart / run; /* of the whole */
    for (size_t i = 0; i < n / run; i++)
        dropout_run(c, add, first + i * apart + (size_t)c->attr->i[3], run,
                    (const char *)src + i * run * size, (char *)dst + i * run * size);
}

static void dropout_forward(const struct pl_call *c)
{
    dropout(c, false, c->in[0], c->out);
}

static void dropout_backward(const struct pl_call *c)
{
    dropout(c, c->add[0], c->out_grad, c->in_grad[0]);
}

static const struct pl_op op_dropout = {
    .name = "dropout",
    .forward = dropout_forward,
    .backward = dropout_backward,
    .flops = ten_flops,
    .reads_step = true,
    .split = PL_SPLIT_RANDOM,
};

int pl_build_dropout(struct pl_tape *tape,
                     const struct pl_op_request *req,
                     plume_tensor **ret,
                     struct pl_error *err)
{
    struct pl_apply what = pl_op_like(&op_dropout, req, req->in[0]);
    double p = req->args.f[0];

    if (!pl_op_all_real(req))
        return pl_op_refuse(req, "needs real numbers", err);
    if (!(p >= 0 && p < 1))
        return pl_error_set(err, -EINVAL, "dropout: p is %g: must be 0 or more, and below 1", p);
    if (!tape->want_grad || p == 0) {
        *ret = req->in[0];
        return 0;
    }
    what.attr.f[0] = p;
    for (size_t i = 0; i < tape->cursor; i++)
        what.attr.i[0] += tape->nodes[i].op == &op_dropout;
    return pl_tape_apply(tape, &what, ret, err);
}

/* sum and mean over dimensions i[0] .. i[1] - 1, which stay as 1 if i[2] is set */

static struct pl_reduce_args reduce_args(const struct pl_call *c)
{
    return (struct pl_reduce_args){
        .outer = (size_t)c->attr->i[3],
        .n = (size_t)c->attr->i[4],
        .inner = (size_t)c->attr->i[5],
        .scale = c->attr->f[0],
        .dx_add = c->add[0],
        .x = c->in[0],
        .y = c->out,
        .dy = c->out_grad,
        .dx = c->in_grad[0],
    };
}

static void reduce_forward(const struct pl_call *c)
{
    struct pl_reduce_args args = reduce_args(c);

    c->k->reduce_forward(&args);
}

static void reduce_backward(const struct pl_call *c)
{
    struct pl_reduce_args args = reduce_args(c);

    c->k->reduce_backward(&args);
}

static double flop_each_input(const struct pl_node *node, bool backward)
{
    return (double)node->in[0]->count;
}

static const struct pl_op op_reduce = {
    .name = "sum",
    .cast = PL_CAST_F32,
    .forward = reduce_forward,
    .backward = reduce_backward,
    .flops = flop_each_input,
};

int pl_build_reduce(struct pl_tape *tape,
                    const struct pl_op_request *req,
                    plume_tensor **ret,
                    struct pl_error *err)
{
    const plume_tensor *x = req->in[0];
    uint64_t first = (uint64_t)req->args.i[0], end = (uint64_t)req->args.i[1];
    bool keep = req->args.i[2], mean = req->args.i[3];
    struct pl_apply what = {.op = &op_reduce, .in = req->in, .n_in = 1};
    size_t sizes[3] = {1, 1, 1};

    if (end > x->rank)
        end = x->rank;
    if (!pl_op_all_real(req) || x->count == 0)
        return pl_op_refuse(req, "needs real numbers", err);
    if (first >= end && x->rank)
        return pl_op_refuse_as(req, err, "no dimension is in the range %lld to before %lld",
                               (long long)req->args.i[0], (long long)req->args.i[1]);
    for (size_t i = 0; i < x->rank; i++) {
        bool inside = i >= first && i < end;

        sizes[i < first ? 0 : inside ? 1 : 2] *= x->shape[i];
        if (!inside || keep)
            what.shape[what.rank++] = inside ? 1 : x->shape[i];
    }
    if (what.rank == 0)
        what.shape[what.rank++] = 1;
    for (size_t i = 0; i < 3; i++)
        what.attr.i[3 + i] = (int64_t)sizes[i];
    what.attr.f[0] = mean ? 1.0 / (double)sizes[1] : 1;
    return pl_tape_apply(tape, &what, ret, err);
}
