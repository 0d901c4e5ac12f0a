/* SPDX-License-Identifier: MIT */
/* Functions of each element, comparisons and choices between elements, and constants. */
#include "runtime/engine/ops/op_private.h"

#include <float.h>
#include <math.h>

/* map: i[0] is the function, f[0] and f[1] its parameters */

static struct pl_map_args map_args(const struct pl_call *c)
{
    return (struct pl_map_args){
        .n = c->node->out->count,
        .fn = (enum pl_map)c->attr->i[0],
        .p = c->attr->f[0],
        .q = c->attr->f[1],
        .dx_add = c->add[0],
        .x = c->in[0],
        .y = c->out,
        .dy = c->out_grad,
        .dx = c->in_grad[0],
    };
}

static void map_forward(const struct pl_call *c)
{
    struct pl_map_args args = map_args(c);

    c->k->map_forward(&args);
}

static void map_backward(const struct pl_call *c)
{
    struct pl_map_args args = map_args(c);

    c->k->map_backward(&args);
}

/* Counted as an exponential is elsewhere, whatever the function. */
static double ten_flops(const struct pl_node *node, bool backward)
{
    return 10.0 * (double)node->out->count;
}

static double one_flop(const struct pl_node *node, bool backward)
{
    return (double)node->out->count;
}

/* Functions for which 16 bits have too little range or precision. */
static const struct pl_op op_map_f32 = {
    .name = "map",
    .cast = PL_CAST_F32,
    .needs = PL_NEEDS_IN(0),
    .forward = map_forward,
    .backward = map_backward,
    .flops = ten_flops,
    .split = PL_SPLIT_EACH,
};

/* abs, clamp, elu and leaky relu, in the type of their input. */
static const struct pl_op op_map = {
    .name = "map",
    .needs = PL_NEEDS_IN(0),
    .forward = map_forward,
    .backward = map_backward,
    .flops = one_flop,
    .split = PL_SPLIT_EACH,
};

/* The gradient is 0 whatever dy is, also a NaN. */
static void steps_backward(const struct pl_call *c)
{
    if (!c->add[0])
        c->k->map_forward(&(struct pl_map_args){
            .n = c->node->in[0]->count, .fn = PL_MAP_FILL, .p = 0, .y = c->in_grad[0]});
}

/* floor, ceil, round and sign, in the type of their input. */
static const struct pl_op op_round = {
    .name = "round",
    .forward = map_forward,
    .backward = steps_backward,
    .flops = one_flop,
    .split = PL_SPLIT_EACH,
};

static bool keeps_type(enum pl_map fn)
{
    return fn == PL_MAP_ABS || fn == PL_MAP_CLAMP || fn == PL_MAP_ELU || fn == PL_MAP_LEAKY;
}

/* C's pow() gives infinity for the root of minus infinity; PyTorch takes roots apart, too. */
static enum pl_map power(double p)
{
    return p == 0.5 ? PL_MAP_SQRT : p == -0.5 ? PL_MAP_RSQRT : PL_MAP_POW;
}

int pl_build_map(struct pl_tape *tape,
                 const struct pl_op_request *req,
                 plume_tensor **ret,
                 struct pl_error *err)
{
    enum pl_map fn = (enum pl_map)req->args.i[0];
    bool rounds = fn >= PL_MAP_FLOOR && fn <= PL_MAP_SIGN;
    struct pl_apply what = pl_op_like(rounds           ? &op_round
                                      : keeps_type(fn) ? &op_map
                                                       : &op_map_f32,
                                      req, req->in[0]);
    double p = req->args.f[0], q = req->args.f[1];

    if ((unsigned)fn < PL_MAP_EXP || (unsigned)fn > PL_MAP_TAN)
        return pl_error_set(err, -EINVAL, "%s: unknown function %d", req->name, (int)fn);
    if (!pl_op_all_real(req))
        return pl_op_refuse(req, "needs real numbers", err);
    if (fn == PL_MAP_CLAMP && !(p <= q))
        return pl_error_set(err, -EINVAL,
                            "clamp: the bounds are %g and %g: the first must not be "
                            "the larger one",
                            p, q);
    if (isnan(p) || isnan(q))
        return pl_error_set(err, -EINVAL, "%s: a parameter is not a number", req->name);
    what.attr.i[0] = fn == PL_MAP_POW ? power(p) : fn;
    what.attr.f[0] = p;
    what.attr.f[1] = q;
    return pl_tape_apply(tape, &what, ret, err);
}

/* full: f[0] everywhere; if f[1] is not 0 the nearest finite number of the type */

static double largest_of(enum plume_dtype dtype)
{
    return dtype == PLUME_F64    ? DBL_MAX
           : dtype == PLUME_F32  ? FLT_MAX
           : dtype == PLUME_BF16 ? 0x1.fep127
                                 : 65504;
}

static void full_forward(const struct pl_call *c)
{
    c->k->map_forward(&(struct pl_map_args){
        .n = c->node->out->count, .fn = PL_MAP_FILL, .p = c->attr->f[0], .y = c->out});
}

static const struct pl_op op_full = {
    .name = "full",
    .cast = PL_CAST_NONE,
    .no_grad = true,
    .forward = full_forward,
};

int pl_build_full(struct pl_tape *tape,
                  const struct pl_op_request *req,
                  plume_tensor **ret,
                  struct pl_error *err)
{
    struct pl_apply what = {.op = &op_full, .dtype = pl_op_real_of(tape)};
    int r = pl_op_given_shape(req, 0, &what, err);

    if (r < 0)
        return r;
    what.attr.f[0] = req->args.f[0];
    if (req->args.f[1] != 0)
        what.attr.f[0] =
            fmax(fmin(what.attr.f[0], largest_of(what.dtype)), -largest_of(what.dtype));
    return pl_tape_apply(tape, &what, ret, err);
}

/* choose: i[0] is the operation; the inputs have one shape by then */

static struct pl_choose_args choose_args(const struct pl_call *c)
{
    bool three = c->node->n_in == 3;

    return (struct pl_choose_args){
        .n = c->node->out->count,
        .op = (enum pl_choose)c->attr->i[0],
        .da_add = c->add[0],
        .db_add = c->add[1],
        .dc_add = three && c->add[2],
        .a = c->in[0],
        .b = c->in[1],
        .c = three ? c->in[2] : NULL,
        .y = c->out,
        .dy = c->out_grad,
        .da = c->in_grad[0],
        .db = c->in_grad[1],
        .dc = three ? c->in_grad[2] : NULL,
    };
}

static void choose_forward(const struct pl_call *c)
{
    struct pl_choose_args args = choose_args(c);

    c->k->choose_forward(&args);
}

static void choose_backward(const struct pl_call *c)
{
    struct pl_choose_args args = choose_args(c);

    if (args.op == PL_CHOOSE_WHERE) /* the kernel loads b's numbers, which may be gone, unused */
        args.b = args.a;
    c->k->choose_backward(&args);
}

static const struct pl_op op_larger = {
    .name = "maximum",
    .needs = PL_NEEDS_IN(0) | PL_NEEDS_IN(1),
    .forward = choose_forward,
    .backward = choose_backward,
    .flops = one_flop,
    .split = PL_SPLIT_EACH,
};

static const struct pl_op op_where = {
    .name = "where",
    .needs = PL_NEEDS_IN(0),
    .forward = choose_forward,
    .backward = choose_backward,
    .flops = one_flop,
    .split = PL_SPLIT_EACH,
};

static const struct pl_op op_compare = {
    .name = "compare",
    .no_grad = true,
    .forward = choose_forward,
    .flops = one_flop,
    .split = PL_SPLIT_EACH,
};

int pl_build_choose(struct pl_tape *tape,
                    const struct pl_op_request *req,
                    plume_tensor **ret,
                    struct pl_error *err)
{
    enum pl_choose op = (enum pl_choose)req->args.i[0];
    bool where = op == PL_CHOOSE_WHERE;
    plume_tensor *in[3];
    struct pl_apply what;
    int r;

    if ((unsigned)op > PL_CHOOSE_NE)
        return pl_error_set(err, -EINVAL, "%s: unknown operation %d", req->name, (int)op);
    if (req->n_in != (where ? 3u : 2u))
        return pl_error_set(err, -EINVAL, "%s: takes %d inputs, not %zu", req->name, where ? 3 : 2,
                            req->n_in);
    for (size_t i = 0; i < req->n_in; i++)
        in[i] = req->in[i];
    if (!pl_op_all_real(req))
        return pl_op_refuse(req, "needs real numbers", err);
    r = pl_op_broadcast_all(tape, req, in, err);
    if (r < 0)
        return r;
    what = pl_op_like(where                 ? &op_where
                      : op <= PL_CHOOSE_MIN ? &op_larger
                                            : &op_compare,
                      req, in[0]);
    what.in = in;
    what.attr.i[0] = op;
    return pl_tape_apply(tape, &what, ret, err);
}
