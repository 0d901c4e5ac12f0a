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
        return NULL;
    if (pl->api->shape(x, shape) != 3 || pl->api->shape(w_hh, weights) != 2 ||
        weights[0] != 4 * weights[1]) {
        pl->api->fail(pl, -EINVAL,
                      "plume_lstm: wanted: x [batch, time, in], w_hh [4 hidden, hidden]");
        return NULL;
    }
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

#endif
