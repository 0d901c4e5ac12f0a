/* SPDX-License-Identifier: MIT */
/* A layer of LSTM over all times. The layer before it has multiplied the input of all times at
 * once; here each time has its product with the state, and backward the weight's gradient is one
 * product again, over all times.
 *
 * in[0] [batch, time, 4 hidden], in[1] the state's weight [4 hidden, hidden], in[2] and in[3] the
 * first h and c [batch, hidden], or neither: zeros. The output [batch, time, hidden] is h; if
 * attr.i[0] is set, one more row has the last c. `saved` has all times one after another, so that
 * the products' rows are close: gates [time, batch, 4 hidden], then h and c [time, batch, hidden].
 * Backward replaces the gates by their gradients. */
#include "runtime/engine/ops/op_private.h"

struct lstm {
    size_t batch, time, hidden, state, element; /* state: batch * hidden */
    bool last_c, first;                         /* first: h and c are given */
    char *gates, *h, *c;
};

static struct lstm lstm_of(const struct pl_call *call)
{
    const plume_tensor *x = call->node->in[0];
    struct lstm s = {.batch = x->shape[0],
                     .time = x->shape[1],
                     .hidden = call->node->in[1]->shape[1],
                     .element = pl_real_size(call->k->real),
                     .last_c = call->attr->i[0],
                     .first = call->node->n_in > 2};

    s.state = s.batch * s.hidden;
    s.gates = pl_op_stats(call, 0);
    s.h = pl_op_stats(call, 4 * s.time * s.state);
    s.c = pl_op_stats(call, 5 * s.time * s.state);
    return s;
}

/* The address `elements` after p. */
static void *after(const struct lstm *s, void *p, size_t elements)
{
    return p ? (char *)p + elements * s->element : NULL;
}

/* h or c before a time. */
static const void *
before(const struct pl_call *call, const struct lstm *s, char *all, size_t t, size_t in)
{
    if (t == 0)
        return s->first ? call->in[in] : NULL;
    return after(s, all, (t - 1) * s->state);
}

static struct pl_lstm_args time_args(const struct pl_call *call, const struct lstm *s, size_t t)
{
    size_t y_row = (s->time + s->last_c) * s->hidden;

    return (struct pl_lstm_args){
        .batch = s->batch,
        .hidden = s->hidden,
        .x_row = s->time * 4 * s->hidden,
        .y_row = y_row,
        .dx_add = call->add[0],
        .x = after(s, call->in[0], t * 4 * s->hidden),
        .c_before = before(call, s, s->c, t, 3),
        .dy = after(s, call->out_grad, t * s->hidden),
        .gates = after(s, s->gates, t * 4 * s->state),
        .c = after(s, s->c, t * s->state),
        .h = after(s, s->h, t * s->state),
        .y = after(s, call->out, t * s->hidden),
        .dx = after(s, call->in_grad[0], t * 4 * s->hidden),
    };
}

/* Copies [batch, hidden], with rows so far apart. */
static void copy_state(const struct pl_call *call,
                       const struct lstm *s,
                       const void *from,
                       size_t from_row,
                       void *to,
                       size_t to_row)
{
    call->k->copy(&(struct pl_copy_args){
        .rank = 2,
        .shape = {s->batch, s->hidden},
        .src_stride = {from_row, 1},
        .dst_stride = {to_row, 1},
        .bytes = s->element,
        .src = from,
        .dst = to,
    });
}

static void lstm_forward(const struct pl_call *call)
{
    struct lstm s = lstm_of(call);

    for (size_t t = 0; t < s.time; t++) {
        struct pl_lstm_args args = time_args(call, &s, t);
        const void *h = before(call, &s, s.h, t, 2);

        if (h) {
            call->k->matmul(&(struct pl_matmul_args){
                .batch = 1,
                .m = s.batch,
                .n = 4 * s.hidden,
                .k = s.hidden,
                .b_transposed = true,
                .a_row = s.hidden,
                .b_row = s.hidden,
                .c_row = 4 * s.hidden,
                .scale = 1,
                .a = h,
                .b = call->in[1],
                .c = call->scratch,
            });
            args.hx = call->scratch;
        }
        call->k->lstm_forward(&args);
    }
    if (s.last_c)
        copy_state(call, &s, after(&s, s.c, (s.time - 1) * s.state), s.hidden,
                   after(&s, call->out, s.time * s.hidden), (s.time + 1) * s.hidden);
}

/* The gradient of h before time t. */
static void dh_of(const struct pl_call *call, const struct lstm *s, size_t t, void *dh, bool add)
{
    call->k->matmul(&(struct pl_matmul_args){
        .batch = 1,
        .m = s->batch,
        .n = s->hidden,
        .k = 4 * s->hidden,
        .a_row = 4 * s->hidden,
        .b_row = s->hidden,
        .c_row = s->hidden,
        .add = add,
        .scale = 1,
        .a = after(s, s->gates, t * 4 * s->state),
        .b = call->in[1],
        .c = dh,
    });
}

/* The weight's gradient: `times` gates' gradients from `first` on, with the states before them. */
static void
dw_of(const struct pl_call *call, const struct lstm *s, size_t first, size_t times, bool add)
{
    call->k->matmul(&(struct pl_matmul_args){
        .batch = 1,
        .m = 4 * s->hidden,
        .n = s->hidden,
        .k = times * s->batch,
        .a_transposed = true,
        .a_row = 4 * s->hidden,
        .b_row = s->hidden,
        .c_row = s->hidden,
        .add = add,
        .scale = 1,
        .a = after(s, s->gates, first * 4 * s->state),
        .b = before(call, s, s->h, first, 2),
        .c = call->in_grad[1],
    });
}

static void weight_backward(const struct pl_call *call, const struct lstm *s)
{
    bool add = call->add[1];

    if (s->time > 1) {
        dw_of(call, s, 1, s->time - 1, add);
        add = true;
    }
    if (s->first)
        dw_of(call, s, 0, 1, add);
    else if (!add) /* a first state of zeros alone */
        pl_device_zero(call->tape->dev, call->in_grad[1], 4 * s->hidden * s->hidden * s->element);
}

static void lstm_backward(const struct pl_call *call)
{
    struct lstm s = lstm_of(call);
    void *dh = call->scratch, *dc = after(&s, dh, s.state);
    bool has_dc = s.last_c;

    if (s.last_c)
        copy_state(call, &s, after(&s, call->out_grad, s.time * s.hidden), (s.time + 1) * s.hidden,
                   dc, s.hidden);
    for (size_t t = s.time; t-- > 0;) {
        struct pl_lstm_args args = time_args(call, &s, t);
        bool given = t == 0 && s.first;

        args.dh = t + 1 < s.time ? dh : NULL;
        args.dc = has_dc ? dc : NULL;
        args.dc_before = given && call->in_grad[3] ? call->in_grad[3] : dc;
        args.dc_before_add = given && call->in_grad[3] && call->add[3];
        call->k->lstm_backward(&args);
        has_dc = true;
        if (t > 0)
            dh_of(call, &s, t, dh, false);
        else if (given && call->in_grad[2])
            dh_of(call, &s, t, call->in_grad[2], call->add[2]);
    }
    if (call->in_grad[1])
        weight_backward(call, &s);
}

static double lstm_flops(const struct pl_node *node, bool backward)
{
    const plume_tensor *w = node->in[1];
    double rows = (double)node->in[0]->count / (double)w->shape[0];
    double product = 2 * rows * (double)w->count, cells = 12 * rows * (double)w->shape[1];

    return backward ? product * (1 + w->wants_grad) + 2 * cells : product + cells;
}

static const struct pl_op op_lstm = {
    .name = "lstm",
    .cast = PL_CAST_LOW,
    .in_f32 = true,
    .needs = PL_NEEDS_IN(1) | PL_NEEDS_IN(2) | PL_NEEDS_IN(3),
    .product = true,
    .forward = lstm_forward,
    .backward = lstm_backward,
    .flops = lstm_flops,
};

int pl_build_lstm(struct pl_tape *tape,
                  const struct pl_op_request *req,
                  plume_tensor **ret,
                  struct pl_error *err)
{
    const plume_tensor *x = req->in[0], *w = req->in[1];
    struct pl_apply what = pl_op_like(&op_lstm, req, x);
    size_t hidden = w->rank == 2 ? w->shape[1] : 0, state;

    if (!pl_op_all_real(req) || req->n_in == 3 || x->rank != 3 || x->count == 0 || hidden == 0 ||
        w->shape[0] != 4 * hidden || x->shape[2] != 4 * hidden)
        return pl_op_refuse(req, "wanted: [batch, time, 4 hidden], w [4 hidden, hidden]", err);
    for (size_t i = 2; i < req->n_in; i++)
        if (req->in[i]->rank != 2 || req->in[i]->shape[0] != x->shape[0] ||
            req->in[i]->shape[1] != hidden)
            return pl_op_refuse(req, "wanted: h and c [batch, hidden]", err);
    state = x->shape[0] * hidden;
    what.attr.i[0] = req->args.i[0] != 0;
    what.shape[1] += req->args.i[0] != 0;
    what.shape[2] = hidden;
    what.saved_stats = 6 * x->shape[1] * state;
    what.scratch_bytes = 4 * state * pl_real_size(pl_real_of_stats(tape->kernels->real));
    return pl_tape_apply(tape, &what, ret, err);
}
