/* SPDX-License-Identifier: MIT */
/* The hub: one per step, in the process of node 0's daemon. It alone writes the attempt's files,
 * and it decides why the attempt ended. It speaks with every node's daemon over a connection, with
 * its own node's over one in the process; so it knows nothing of the daemon. */
#ifndef PL_RUNTIME_PLRUND_HUB_HUB_H
#define PL_RUNTIME_PLRUND_HUB_HUB_H

#include "runtime/node/hub_conn.h"
#include "runtime/node/slurm_step.h"

struct pl_hub;

/* Listens and opens the attempt's files. step and secret are borrowed for the hub's life.
 * on_finished  called once, from the loop: every node has left, result.json is written. The hub
 *              answers clients until it is closed.
 * -EADDRINUSE (no port is free), -ENOMEM, and errors of sockets. If the files cannot be written,
 * the hub runs all the same: it refuses every node, with the reason. */
int pl_hub_start(uv_loop_t *loop,
                 const struct pl_slurm_step *step,
                 const unsigned char secret[PL_KEY_SIZE],
                 void (*on_finished)(void *ctx),
                 void *ctx,
                 struct pl_hub **ret,
                 struct pl_error *err);

/* Takes the hub's end of a pair, the other end of which is the own node's daemon. -ENOMEM. */
int pl_hub_add_pair(struct pl_hub *hub, struct pl_hub_conn *wire);

/* Closes the handles and connections. NULL is fine. */
void pl_hub_close(struct pl_hub *hub);

/* Frees the hub after the loop has ended. NULL is fine. */
void pl_hub_destroy(struct pl_hub *hub);

#endif
