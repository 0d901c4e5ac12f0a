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
 * set to the state after the last time. Result [batch, time, hidden]: h of each time. About 15 ops
 * per time. */
static inline plume_tensor *plume_lstm(struct plume_context *pl,
                                       plume_tensor *x,
                                       plume_tensor *w_ih,
                                       plume_tensor *w_hh,
                                       plume_tensor *b_ih,
                                       plume_tensor *b_hh,
                                       plume_tensor **h,
                                       plume_tensor **c)
{
    size_t shape[PLUME_RANK_MAX] = {0}, weights[PLUME_RANK_MAX] = {0}, state[2], gate[2], row[3];
    plume_tensor *hidden = h ? *h : NULL, *cell = c ? *c : NULL, *from_x, *list[32], *y = NULL;
    size_t n = 0;

    if (!x || !w_ih || !w_hh)
        return NULL;
    if (pl->api->shape(x, shape) != 3 || pl->api->shape(w_hh, weights) != 2 ||
        weights[0] != 4 * weights[1]) {
        pl->api->fail(pl, -EINVAL,
                      "plume_lstm: wanted: x [batch, time, in], w_hh [4 hidden, hidden]");
        return NULL;
    }
    state[0] = row[0] = gate[0] = shape[0];
    state[1] = row[2] = weights[1];
    row[1] = 1;
    gate[1] = weights[0];
    if (!hidden)
        hidden = plume_full(pl, 2, state, 0);
    if (!cell)
        cell = plume_full(pl, 2, state, 0);
    from_x = plume_linear(pl, x, w_ih, b_ih, PLUME_IDENTITY);
    for (size_t t = 0; t < shape[1]; t++) {
        plume_tensor *sum = plume_reshape(pl, plume_slice(pl, from_x, 1, t, 1), 2, gate), *part[4];

        sum = plume_add(pl, sum, plume_linear(pl, hidden, w_hh, b_hh, PLUME_IDENTITY));
        for (size_t i = 0; i < 4; i++)
            part[i] = plume_activate(pl, plume_slice(pl, sum, 1, i * state[1], state[1]),
                                     i == 2 ? PLUME_TANH : PLUME_SIGMOID);
        cell = plume_add(pl, plume_mul(pl, part[1], cell), plume_mul(pl, part[0], part[2]));
        hidden = plume_mul(pl, part[3], plume_activate(pl, cell, PLUME_TANH));
        list[n++] = plume_reshape(pl, hidden, 3, row);
        if (n == sizeof(list) / sizeof(*list) || t + 1 == shape[1]) { /* a limit of cat's inputs */
            list[0] = y = plume_cat_along(pl, 1, n, list);
            n = 1;
        }
    }
    if (h)
        *h = hidden;
    if (c)
        *c = cell;
    return y;
}

#endif
