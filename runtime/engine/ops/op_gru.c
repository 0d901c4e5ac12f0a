/* SPDX-License-Identifier: MIT */
/* A layer of GRU over all times, as op_rnn.c's LSTM: the layer before it has multiplied the input
 * of all times at once; here each time has its product with the state, and backward the weight's
 * and the bias's gradients are one product and one sum over all times.
 *
 * in[0] [batch, time, 3 hidden], in[1] the state's weight [3 hidden, hidden]; then, if attr.i[0] is
 * set, its bias [3 hidden]; then the first h [batch, hidden], or none: zeros. The bias is not one
 * of the input's: a gate multiplies a part of it. The output [batch, time, hidden] is h. `saved`
 * has all times one after another: gates [time, batch, 3 hidden], kept and h [time, batch, hidden].
 * Backward replaces the gates by the gradients of the products with the state. */
#include "runtime/engine/ops/op_private.h"

#define NONE SIZE_MAX

struct gru {
    size_t batch, time, hidden, state, element; /* state: batch * hidden */
    size_t bias, first;                         /* their inputs' numbers, or NONE */
    char *gates, *kept, *h;
};

static struct gru gru_of(const struct pl_call *call)
{
    const plume_tensor *x = call->node->in[0];
    size_t biased = call->attr->i[0] != 0;
    struct gru s = {.batch = x->shape[0],
                    .time = x->shape[1],
                    .hidden = call->node->in[1]->shape[1],
                    .element = pl_real_size(call->k->real),
                    .bias = biased ? 2 : NONE,
                    .first = call->node->n_in > 2 + biased ? 2 + biased : NONE};

    s.state = s.batch * s.hidden;
    s.gates = pl_op_stats(call, 0);
    s.kept = pl_op_stats(call, 3 * s.time * s.state);
    s.h = pl_op_stats(call, 4 * s.time * s.state);
    return s;
}

/* The address `elements` after p. */
static void *after(const struct gru *s, void *p, size_t elements)
{
    return p ? (char *)p + elements * s->element : NULL;
}

/* h before a time. */
static const void *before(const struct pl_call *call, const struct gru *s, size_t t)
{
    if (t == 0)
        return s->first != NONE ? call->in[s->first] : NULL;
    return after(s, s->h, (t - 1) * s->state);
}

static struct pl_gru_args time_args(const struct pl_call *call, const struct gru *s, size_t t)
{
    return (struct pl_gru_args){
        .batch = s->batch,
        .hidden = s->hidden,
        .x_row = s->time * 3 * s->hidden,
        .y_row = s->time * s->hidden,
        .dx_add = call->add[0],
        .x = after(s, call->in[0], t * 3 * s->hidden),
        .b = s->bias != NONE ? call->in[s->bias] : NULL,
        .h_before = before(call, s, t),
        .dy = after(s, call->out_grad, t * s->hidden),
        .gates = after(s, s->gates, t * 3 * s->state),
        .kept = after(s, s->kept, t * s->state),
        .h = after(s, s->h, t * s->state),
        .y = after(s, call->out, t * s->hidden),
        .dx = after(s, call->in_grad[0], t * 3 * s->hidden),
    };
}

static void gru_forward(const struct pl_call *call)
{
    struct gru s = gru_of(call);

    for (size_t t = 0; t < s.time; t++) {
        struct pl_gru_args args = time_args(call, &s, t);

        if (args.h_before) {
            call->k->matmul(&(struct pl_matmul_args){
                .batch = 1,
                .m = s.batch,
                .n = 3 * s.hidden,
                .k = s.hidden,
                .b_transposed = true,
                .a_row = s.hidden,
                .b_row = s.hidden,
                .c_row = 3 * s.hidden,
                .scale = 1,
                .a = args.h_before,
                .b = call->in[1],
                .c = call->scratch,
            });
            args.hx = call->scratch;
        }
        call->k->gru_forward(&args);
    }
}

/* Adds to the gradient of h before time t what comes by way of the product. */
static void add_dh(const struct pl_call *call, const struct gru *s, size_t t, void *dh)
{
    call->k->matmul(&(struct pl_matmul_args){
        .batch = 1,
        .m = s->batch,
        .n = s->hidden,
        .k = 3 * s->hidden,
        .a_row = 3 * s->hidden,
        .b_row = s->hidden,
        .c_row = s->hidden,
        .add = true,
        .scale = 1,
        .a = after(s, s->gates, t * 3 * s->state),
        .b = call->in[1],
        .c = dh,
    });
}

/* The weight's gradient: `times` gates' gradients from `first` on, with the states before them. */
static void
dw_of(const struct pl_call *call, const struct gru *s, size_t first, size_t times, bool add)
{
    call->k->matmul(&(struct pl_matmul_args){
        .batch = 1,
        .m = 3 * s->hidden,
        .n = s->hidden,
        .k = times * s->batch,
        .a_transposed = true,
        .a_row = 3 * s->hidden,
        .b_row = s->hidden,
        .c_row = s->hidden,
        .add = add,
        .scale = 1,
        .a = after(s, s->gates, first * 3 * s->state),
        .b = before(call, s, first),
        .c = call->in_grad[1],
    });
}

static void weight_backward(const struct pl_call *call, const struct gru *s)
{
    bool add = call->add[1];

    if (s->time > 1) {
        dw_of(call, s, 1, s->time - 1, add);
        add = true;
    }
    if (s->first != NONE)
        dw_of(call, s, 0, 1, add);
    else if (!add) /* a first state of zeros alone */
        pl_device_zero(call->tape->dev, call->in_grad[1], 3 * s->hidden * s->hidden * s->element);
}

/* A sum only writes: one that is added goes by way of the scratch. */
static void bias_backward(const struct pl_call *call, const struct gru *s, void *scratch)
{
    void *db = call->in_grad[s->bias];
    bool add = call->add[s->bias];

    call->k->reduce_forward(&(struct pl_reduce_args){.outer = 1,
                                                     .n = s->time * s->batch,
                                                     .inner = 3 * s->hidden,
                                                     .scale = 1,
                                                     .x = s->gates,
                                                     .y = add ? scratch : db});
    if (add)
        call->k->add(&(struct pl_add_args){
            .n = 3 * s->hidden, .scale = 1, .a = db, .b = scratch, .dst = db});
}

static void gru_backward(const struct pl_call *call)
{
    struct gru s = gru_of(call);
    void *dh = call->scratch;

    for (size_t t = s.time; t-- > 0;) {
        struct pl_gru_args args = time_args(call, &s, t);
        bool given = t == 0 && s.first != NONE && call->in_grad[s.first];

        args.dh = t + 1 < s.time ? dh : NULL;
        args.dh_before = given ? call->in_grad[s.first] : dh;
        args.dh_before_add = given && call->add[s.first];
        call->k->gru_backward(&args);
        if (t > 0 || given)
            add_dh(call, &s, t, args.dh_before);
    }
    if (call->in_grad[1])
        weight_backward(call, &s);
    if (s.bias != NONE && call->in_grad[s.bias])
        bias_backward(call, &s, after(&s, dh, s.state));
}

static double gru_flops(const struct pl_node *node, bool backward)
{
    const plume_tensor *w = node->in[1];
    double rows = (double)node->in[0]->count / (double)w->shape[0];
    double product = 2 * rows * (double)w->count, cells = 12 * rows * (double)w->shape[1];

    return backward ? product * (1 + w->wants_grad) + 2 * cells : product + cells;
}

static const struct pl_op op_gru = {
    .name = "gru",
    .cast = PL_CAST_LOW,
    .in_f32 = true,
    .needs = PL_NEEDS_IN(1) | PL_NEEDS_IN(2) | PL_NEEDS_IN(3),
    .product = true,
    .forward = gru_forward,
    .backward = gru_backward,
    .flops = gru_flops,
};

int pl_build_gru(struct pl_tape *tape,
                 const struct pl_op_request *req,
                 plume_tensor **ret,
                 struct pl_error *err)
{
    const plume_tensor *x = req->in[0], *w = req->in[1];
    struct pl_apply what = pl_op_like(&op_gru, req, x);
    size_t hidden = w->rank == 2 ? w->shape[1] : 0, biased = req->args.i[0] != 0, state;
    const plume_tensor *b = biased && req->n_in > 2 ? req->in[2] : NULL;
    const plume_tensor *h = req->n_in > 2 + biased ? req->in[2 + biased] : NULL;

    if (!pl_op_all_real(req) || x->rank != 3 || x->count == 0 || hidden == 0 ||
        w->shape[0] != 3 * hidden || x->shape[2] != 3 * hidden)
        return pl_op_refuse(req, "wanted: [batch, time, 3 hidden], w [3 hidden, hidden]", err);
    if (req->n_in < 2 + biased || req->n_in > 3 + biased ||
        (b && (b->rank != 1 || b->shape[0] != 3 * hidden)) ||
        (h && (h->rank != 2 || h->shape[0] != x->shape[0] || h->shape[1] != hidden)))
        return pl_op_refuse(req, "wanted: the bias [3 hidden], h [batch, hidden]", err);
    state = x->shape[0] * hidden;
    what.attr.i[0] = (int64_t)biased;
    what.shape[2] = hidden;
    what.saved_stats = 5 * x->shape[1] * state;
    what.scratch_bytes =
        (3 * state + 3 * hidden) * pl_real_size(pl_real_of_stats(tape->kernels->real));
    return pl_tape_apply(tape, &what, ret, err);
}
