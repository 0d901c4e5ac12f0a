/* SPDX-License-Identifier: MIT */
/* Recurrent layers, made of other ops: include it after plume/module.h. Values and gradients are
 * PyTorch's. */
#ifndef PL_OPS_RNN_H
#define PL_OPS_RNN_H

#include "plume/ops.h"

#include <errno.h>

/* One layer of torch.nn.LSTM (Hochreiter and Schmidhuber 1997), batch_first. x [batch, time, in];
 * w_ih [4 hidden, in], w_hh [4 hidden, hidden], b_ih and b_hh [4 hidden], or both NULL: the gates
 * are in PyTorch's order (input, forget, cell, output), so its weights fit. *h and *c [batch,
 * hidden]: the state before the first time; NULL means zeros, also in place of h and c. They are
 * set to the state after the last time. Result [batch, time, hidden]: h of each time. One product
 * of the input of all times, and one op for the times. */
static inline plume_tensor *plume_lstm(struct plume_context *pl,
                                       plume_tensor *x,
                                       plume_tensor *w_ih,
                                       plume_tensor *w_hh,
                                       plume_tensor *b_ih,
                                       plume_tensor *b_hh,
                                       plume_tensor **h,
                                       plume_tensor **c)
{
    size_t shape[PLUME_RANK_MAX] = {0}, weights[PLUME_RANK_MAX] = {0}, state[2];
    plume_tensor *in[4] = {NULL, w_hh, h ? *h : NULL, c ? *c : NULL}, *all, *y;
    struct plume_op_args args = {{c != NULL}, {0}};

    if (!x || !w_ih || !w_hh)
        return plume_refuse_null(pl, "lstm: x, w_ih or w_hh is NULL");
    if (pl->api->shape(x, shape) != 3 || pl->api->shape(w_hh, weights) != 2 ||
        weights[0] != 4 * weights[1])
        return plume_refuse_two(pl, "lstm: wanted: x [batch, time, in], w_hh [4 hidden, hidden]", x,
                                w_hh);
    state[0] = shape[0];
    state[1] = weights[1];
    for (size_t i = 2; i < 4 && (in[2] || in[3]); i++)
        if (!in[i])
            in[i] = plume_full(pl, 2, state, 0);
    in[0] = plume_linear(pl, x, w_ih,
                         b_ih && b_hh ? plume_add(pl, b_ih, b_hh)
                         : b_ih       ? b_ih
                                      : b_hh,
                         PLUME_IDENTITY);
    all = y = plume_op_call(pl, PLUME_OP_LSTM, in, in[2] ? 4 : 2, &args);
    if (c) { /* one row more than h has */
        y = plume_slice(pl, all, 1, 0, shape[1]);
        *c = plume_reshape(pl, plume_slice(pl, all, 1, shape[1], 1), 2, state);
    }
    if (h)
        *h = plume_reshape(pl, plume_slice(pl, all, 1, shape[1] - 1, 1), 2, state);
    return y;
}

/* One layer of torch.nn.GRU (arXiv 1406.1078), batch_first. x [batch, time, in]; w_ih [3 hidden,
 * in], w_hh [3 hidden, hidden], b_ih and b_hh [3 hidden], each NULL or not: the gates are in
 * PyTorch's order (reset, update, new), so its weights fit. The reset gate multiplies the product
 * of the state and its bias, as there. *h [batch, hidden]: the state before the first time; NULL
 * means zeros, also in place of h. It is set to the state after the last time. Result [batch, time,
 * hidden]: h of each time. A bidirectional layer is two: plume_flip() (plume/ops_shape.h) along
 * dimension 1 turns the second one's x and result round, and plume_cat_along() joins both. */
static inline plume_tensor *plume_gru(struct plume_context *pl,
                                      plume_tensor *x,
                                      plume_tensor *w_ih,
                                      plume_tensor *w_hh,
                                      plume_tensor *b_ih,
                                      plume_tensor *b_hh,
                                      plume_tensor **h)
{
    size_t shape[PLUME_RANK_MAX] = {0}, weights[PLUME_RANK_MAX] = {0}, n = 2;
    plume_tensor *in[4] = {NULL, w_hh, NULL, NULL}, *y;
    struct plume_op_args args = {{b_hh != NULL}, {0}};

    if (!x || !w_ih || !w_hh)
        return plume_refuse_null(pl, "gru: x, w_ih or w_hh is NULL");
    if (pl->api->shape(x, shape) != 3 || pl->api->shape(w_hh, weights) != 2 ||
        weights[0] != 3 * weights[1])
        return plume_refuse_two(pl, "gru: wanted: x [batch, time, in], w_hh [3 hidden, hidden]", x,
                                w_hh);
    in[0] = plume_linear(pl, x, w_ih, b_ih, PLUME_IDENTITY);
    if (b_hh)
        in[n++] = b_hh;
    if (h && *h)
        in[n++] = *h;
    y = plume_op_call(pl, PLUME_OP_GRU, in, n, &args);
    if (h) {
        size_t state[2];

        state[0] = shape[0];
        state[1] = weights[1];
        *h = plume_reshape(pl, plume_slice(pl, y, 1, shape[1] - 1, 1), 2, state);
    }
    return y;
}

#endif
