/* SPDX-License-Identifier: MIT */
/* The daemon's connection to the hub: finding the hub and staying connected. Messages from before
 * the hub is found wait in a queue. */
#ifndef PL_RUNTIME_PLRUND_DAEMON_UPLINK_H
#define PL_RUNTIME_PLRUND_DAEMON_UPLINK_H

#include "common/base/error.h"
#include "common/proto/messages.h"
#include "runtime/node/hub_conn.h"
#include "runtime/node/slurm_step.h"

struct pl_uplink;

struct pl_uplink_ops {
    /* A message from the hub; borrowed. */
    void (*message)(void *ctx, json_t *message);
    /* No hub answers within the limit, or the connection ended. Called once. */
    void (*lost)(void *ctx, const char *text);
};

/* step, secret and ops are borrowed for the uplink's life. -ENOMEM. */
int pl_uplink_create(uv_loop_t *loop,
                     const struct pl_slurm_step *step,
                     const unsigned char secret[PL_KEY_SIZE],
                     const struct pl_uplink_ops *ops,
                     void *ctx,
                     struct pl_uplink **ret);

/* Says when it joins that this node cannot serve the step, and why: the hub refuses the step then.
 * text is borrowed for the uplink's life. */
void pl_uplink_unable(struct pl_uplink *u, const char *text);

/* Joins the hub in one of two ways: in this process (our end of a pair, taken), or on another node,
 * by a search. The search fails with -EINVAL for a bad $PLUME_HUB_PORTS. */
void pl_uplink_use(struct pl_uplink *u, struct pl_hub_conn *own_hub);
int pl_uplink_search(struct pl_uplink *u, struct pl_error *err);

/* Sends a message. Without memory for it the connection ends, unless the message is spare
 * (pl_msg_is_spare()). Skips a NULL uplink. */
void pl_uplink_send(struct pl_uplink *u, const struct pl_msg *m);
/* Shows the hub that we live, and finds out that the hub is gone. */
void pl_uplink_beat(struct pl_uplink *u);
/* Counts the hub's silence from now on: this process could not listen (the job was suspended). */
void pl_uplink_reset_silence(struct pl_uplink *u);
/* close ends its handles in the loop; destroy frees it after the loop has ended. */
void pl_uplink_close(struct pl_uplink *u);
void pl_uplink_destroy(struct pl_uplink *u);

#endif
