/* SPDX-License-Identifier: MIT */
/* A session (common/proto/protocol.h) on a TCP connection in a libuv loop. */
#ifndef PL_RUNTIME_NODE_HUB_CONN_H
#define PL_RUNTIME_NODE_HUB_CONN_H

#include "common/proto/protocol.h"

#include <uv.h>

struct pl_hub_conn;

struct pl_hub_conn_ops {
    /* Each message; borrowed. May call pl_hub_conn_close(). */
    void (*message)(struct pl_hub_conn *wire, json_t *message);
    /* The session became OPEN (both sides know the other holds the secret). May be NULL. */
    void (*open)(struct pl_hub_conn *wire);
    /* Once, when the connection failed or the peer closed it; not after pl_hub_conn_close(). err
     * has the reason (-EPIPE: closed). The wire is freed after the call. */
    void (*closed)(struct pl_hub_conn *wire, const struct pl_error *err);
};

struct pl_hub_conn {
    uv_poll_t poll;
    int fd;
    struct pl_session session;
    const struct pl_hub_conn_ops *ops;
    void *ctx; /* the owner's */
    uint64_t last_heard_ns;
    bool connecting, was_open, closing;
};

/* Takes fd (also on failure) and starts the session: the server's side, or the client's with its
 * hello (borrowed) once the connection is up. *ret lives until it is closed. */
int pl_hub_conn_create(uv_loop_t *loop,
                       int fd,
                       const struct pl_session_id *id,
                       const unsigned char secret[PL_KEY_SIZE],
                       json_t *hello,
                       const struct pl_hub_conn_ops *ops,
                       void *ctx,
                       struct pl_hub_conn **ret);

/* Queues a message (borrowed). Dropped where the wire is not open or closing. A peer that leaves
 * more than 4 MiB unread is cut off. Returns 0 or what pl_session_send() says (-EMSGSIZE). */
int pl_hub_conn_send(struct pl_hub_conn *wire, json_t *message);

/* As pl_hub_conn_send() with a new reference that is consumed; NULL is skipped. */
void pl_hub_conn_send_new(struct pl_hub_conn *wire, json_t *message);

/* True where all queued bytes are with the kernel. */
bool pl_hub_conn_flushed(const struct pl_hub_conn *wire);

/* Closes (after one last try to write what is queued) and frees it later. NULL is fine. */
void pl_hub_conn_close(struct pl_hub_conn *wire);

#endif
