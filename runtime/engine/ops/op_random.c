/* SPDX-License-Identifier: MIT */
/* Random tensors, and rotary position embedding. */
#include "runtime/engine/ops/op_private.h"

#include <math.h>

/* random: attr.i[0] is the kind, i[1] its number among the random tensors of the step */

static void random_forward(const struct pl_call *c)
{
    size_t first = pl_op_first_element(c);

    c->k->random(&(struct pl_random_args){
        .n = c->node->out->count,
        .kind = (enum pl_random)c->attr->i[0],
        .p = c->attr->f[0],
        .q = c->attr->f[1],
        .key = c->tape->seed,
        /* The upper half of the counters: dropout has the lower one. */
        .counter = {(1ull << 63 | (uint64_t)c->attr->i[1] << 32) + first / 4, c->tape->step},
        .skip = first % 4,
        .y = c->out,
        .draw = c->tape->device_step,
    });
}

static double ten_flops(const struct pl_node *node, bool backward)
{
    return backward ? 0 : 10.0 * (double)node->out->count;
}

static const struct pl_op op_random = {
    .name = "random",
    .cast = PL_CAST_NONE,
    .no_grad = true,
    .forward = random_forward,
    .flops = ten_flops,
    .reads_step = true,
};

static int check_random(const struct pl_op_request *req, struct pl_error *err)
{
    int64_t kind = req->args.i[0];
    double p = req->args.f[0], q = req->args.f[1];

    if (kind < PL_RANDOM_UNIFORM || kind > PL_RANDOM_NORMAL)
        return pl_error_set(err, -EINVAL, "%s: unknown kind %lld", req->name, (long long)kind);
    if (!isfinite(p) || !isfinite(q))
        return pl_error_set(err, -EINVAL, "%s: %g or %g is not a finite number", req->name, p, q);
    if (kind == PL_RANDOM_UNIFORM && p > q)
        return pl_error_set(err, -EINVAL, "uniform: the range from %g to %g is empty", p, q);
    if (kind == PL_RANDOM_BERNOULLI && !(p >= 0 && p <= 1))
        return pl_error_set(err, -EINVAL, "bernoulli: p is %g: must be in [0, 1]", p);
    if (kind == PL_RANDOM_NORMAL && q < 0)
        return pl_error_set(err, -EINVAL, "normal: the standard deviation is %g", q);
    return 0;
}

int pl_build_random(struct pl_tape *tape,
                    const struct pl_op_request *req,
                    plume_tensor **ret,
                    struct pl_error *err)
{
    struct pl_apply what = {.op = &op_random, .dtype = pl_op_real_of(tape)};
    int r = check_random(req, err);

    if (r == 0)
        r = pl_op_given_shape(req, 1, &what, err);
    if (r < 0)
        return r;
    what.attr.i[0] = req->args.i[0];
    for (size_t i = 0; i < tape->cursor; i++)
        what.attr.i[1] += tape->nodes[i].op == &op_random;
    what.attr.f[0] = req->args.f[0];
    what.attr.f[1] = req->args.f[1];
    return pl_tape_apply(tape, &what, ret, err);
}

/* rotary: attr.i[0] heads, i[1] the first position, i[2] interleaved; f[0] the base */

static void rotate(const struct pl_call *c, bool back)
{
    const plume_tensor *x = c->node->in[0];
    size_t heads = (size_t)c->attr->i[0];

    c->k->rotary(&(struct pl_rotary_args){
        .outer = x->shape[0],
        .time = x->shape[1],
        .rows = heads,
        .dim = x->shape[2] / heads,
        .first = (size_t)c->attr->i[1],
        .base = c->attr->f[0],
        .interleaved = c->attr->i[2],
        .back = back,
        .add = back && c->add[0],
        .x = back ? c->out_grad : c->in[0],
        .y = back ? c->in_grad[0] : c->out,
    });
}

static void rotary_forward(const struct pl_call *c)
{
    rotate(c, false);
}

static void rotary_backward(const struct pl_call *c)
{
    rotate(c, true);
}

static double three_flops(const struct pl_node *node, bool backward)
{
    (void)backward;
    return 3.0 * (double)node->out->count;
}

static const struct pl_op op_rotary = {
    .name = "rotary",
    .forward = rotary_forward,
    .backward = rotary_backward,
    .flops = three_flops,
    .split = PL_SPLIT_TURN,
};

int pl_build_rotary(struct pl_tape *tape,
                    const struct pl_op_request *req,
                    plume_tensor **ret,
                    struct pl_error *err)
{
    const plume_tensor *x = req->in[0];
    struct pl_apply what = pl_op_like(&op_rotary, req, x);
    int64_t heads = req->args.i[0], first = req->args.i[1];
    double base = req->args.f[0];

    if (!pl_op_all_real(req) || x->rank != 3 || x->count == 0)
        return pl_op_refuse(req, "wanted: x [batch, time, heads * dim]", err);
    if (heads < 1 || (uint64_t)heads > x->shape[2] || x->shape[2] % (2 * (size_t)heads) != 0)
        return pl_op_refuse(req, "the width is not an even number per head", err);
    if (first < 0 || first > INT32_MAX || !(base > 0) || !isfinite(base))
        return pl_error_set(err, -EINVAL,
                            "%s: the first position is %lld, the base %g: must be 0 or more, and "
                            "positive",
                            req->name, (long long)first, base);
    what.attr = (struct pl_attr){{heads, first, req->args.i[2] != 0}, {base}};
    return pl_tape_apply(tape, &what, ret, err);
}
